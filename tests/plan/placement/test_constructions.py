"""Constructions keep every limit and leave pinned tasks where they are, wherever a placement exists."""

import numpy as np
import pytest
from hypothesis import assume, given
from small_clusters import ROOMY, all_feasible, job, loads_and_clusters, posed

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.plan.placement.constructions import (
    colocated_placement,
    even_placement,
    initial_placement,
    least_busy_placement,
)
from penstock.plan.placement.problem import PlacementProblem
from penstock.plan.placement.search import constructions
from penstock.simulate.workload import Workload

Cluster = tuple[Workload, list[float], list[float], list[float]]


@given(loads_and_clusters())
def test_all_are_feasible_and_pinned_tasks_stay(cluster: Cluster) -> None:
    try:
        problem = posed(*cluster)
    except PenstockError:
        assume(False)
    for units in constructions(problem, 3):
        assert ((units >= 0) & (units < problem.machines)).all()
        assert not problem.over_use(units).any()
        pinned = problem.pinned >= 0
        assert (problem.machine_of(units)[pinned] == problem.pinned[pinned]).all()


@given(loads_and_clusters())
def test_ifs_finds_a_packing_whenever_trying_all_does(cluster: Cluster) -> None:
    load, rates, cores, gpus = cluster
    problem = None
    try:
        problem = posed(load, rates, cores, gpus)
    except PenstockError:
        roomy = posed(load, rates, [99.0] * len(rates), [9.0] * len(rates))
        assume(roomy.machines ** len(roomy.movable) <= 5000)
        tight = PlacementProblem(
            load, roomy.network, roomy.resources, np.array([cores, gpus]).T, roomy.pinned, roomy.unit_of, roomy.speeds
        )
        assert not all_feasible(tight)
    if problem is not None:
        assert not problem.over_use(initial_placement(problem, 0)).any()


def test_ifs_draws_the_order_of_machines_from_the_seed() -> None:
    problem = posed(job(4, 2, 2), *ROOMY)
    first = initial_placement(problem, 0)
    assert (first == initial_placement(problem, 0)).all()
    assert any((initial_placement(problem, seed) != first).any() for seed in range(1, 6))


def beside(problem: PlacementProblem, units: Array) -> int:
    """How many samplers stand with their worker."""
    return sum(int((units[group[1:]] == units[group[0]]).sum()) for group in problem.groups)


def test_distdgl_keeps_every_sampler_with_its_worker_where_there_is_room() -> None:
    problem = posed(job(4, 4, 2), *ROOMY)
    units = colocated_placement(problem)
    assert beside(problem, units) == 8
    assert sorted(units[group[0]] for group in problem.groups) == [0, 1, 2, 3]


def test_distdgl_goes_to_the_store_a_worker_reads_most_from() -> None:
    load = job(4, 2, 1, near_stores=[[0, 0, 1, 0], [0, 1, 0, 0]])  # type: ignore[arg-type]
    problem = posed(load, *ROOMY)
    assert [int(colocated_placement(problem)[group[0]]) for group in problem.groups] == [2, 1]


def test_spread_puts_as_many_of_a_kind_on_every_machine() -> None:
    problem = posed(job(4, 4, 2), *ROOMY)
    units = even_placement(problem)
    for kind, each in (("worker", 1), ("sampler", 2)):
        held = units[[unit for unit in problem.movable if problem.kinds[unit] == kind]]
        assert np.bincount(held, minlength=4).tolist() == [each] * 4


def test_greedy_leaves_the_slow_machine_to_its_store() -> None:
    problem = posed(job(4, 3, 2), *ROOMY)
    units = least_busy_placement(problem)
    assert beside(problem, units) == 6
    assert 0 not in units[np.concatenate(problem.groups)]


@pytest.mark.parametrize("build", [colocated_placement, even_placement, least_busy_placement])
def test_a_packed_cluster_is_filled_to_the_last_core(build: object) -> None:
    # 3 workers, 6 samplers and a server need 16 cores of 16: one wrong choice on the way leaves a sampler over.
    problem = posed(job(3, 3, 2), [100.0, 200.0, 500.0], [7.0, 5.0, 4.0], [1.0, 2.0, 2.0])
    units = build(problem)  # type: ignore[operator]
    assert not problem.over_use(units).any()
