"""A plan's choices: what is compared, what limits it, what would help."""

import numpy as np
import pytest

from penstock.plan.changes import bottleneck_of, changes_of
from penstock.plan.comparison import Comparison
from penstock.plan.placement import PLACEMENTS, Budget
from penstock.progress import SILENT
from plan_profiles import comparison, machines_of_rates, mini_batch, profile_of
from refusals import refused

STEPS = Budget(400)


def compared(parts: int, workers: int, *rates: float, shape: dict | None = None, **machines) -> Comparison:
    names = [f"store-m{number}" for number in range(parts)]
    return comparison(
        profile_of(parts, workers), mini_batch(names, **(shape or {})), machines_of_rates(*rates, **machines)
    )


@pytest.fixture(scope="module")
def unequal():
    run = compared(3, 4, 5e6, 2e7, 4e7, shape={"samplers": 2, "servers": 1, "sample_depth": 3}, cores=9)
    return run, run.try_all(list(PLACEMENTS), ["fair", "fifo"], STEPS, SILENT)


def test_ours_is_never_behind(unequal) -> None:
    _, trials = unequal
    for flows in ("fair", "fifo"):
        makespan = {trial.placed.policy: trial.placed.makespan for trial in trials if trial.flows == flows}
        assert makespan["search"] <= min(makespan.values()) + 1e-12


def test_limits_are_kept_and_stores_stay(unequal) -> None:
    run, trials = unequal
    for trial in trials:
        where = trial.placed.machine_of
        held = np.bincount(where, weights=run.load.resources["cores"], minlength=3)
        assert (held <= 9 + 1e-9).all()
        for number, name in enumerate(run.work.pinned):
            assert where[run.load.task_names.index(name)] == number
        assert (where == where[run.load.beside]).all()


def test_rows_say_what_was_found(unequal) -> None:
    run, trials = unequal
    for trial in trials:
        row = trial.row(20)
        assert row.epoch_s == pytest.approx(row.iteration_s * 20)
        assert row.lower_bound_s <= row.iteration_s * 1.02
        assert row.gap == pytest.approx(row.iteration_s / row.lower_bound_s - 1)
        assert row.slowest_link in run.problem.network.link_names
        # The slowest link needs at least its bytes over its rate.
        rate = run.problem.network.capacities[run.problem.network.link_names.index(row.slowest_link)]
        assert row.slowest_link_bytes / rate <= row.iteration_s * 1.05


def test_no_policy_is_faster_than_its_links() -> None:
    """Deep queues read ahead for long: what was read before, and what is not read at the end, is no speed."""
    names = ["store-m0", "store-m1"]
    profile = profile_of(2, 4, lists=[[4e6] * 4] * 2, features=(1e6, 1e6))
    run = comparison(profile, mini_batch(names), machines_of_rates(1e8, 1e8))
    for trial in run.try_all(["distdgl"], ["fifo", "fair", "iteration-first"], STEPS, SILENT):
        assert trial.iteration_s >= 0.99 * trial.lower_bound_s


def test_a_store_answers_one_after_the_other() -> None:
    seconds = {"serve": 0.1}
    few, many = (
        comparison(profile_of(1, workers, seconds=seconds), mini_batch(["store-m0"]), machines_of_rates(1e9, cores=64))
        for workers in (1, 8)
    )
    (one,), (eight,) = (run.try_all(["spread"], ["fair"], STEPS, SILENT) for run in (few, many))
    assert eight.iteration_s >= 0.4 > one.iteration_s


def test_the_bottleneck_is_a_sentence_about_a_task(unequal) -> None:
    run, trials = unequal
    worst = max(trials, key=lambda trial: trial.iteration_s)
    said = bottleneck_of(worst.timeline, [run.machines.names[each] for each in worst.placed.machine_of], run.work.words)
    assert " of the time " in said and "Links make up" in said
    assert any(f" on {name} " in said for name in run.machines.names)


def test_compute_is_named_where_it_limits() -> None:
    run = compared(2, 2, 1e9, 1e9)
    (trial,) = run.try_all(["spread"], ["fair"], STEPS, SILENT)
    said = bottleneck_of(trial.timeline, [run.machines.names[each] for each in trial.placed.machine_of], run.work.words)
    assert "% of the time on computing" in said


def test_a_faster_link_helps_where_a_link_limits(unequal) -> None:
    run, trials = unequal
    best = min(trials, key=lambda trial: trial.iteration_s)
    changes = changes_of(run, best, Budget(100), 0, SILENT)
    assert [change.gain for change in changes] == sorted((change.gain for change in changes), reverse=True)
    link = next(change for change in changes if change.what.startswith("a link twice as fast"))
    assert link.gain > 0.05
    assert all(change.iteration_s <= best.iteration_s * 1.001 for change in changes)


def test_a_gpu_brings_nothing_to_who_needs_none() -> None:
    """Whoever chose a poor placement is not told that hardware mends it."""
    run = comparison(profile_of(2, 2), mini_batch(["store-m0", "store-m1"]), machines_of_rates(1e6, 1e6, gpus=1))
    (trial,) = run.try_all(["ifs"], ["fair"], STEPS, SILENT)
    changes = {change.what: change for change in changes_of(run, trial, STEPS, 0, SILENT)}
    assert changes["one more GPU in m0"].gain == 0


def test_too_few_cores_are_named() -> None:
    with refused("infeasible cores"):
        compared(2, 8, 1e6, 1e6, cores=3)


def test_more_workers_than_gpus_are_named() -> None:
    names = ["store-m0", "store-m1"]
    with refused("infeasible gpus"):
        comparison(profile_of(2, 4), mini_batch(names, gpus=1.0), machines_of_rates(1e6, 1e6, gpus=1))


def test_a_link_without_a_rate_is_refused() -> None:
    with refused("value-out-of-range m1 0 bytes/s"):
        machines_of_rates(1e6, 0.0)
