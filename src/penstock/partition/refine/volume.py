"""Less communication in total: greedy moves that lower the volume and keep every constraint."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.kernels import njit
from penstock.partition.problem import Problem
from penstock.partition.refine.exchange import (
    VertexExchange,
    exchange_of,
    fits,
    is_boundary,
    move,
    table_fits,
    volume_changes,
)

_ROUNDS = 12
_WORTHWHILE = 0.001


def less_volume(problem: Problem, assignment: Array) -> Array:
    """Rounds over the boundary in a drawn order until one brings less than a thousandth."""
    if not table_fits(problem):
        return assignment
    state = exchange_of(problem, assignment)
    volume = int(state.recv.sum())
    for turn in range(_ROUNDS):
        saved = _improve(state, drawn_order(problem, turn))
        if saved < _WORTHWHILE * volume:
            break
        volume -= saved
    return state.part


def drawn_order(problem: Problem, turn: int) -> Array:
    """A different order of the vertices for every round, from the seed."""
    draws = np.empty(problem.whole.count)
    unit_draws(key_of(problem.seed, "order {}", turn), 0, draws)
    return np.argsort(draws, kind="stable")


@njit(nogil=True, cache=True)
def _improve(state: VertexExchange, order: Array) -> int:
    parts = state.recv.shape[0]
    change, send, recv = np.empty(parts, np.int64), np.empty(parts, np.int64), np.empty(parts, np.int64)
    saved = 0
    for v in order:
        if not is_boundary(state, v):
            continue
        volume_changes(state, v, change)
        best = state.part[v]
        for q in range(parts):
            if change[q] < change[best] and fits(state, v, q):
                best = q
        if best != state.part[v]:
            saved -= change[best]
            move(state, v, best, send, recv)
    return saved
