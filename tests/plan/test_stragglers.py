"""How a plan's epochs vary: where steps differ, and where machines are slow."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from penstock.cost.profile import CostSpread
from penstock.hardware.cluster import TransportOptions
from penstock.plan.changes import planned_seconds
from penstock.plan.comparison import Comparison
from penstock.plan.placement import Budget
from penstock.plan.stragglers import check_slow, epoch_p95, network_changes, parsed_slow, slow_changes
from penstock.progress import SILENT
from penstock.simulate.simulation import Simulator
from penstock.simulate.workload import draw_amounts
from plan_profiles import comparison, machines_of_rates, mini_batch, profile_of
from refusals import refused

STEPS = Budget(50)


def varying(shape: list[float], workers: int = 2) -> Comparison:
    """A run whose steps take this many times their mean, each as likely as the others."""
    profile = profile_of(2, workers)
    spread = CostSpread(mean=0.2, shape=shape)
    operators = [
        each.model_copy(update={"seconds": spread}) if each.name == "step" else each for each in profile.operators
    ]
    profile = profile.model_copy(update={"operators": operators})
    return comparison(profile, mini_batch(["store-m0", "store-m1"]), machines_of_rates(1e9, 1e9, cores=64))


def of(run: Comparison, batches: int) -> float:
    (trial,) = run.try_all(["spread"], ["fair"], STEPS, SILENT)
    turns = run.work.unrolled
    mean = trial.iteration_s * turns
    return epoch_p95(trial.timeline, run.work.ahead, run.iterations.period, mean, batches / turns) / (
        batches * trial.iteration_s
    )


def test_epochs_of_constant_steps_do_not_vary() -> None:
    assert of(varying([1.0]), 40) == pytest.approx(1, abs=1e-6)


def test_longer_epochs_vary_less() -> None:
    run = varying([0.5, 0.6, 0.9, 2.0])
    short, long = of(run, 10), of(run, 1000)
    assert short > 1.05 and short - 1 == pytest.approx(10 * (long - 1))


@pytest.mark.parametrize("workers", [1, 4])
def test_95_of_100_simulated_epochs_take_less(workers: int) -> None:
    """Against epochs of 40 batches, each simulated with amounts of its own, of which a synchronous step waits for the
    slowest of all workers.
    """
    batches, run = 40, varying([0.6, 0.8, 0.9, 1.0, 1.7], workers)
    (trial,) = run.try_all(["spread"], ["fair"], STEPS, SILENT)
    took = []
    for seed in range(200):
        amounts = draw_amounts(run.load, batches + 20, seed + 1, run.work.spreads)
        speeds = np.array(run.machines.speeds)
        timeline = Simulator(run.load, run.problem.network, amounts, "fair", speeds).timeline(trial.placed.machine_of)
        ends = np.maximum.accumulate(timeline.iteration_ends)
        took.append(ends[batches + 9] - ends[9])
    expected = np.quantile(took, 0.95) / np.mean(took)
    assert expected > 1.02
    assert of(run, batches) - 1 == pytest.approx(expected - 1, rel=0.35)


def slow(run: Comparison, *names: str) -> dict[str, float]:
    (trial,) = run.try_all(["spread"], ["fair"], STEPS, SILENT)
    planned = partial(planned_seconds, run, trial, STEPS, 0)
    found = slow_changes(run, trial, [parsed_slow(name) for name in names], 0, planned)
    return {each.what: each.iteration_s / trial.iteration_s for each in found}


def test_a_slow_machine_slows_every_step() -> None:
    found = slow(varying([1.0]), "m1=0.5")
    same, planned = found["m1 at 50 % of its speed"], found["m1 at 50 % of its speed, planned for that"]
    assert same == pytest.approx(2, rel=0.05) and planned <= same


def test_machines_that_are_slow_by_chance() -> None:
    """With two machines of which each is slow once in ten times, one in five iterations is slow."""
    found = slow(varying([1.0]), "any=0.5:0.1", "any=0.5:1")
    kind = "every machine at 50 % of its speed with a probability of"
    assert found[f"{kind} 10 %: median"] == pytest.approx(1, rel=0.01)
    assert found[f"{kind} 10 %: 95th percentile"] == pytest.approx(2, rel=0.05)
    assert found[f"{kind} 100 %: median"] == found[f"{kind} 100 %: 95th percentile"] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("text", ["", "m1", "m1=0", "m1=2", "m1=x", "m1=0.5:0.1", "any=0.5", "any=0.5:2", "=0.5"])
def test_what_names_no_slow_machine_is_refused(text: str) -> None:
    with refused("invalid-value --slow"):
        parsed_slow(text)


def test_machines_that_are_not_there_are_refused() -> None:
    with refused("unknown-name m2"):
        check_slow([parsed_slow("m1=0.5"), parsed_slow("any=0.5:0.1"), parsed_slow("m2=0.5")], ["m0", "m1"])


def test_a_plan_says_what_transports_and_tenants_cost() -> None:
    machines = replace(machines_of_rates(2e7, 2e7, cores=8), racks=("a", "b"))
    run = comparison(profile_of(2, 2), mini_batch(["store-m0", "store-m1"]), machines)
    transport = TransportOptions(hop_us=500, uplinks=2, seed=5)
    shared = replace(machines, transport=transport, taken=(0.0, 1e7), taken_cores=(0.0, 7.5))
    (free,), (busy,) = (each.try_all(["spread"], ["fair"], STEPS, SILENT) for each in (run, run.on(shared)))
    assert busy.iteration_s > free.iteration_s
    assert busy.lower_bound_s >= free.lower_bound_s
    assert network_changes(run, free) == []
    found = {each.what: each.iteration_s for each in network_changes(run.on(shared), busy)}
    fluid, alone = found["links as a fluid"], found["without other tenants"]
    assert fluid < busy.iteration_s and alone < busy.iteration_s
    assert fluid <= found["32 seeds of hashes and timeouts: median"]
    assert found["32 seeds of hashes and timeouts: median"] <= found["32 seeds of hashes and timeouts: 95th percentile"]
    neither = run.on(replace(shared, transport=None).alone()).trial(busy.placed, busy.flows)
    assert neither.iteration_s == run.trial(busy.placed, busy.flows).iteration_s
