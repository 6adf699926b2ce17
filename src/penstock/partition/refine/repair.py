"""Into the tolerance: move as few and as cheap vertices as needed out of overloaded parts.

Every move lowers the summed relative overload. It may overload another constraint a little on the way (a train vertex
needs room among the vertices too); that is cleared in its turn, and since the sum only falls, the moves end.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.partition.problem import Problem
from penstock.partition.refine.exchange import VertexExchange, exchange_of, move, table_fits, volume_changes

_ROUNDS_EACH = 20
_AIM = 0.6


def repaired(problem: Problem, assignment: Array) -> Array:
    """The assignment itself when it is within the tolerance, else a copy moved there as far as it can be."""
    loads = problem.constraints.loads(assignment, problem.parts)
    if (loads <= problem.capacities()[:, None]).all():
        return assignment
    if not table_fits(problem):
        problem.progress.note(
            "The graph is too large for the table that moving into balance needs: parts stay as found."
        )
        return assignment
    with problem.progress.step("moving into balance"):
        means = np.maximum(loads.sum(1) / problem.parts, 1e-30)
        # The search aims inside the tolerance, so that where it gets stuck is still within it.
        aim = np.maximum(means + _AIM * (problem.capacities() - means), np.ceil(means))
        state = exchange_of(problem, assignment, aim)
        for _ in range(_ROUNDS_EACH * state.loads.size):
            if (state.loads <= problem.capacities()[:, None]).all():
                break
            if not any(_relieve(state, means, constraint, part) for constraint, part in _overloads(state)):
                break
    return state.part


def filled(problem: Problem, assignment: Array) -> Array:
    """No part without a vertex: partitioners may leave some empty when parts are small."""
    sizes = np.bincount(assignment, minlength=problem.parts)
    empty = np.flatnonzero(sizes == 0)
    if len(empty) == 0:
        return assignment
    assignment = assignment.copy()
    for part in empty:
        donor = int(np.argmax(sizes))
        assignment[np.flatnonzero(assignment == donor)[0]] = part
        sizes[donor] -= 1
        sizes[part] += 1
    problem.progress.note(f"The method left {len(empty)} parts empty; each was given a vertex.")
    return repaired(problem, assignment)


def _overloads(state: VertexExchange) -> list[tuple[int, int]]:
    """(constraint, part) pairs above their capacity, the worst first."""
    excess = state.loads / np.maximum(state.capacities, 1e-30)[:, None]
    order = np.argsort(-excess, axis=None, kind="stable")[: int((excess > 1).sum())]
    return [(int(place // excess.shape[1]), int(place % excess.shape[1])) for place in order]


def _relieve(state: VertexExchange, means: Array, constraint: int, part: int) -> bool:
    """Move out vertices, least volume per unit of overload first, until the part fits; False if none could go."""
    members = np.flatnonzero((state.part == part) & (state.weights[constraint] > 0))
    costs = np.empty(len(members))
    _price(state, means, members, costs)
    order = members[np.argsort(costs, kind="stable")]
    return bool(_move_out(state, means, order, constraint, part))


@njit(nogil=True, cache=True)
def _overload_change(state: VertexExchange, means: Array, v: int, q: int) -> float:
    """How the summed relative overload would change if v moved to q."""
    p, total = state.part[v], 0.0
    for c in range(means.shape[0]):
        weight, capacity = state.weights[c, v], state.capacities[c]
        if weight > 0:
            at_p, at_q = state.loads[c, p], state.loads[c, q]
            gain = max(0.0, at_q + weight - capacity) - max(0.0, at_q - capacity)
            loss = max(0.0, at_p - capacity) - max(0.0, at_p - weight - capacity)
            total += (gain - loss) / means[c]
    return total


@njit(nogil=True, cache=True)
def _best_target(state: VertexExchange, means: Array, v: int, change: Array) -> tuple[int, float]:
    """The part that lowers the overload at least volume a unit, and that price; (-1, inf) if none does."""
    best, price = -1, np.inf
    volume_changes(state, v, change)
    for q in range(change.shape[0]):
        if q != state.part[v]:
            relief = -_overload_change(state, means, v, q)
            if relief > 1e-12:
                cost = change[q] / relief if change[q] > 0 else float(change[q])
                if cost < price:
                    best, price = q, cost
    return best, price


@njit(nogil=True, cache=True)
def _price(state: VertexExchange, means: Array, members: Array, costs: Array) -> None:
    change = np.empty(state.recv.shape[0], np.int64)
    for i in range(members.shape[0]):
        _, costs[i] = _best_target(state, means, members[i], change)


@njit(nogil=True, cache=True)
def _move_out(state: VertexExchange, means: Array, order: Array, constraint: int, part: int) -> int:
    parts = state.recv.shape[0]
    change, send, recv = np.empty(parts, np.int64), np.empty(parts, np.int64), np.empty(parts, np.int64)
    moved = 0
    for v in order:
        if state.loads[constraint, part] <= state.capacities[constraint]:
            break
        best, _ = _best_target(state, means, v, change)
        if best >= 0:
            move(state, v, best, send, recv)
            moved += 1
    return moved
