"""Local search: its bookkeeping is exact, and it never ends worse than it began."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.partition import measure
from penstock.partition.methods import METHODS
from penstock.partition.problem import Problem, constraints_of, default_names, whole_of
from penstock.partition.refine import (
    balanced,
    exchange_of,
    less_volume,
    move,
    repaired,
    traffic_changes,
    volume_changes,
)
from random_graphs import directed_graph, graphs, mesh_graph, power_law_graph


def problem_of(graph, parts, tolerance=1.05):
    whole = whole_of(graph)
    return Problem(whole, parts, constraints_of(whole, default_names(whole)), tolerance)


@given(graphs(), st.integers(2, 5), st.integers(0, 99))
def test_moves_keep_the_state_exact(graph, parts, seed):
    problem = problem_of(graph, parts)
    rng = np.random.default_rng(seed)
    part = rng.integers(0, parts, problem.whole.count).astype(np.int32)
    state = exchange_of(problem, part)
    send, recv, change = np.empty(parts, np.int64), np.empty(parts, np.int64), np.empty(parts, np.int64)
    for _ in range(10):
        v, q = int(rng.integers(problem.whole.count)), int(rng.integers(parts))
        if q == state.part[v]:
            continue
        volume_changes(state, v, change)
        traffic_changes(state, v, q, send, recv)
        assert change[q] == recv.sum() == send.sum()
        move(state, v, q, send, recv)
        fresh = exchange_of(problem, state.part)
        for name in ("readers", "send", "recv", "loads"):
            np.testing.assert_array_equal(getattr(state, name), getattr(fresh, name))


GRAPHS = {
    "power law": power_law_graph,
    "mesh": mesh_graph,
    "directed": directed_graph,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("start", ["random", "chunk", "stream", "metis"])
@pytest.mark.parametrize("parts", [2, 5, 8])
def test_balanced_never_raises_the_largest(kind, start, parts):
    problem = problem_of(GRAPHS[kind](), parts)
    before_part = METHODS[start](problem)
    after_part = balanced(problem, before_part)
    before = measure(problem.whole, before_part, parts, problem.constraints)
    after = measure(problem.whole, after_part, parts, problem.constraints)
    assert after.max_send <= before.max_send
    assert after.max_recv <= before.max_recv
    for name, ratio in after.balance.items():
        assert ratio <= max(1.05, before.balance[name]) + 2 * parts / problem.whole.count


@pytest.mark.parametrize("parts", [4, 8])
def test_balanced_lowers_the_largest_on_power_law_graphs(parts):
    problem = problem_of(power_law_graph(), parts)
    start = METHODS["metis"](problem)
    before = measure(problem.whole, start, parts, problem.constraints)
    after = measure(problem.whole, balanced(problem, start), parts, problem.constraints)
    assert max(after.max_send, after.max_recv) < max(before.max_send, before.max_recv)


@given(graphs(max_types=1, max_nodes=60), st.integers(2, 4))
def test_less_volume_never_raises_the_volume(graph, parts):
    problem = problem_of(graph, parts, tolerance=1.5)
    start = METHODS["random"](problem)
    before = measure(problem.whole, start, parts, problem.constraints)
    after = measure(problem.whole, less_volume(problem, start), parts, problem.constraints)
    assert after.comm_volume <= before.comm_volume


@pytest.mark.parametrize("kind", GRAPHS)
def test_repair_brings_every_constraint_into_the_tolerance(kind):
    problem = problem_of(GRAPHS[kind](), 4)
    lopsided = np.zeros(problem.whole.count, np.int32)
    lopsided[::5] = 1
    lopsided[::7] = 2
    lopsided[::9] = 3
    after = repaired(problem, lopsided)
    assert (problem.constraints.loads(after, 4) <= problem.capacities()[:, None]).all()
    balanced_start = METHODS["random"](problem)
    if (problem.constraints.loads(balanced_start, 4) <= problem.capacities()[:, None]).all():
        assert repaired(problem, balanced_start) is balanced_start
