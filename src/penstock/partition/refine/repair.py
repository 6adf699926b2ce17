"""Into the tolerance: move as few and as cheap vertices as needed out of overloaded parts."""

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.partition.problem import Problem
from penstock.partition.refine.exchange import Exchange, exchange_of, fits, move, volume_changes

_ROUNDS = 50


def repaired(problem: Problem, assignment: Array) -> Array:
    """The assignment itself when it is within the tolerance, else a copy moved there as far as it can be."""
    loads = problem.constraints.loads(assignment, problem.parts)
    if (loads <= problem.capacities()[:, None]).all():
        return assignment
    with problem.progress.step("moving into balance"):
        state = exchange_of(problem, assignment)
        for _ in range(_ROUNDS):
            constraint, part = _worst(state)
            if constraint < 0 or not _relieve(state, constraint, part):
                break
    return state.part


def _worst(state: Exchange) -> tuple[int, int]:
    """The constraint and part with the largest relative overload, or (-1, -1)."""
    excess = state.loads / np.maximum(state.capacities, 1e-30)[:, None]
    if excess.max() <= 1:
        return -1, -1
    constraint, part = np.unravel_index(int(excess.argmax()), excess.shape)
    return int(constraint), int(part)


def _relieve(state: Exchange, constraint: int, part: int) -> bool:
    """Move out the vertices that cost least volume per unit of load, until the part fits; False if none can go."""
    members = np.flatnonzero((state.part == part) & (state.weights[constraint] > 0))
    costs = np.empty(len(members))
    _price(state, members, constraint, costs)
    order = members[np.argsort(costs, kind="stable")]
    return bool(_move_out(state, order, constraint, part))


@njit(nogil=True, cache=True)
def _best_target(state: Exchange, v: int, change: Array) -> int:
    best = -1
    for q in range(change.shape[0]):
        if q != state.part[v] and fits(state, v, q) and (best < 0 or change[q] < change[best]):
            best = q
    return best


@njit(nogil=True, cache=True)
def _price(state: Exchange, members: Array, constraint: int, costs: Array) -> None:
    change = np.empty(state.recv.shape[0], np.int64)
    for i in range(members.shape[0]):
        volume_changes(state, members[i], change)
        best = _best_target(state, members[i], change)
        weight = state.weights[constraint, members[i]]
        # A vertex that saves volume by leaving should go whatever it weighs.
        costs[i] = np.inf if best < 0 else change[best] / weight if change[best] > 0 else change[best]


@njit(nogil=True, cache=True)
def _move_out(state: Exchange, order: Array, constraint: int, part: int) -> int:
    parts = state.recv.shape[0]
    change, send, recv = np.empty(parts, np.int64), np.empty(parts, np.int64), np.empty(parts, np.int64)
    moved = 0
    for v in order:
        if state.loads[constraint, part] <= state.capacities[constraint]:
            break
        volume_changes(state, v, change)
        best = _best_target(state, v, change)
        if best >= 0:
            move(state, v, best, send, recv)
            moved += 1
    return moved
