"""Critical path and cost against numbers worked out by hand, and against the simulator's own bound."""

import numpy as np
import pytest
from small_clusters import ROOMY, job, posed

from penstock.hardware.machines import star
from penstock.plan.placement import Evaluator
from penstock.plan.placement.problem import move, over_use, walk_from
from penstock.plan.placement.search import constructions
from penstock.simulate.levels import chain_crowded
from penstock.simulate.simulation import Simulator
from penstock.simulate.workload import PeakToMean, WorkloadBuilder, draw_amounts


def two_samplers() -> Evaluator:
    """Stores of 1 s on both machines send 10 bytes each to samplers of 2 s and 3 s; 10 and 5 bytes/s."""
    from penstock.plan.placement import placement_problem

    building = WorkloadBuilder()
    stores = [building.task(f"store{k}", "store", 1.0) for k in range(2)]
    for k, seconds in enumerate((2.0, 3.0)):
        sampler = building.task(f"sampler{k}", "sampler", seconds, {"cores": 2.0})
        for store in stores:
            building.flow(store, sampler, 10.0, "pull")
    problem = placement_problem(building.build(), star([10.0, 5.0], [10.0, 5.0]), {"cores": [4, 3]})
    return Evaluator(problem, "oes", draw_amounts(problem.workload, 2))


def test_a_flow_weighs_its_bytes_by_the_rate_that_degrees_leave() -> None:
    evaluator = two_samplers()
    # Both samplers on machine 0: the two flows from store 1 share m1's 5 bytes/s going out: 10 / 2.5 = 4 s each.
    # Iteration 2 waits for that flow of iteration 1: 1 + 4 + 4 + 3 s through the slower sampler.
    assert evaluator.critical_path(np.array([0, 1, 0, 0])) == pytest.approx(12.0)
    # One on each: one flow a link, 10 bytes at 5 bytes/s: 1 + 2 + 2 + 3 for the first; with 3 s tasks, 1 + 2 + 3 + 3.
    assert evaluator.critical_path(np.array([0, 1, 0, 1])) == pytest.approx(9.0)


def test_cost_grows_by_the_relative_over_use() -> None:
    evaluator = two_samplers()
    units = np.array([0, 1, 1, 1])  # 4 cores of 3: over by a third
    assert evaluator.cost(units) == pytest.approx(evaluator.critical_path(units) * (1 + 1 / 3))
    assert evaluator.cost(np.array([0, 1, 0, 0])) == evaluator.critical_path(np.array([0, 1, 0, 0]))


def test_it_is_the_simulators_upper_bound() -> None:
    problem = posed(job(4, 3, 2), *ROOMY)
    amounts = draw_amounts(problem.workload, 5, 7, {"pull": PeakToMean(2.0)})
    evaluator = Evaluator(problem, "oes", amounts)
    simulator = Simulator(problem.workload, problem.network, amounts)
    for units in constructions(problem, 0):
        path = evaluator.critical_path(units)
        assert path == pytest.approx(chain_crowded(simulator.case(problem.machine_of(units))))
        assert evaluator.bound(units) <= evaluator.makespan(units) * (1 + 1e-9)
        assert evaluator.makespan(units) <= path * (1 + 1e-9)


def test_moves_keep_loads_exact() -> None:
    problem = posed(job(4, 3, 2), *ROOMY)
    tables = Evaluator(problem, "oes").tables
    walk = walk_from(tables, constructions(problem, 0)[0])
    for step, unit in enumerate([*problem.movable, *problem.movable]):
        move(tables, walk, int(unit), (step * 7) % 4)
    fresh = walk_from(tables, walk.units)
    assert (walk.link_bytes == fresh.link_bytes).all()
    assert (walk.link_flows == fresh.link_flows).all()
    assert walk.used == pytest.approx(fresh.used)
    assert over_use(tables, walk) == pytest.approx(over_use(tables, fresh))


def test_a_placement_is_simulated_once() -> None:
    problem = posed(job(4, 3, 2), *ROOMY)
    evaluator = Evaluator(problem, "oes")
    units = constructions(problem, 0)[1]
    assert evaluator.makespan(units) == evaluator.makespan(units.astype(np.int64))
    assert evaluator.simulated == 1
