"""`refine=balanced`: lower what the busiest part sends or receives (G3's second stage, in a form that never ends
worse).

Every step lowers Σ send^8 + recv^8 over parts, a smooth stand-in for the largest of them. The largest itself may rise
for a few
moves on the way, so moves are logged and undone back to the best state seen, which is at least the one it began with.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.partition.problem import Problem
from penstock.partition.refine.exchange import (
    VertexExchange,
    exchange_of,
    fits,
    is_boundary,
    move,
    traffic_changes,
    volume_changes,
)
from penstock.partition.refine.volume import drawn_order

_ROUNDS = 10
_SETTLED = 0.005
"""Stop when a round lowers the largest by less than this share (the source's threshold)."""
_TARGETS = 3


def balanced(problem: Problem, assignment: Array) -> Array:
    """An assignment whose largest send and largest receive are both no larger than before, and whose constraints hold
    as
    well as before."""
    parts = problem.parts
    loads = problem.constraints.loads(assignment, parts)
    state = exchange_of(problem, assignment, np.maximum(problem.capacities(), loads.max(1)))
    bounds = (int(state.send.max()), int(state.recv.max()))
    best = max(bounds)
    for turn in range(_ROUNDS):
        before = best
        best = _descend(state, drawn_order(problem, turn), bounds, best)
        if before - best <= _SETTLED * before:
            break
    return state.part


def _descend(state: VertexExchange, order: Array, bounds: tuple[int, int], best: int) -> int:
    """One round; the state ends at the best point seen, whose largest send or receive is returned."""
    log = np.empty((len(order), 2), np.int64)
    logged, kept, best = _round(state, order, bounds[0], bounds[1], best, log)
    _undo(state, log[kept:logged])
    return int(best)


@njit(nogil=True, cache=True)
def _round(
    state: VertexExchange, order: Array, send_bound: int, recv_bound: int, best: int, log: Array
) -> tuple[int, int, int]:
    parts = state.recv.shape[0]
    change, send, recv = np.empty(parts, np.int64), np.empty(parts, np.int64), np.empty(parts, np.int64)
    scale = 1.0 / max(1.0, float(max(state.send.max(), state.recv.max())))
    logged = kept = 0
    for v in order:
        if not is_boundary(state, v):
            continue
        q = _choose(state, v, scale, change, send, recv)
        if q < 0:
            continue
        log[logged, 0], log[logged, 1] = v, state.part[v]
        logged += 1
        move(state, v, q, send, recv)
        now = max(state.send.max(), state.recv.max())
        if now < best and state.send.max() <= send_bound and state.recv.max() <= recv_bound:
            best, kept = now, logged
    return logged, kept, best


@njit(nogil=True, cache=True)
def _choose(state: VertexExchange, v: int, scale: float, change: Array, send: Array, recv: Array) -> int:
    """Among the parts that cost v least volume, the one that lowers the sum of powers most; -1 if none does."""
    volume_changes(state, v, change)
    p = state.part[v]
    chosen, gain = -1, -1e-12
    for _ in range(min(_TARGETS, change.shape[0] - 1)):
        q = -1
        for r in range(change.shape[0]):
            if r != p and change[r] < np.iinfo(np.int64).max and (q < 0 or change[r] < change[q]):
                q = r
        if q < 0:
            break
        change[q] = np.iinfo(np.int64).max
        if not fits(state, v, q):
            continue
        traffic_changes(state, v, q, send, recv)
        difference = _power_difference(state, scale, send, recv)
        if difference < gain:
            chosen, gain = q, difference
    return chosen


@njit(nogil=True, cache=True, inline="always")
def _power_difference(state: VertexExchange, scale: float, send: Array, recv: Array) -> float:
    total = 0.0
    for r in range(send.shape[0]):
        if send[r] != 0:
            total += _eighth((state.send[r] + send[r]) * scale) - _eighth(state.send[r] * scale)
        if recv[r] != 0:
            total += _eighth((state.recv[r] + recv[r]) * scale) - _eighth(state.recv[r] * scale)
    return total


@njit(nogil=True, cache=True, inline="always")
def _eighth(value: float) -> float:
    square = value * value
    fourth = square * square
    return fourth * fourth


@njit(nogil=True, cache=True)
def _undo(state: VertexExchange, log: Array) -> None:
    send, recv = np.empty(state.recv.shape[0], np.int64), np.empty(state.recv.shape[0], np.int64)
    for i in range(log.shape[0]):
        entry = log.shape[0] - 1 - i
        move(state, log[entry, 0], log[entry, 1], send, recv)
