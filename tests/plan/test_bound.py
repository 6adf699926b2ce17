"""What no placement and no flow policy goes below, tried on every placement of small random clusters."""

from itertools import product

import numpy as np
import pytest

from penstock.hardware.machines import Machines
from penstock.plan.bound import cluster_bound, slowest_cycle
from penstock.plan.comparison import Comparison, draw_iterations
from penstock.plan.document import CARRIED_OUT
from penstock.plan.placement import PlacedUnits, PlacementProblem
from penstock.plan.workloads.mini_batch import mini_batch_template
from penstock.simulate.simulation import Simulator
from penstock.simulate.workload import Quantiles
from plan_profiles import comparison, machines_of_rates, mini_batch, profile_of

LONG = pytest.mark.long
SHAPES = [{}, {"samplers": 1}, {"samplers": 2, "sample_depth": 3}, {"servers": 1}]


def random_run(seed: int) -> Comparison:
    """Two or three machines of unequal links and speeds; amounts of every iteration differ."""
    random = np.random.default_rng(seed)
    parts, workers = int(random.integers(2, 4)), int(random.integers(1, 3))
    shape = SHAPES[seed % len(SHAPES)]
    seconds = dict(zip(("sample", "gather", "step"), random.uniform(0.0005, 0.02, 3), strict=True))
    profile = profile_of(
        parts,
        workers,
        seconds=seconds,
        features=tuple(random.uniform(1e5, 2e6, 2)),
        sizes=np.sort(random.lognormal(0, 0.6, 20)).tolist(),
        gradients=float(random.uniform(1e4, 1e6)),
    )
    names = tuple(f"m{number}" for number in range(parts))
    rates = tuple(random.uniform(2e7, 4e8, parts).tolist())
    limits = {"cores": (16.0,) * parts, "memory_gb": (float("inf"),) * parts, "gpus": (0.0,) * parts}
    machines = Machines(names, limits, rates, ("",) * parts, tuple(random.uniform(0.5, 2, parts).tolist()))
    return comparison(profile, mini_batch([f"store-{name}" for name in names], **shape), machines, seed=seed)


def every_placement(problem: PlacementProblem) -> list[PlacedUnits]:
    found = []
    for machines in product(range(problem.machines), repeat=len(problem.movable)):
        units = problem.home.copy()
        units[problem.movable] = machines
        if not problem.over_use(units).any():
            found.append(PlacedUnits("all", problem.machine_of(units), 0.0, 0, 0, 0.0))
    return found


@pytest.mark.parametrize(("seed", "most"), [*((seed, 60) for seed in range(12)), pytest.param(10, 1 << 30, marks=LONG)])
def test_nothing_goes_below_the_bounds(seed: int, most: int) -> None:
    """Neither of at most so many placements of each run; one run has thousands, which are tried on long days."""
    run = random_run(seed)
    floor, turns = run.lower_bound(), run.work.unrolled
    assert floor > 0
    placements = every_placement(run.problem)
    for placed, flows in product(placements[:: -(-len(placements) // most)], CARRIED_OUT):
        trial = run.trial(placed, flows)
        assert floor <= trial.lower_bound_s * (1 + 1e-9)
        assert trial.lower_bound_s <= trial.iteration_s
        # The whole run, too: filling and emptying the pipeline only add to it.
        whole = trial.timeline.makespan / trial.timeline.iterations / turns
        assert trial.lower_bound_s <= whole * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_longer_run_does_not_go_below_either(seed: int) -> None:
    """Other iterations, many of them, and no correction: the pace between two ends far apart."""
    run = random_run(seed)
    period = draw_iterations(run.load, 77, run.work.spreads, run.work.ahead, run.work.owners).searched
    rows = np.arange(640) % len(period.seconds)
    amounts = type(period)(period.seconds[rows], period.sizes[rows])
    for placed in every_placement(run.problem)[::3]:
        simulator = Simulator(run.load, run.problem.network, amounts, "fair", np.array(run.machines.speeds))
        timeline = simulator.timeline(placed.machine_of)
        ends = np.maximum.accumulate(timeline.iteration_ends)
        measured = (ends[600] - ends[88]) / 512 / run.work.unrolled
        bound = run.trial(placed, "fair").lower_bound_s
        assert measured >= bound * 0.9999


def test_the_bound_is_reached_where_one_link_or_one_task_decides() -> None:
    names = ["store-m0", "store-m1"]
    for changes, flows in (({"features": (1e3, 1e3)}, "fair"), ({"features": (4e7, 4e7)}, "iteration-first")):
        run = comparison(profile_of(2, 2, blocks=[0.0] * 2, **changes), mini_batch(names), machines_of_rates(1e9, 1e9))
        best = min(run.trial(each, flows).iteration_s for each in every_placement(run.problem))
        assert best <= run.lower_bound() * 1.06


def test_amounts_have_exactly_their_means() -> None:
    load = mini_batch_template(profile_of(3, 3), mini_batch([f"store-m{k}" for k in range(3)]))
    skewed = Quantiles(np.random.default_rng(0).lognormal(0, 1, 20))
    drawn = draw_iterations(load, 3, dict.fromkeys(("lists", "features", "step"), skewed), 10)
    for amounts in (drawn.searched, drawn.judged):
        np.testing.assert_allclose(amounts.sizes.mean(axis=0), load.flow_bytes, rtol=1e-12)
        np.testing.assert_allclose(amounts.seconds.mean(axis=0), load.task_seconds, rtol=1e-12)
    assert np.ptp(drawn.searched.sizes, axis=0).max() > 0


def test_the_slowest_cycle_is_that_of_the_slowest_stage() -> None:
    load = mini_batch_template(profile_of(1, 1, seconds={"gather": 0.05}), mini_batch(["store-m0"]))
    case = Simulator(load, machines_of_rates(1e9).network(), 1).case(np.zeros(load.tasks, np.int32))
    assert slowest_cycle(case) == pytest.approx(0.05)


def test_racks_bound_what_leaves_them() -> None:
    """One worker in each of two racks, both reading from the other rack's part over a thin uplink, wherever they go."""
    rates = machines_of_rates(1e9, 1e9)
    profile = profile_of(2, 2, features=(5e6, 5e6), blocks=[0.0] * 2)
    runs = [
        comparison(profile, mini_batch(["store-m0", "store-m1"]), Machines(
            rates.names, {**rates.capacities, "cores": (5, 5)}, rates.rates, racks, rates.speeds, 8.0
        ))
        for racks in (("", ""), ("a", "b"))
    ]  # fmt: skip
    one, two = (cluster_bound(run.problem, run.iterations.searched) for run in runs)
    assert two == pytest.approx(8 * (5e6 + 5e4) / 1e9, rel=1e-3)
    assert one < two
