"""The state that local search works on: who reads whom, and what a move would change. O(degree) a move.

`readers[u, p]` counts the edges from u into part p. Part p receives u when that count is positive and u lives
elsewhere, so the count reaching 0 or leaving it is all that a move can change.
"""

from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.partition.problem import Problem

_LARGEST_TABLE = 8 << 30


class VertexExchange(NamedTuple):
    """An assignment under change, as kernels see it."""

    indptr: Array
    indices: Array
    part: Array
    readers: Array
    """[vertices, parts] edges from a vertex into a part."""
    send: Array
    recv: Array
    """[parts] rows that cross."""
    weights: Array
    """[constraints, vertices]"""
    loads: Array
    """[constraints, parts]"""
    capacities: Array
    """[constraints] largest load that a move may lead to."""


def exchange_of(problem: Problem, assignment: Array, slack: Array | None = None) -> VertexExchange:
    """The state of an assignment; `slack` replaces the problem's capacities."""
    whole, parts = problem.whole, problem.parts
    check_table(problem)
    part = assignment.astype(np.int32)
    readers = np.zeros((whole.count, parts), np.int32)
    _count_readers(whole.indptr, whole.indices, part, readers)
    send, recv = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    _count_traffic(part, readers, send, recv)
    loads = problem.constraints.loads(part, parts).astype(np.float64)
    capacities = problem.capacities() if slack is None else slack
    weights = problem.constraints.weights
    return VertexExchange(whole.indptr, whole.indices, part, readers, send, recv, weights, loads, capacities)


def check_table(problem: Problem) -> None:
    """Refuse a problem whose table of readers would be absurd."""
    if not table_fits(problem):
        size = problem.whole.count * problem.parts * 4 / 1e9
        raise PenstockError(
            f"Refining {problem.whole.count:,} vertices in {problem.parts} parts needs a table of {size:.0f} GB of"
            " memory: use fewer parts, or leave out --refine.",
            code="out-of-memory",
        )


def table_fits(problem: Problem) -> bool:
    """Whether local search can hold its table of [vertices, parts]."""
    return problem.whole.count * problem.parts * 4 <= _LARGEST_TABLE


@njit(nogil=True, cache=True)
def _count_readers(indptr: Array, indices: Array, part: Array, readers: Array) -> None:
    for v in range(indptr.shape[0] - 1):
        for k in range(indptr[v], indptr[v + 1]):
            readers[indices[k], part[v]] += 1


@njit(nogil=True, cache=True)
def _count_traffic(part: Array, readers: Array, send: Array, recv: Array) -> None:
    for u in range(readers.shape[0]):
        for p in range(recv.shape[0]):
            if readers[u, p] > 0 and p != part[u]:
                send[part[u]] += 1
                recv[p] += 1


@njit(nogil=True, cache=True, inline="always")
def run_length(indices: Array, k: int, end: int) -> int:
    """How many equal neighbours stand together at k."""
    times = 1
    while k + times < end and indices[k + times] == indices[k]:
        times += 1
    return times


@njit(nogil=True, cache=True)
def is_boundary(state: VertexExchange, v: int) -> bool:
    """Whether v reads a remote vertex or is read by a remote part."""
    p = state.part[v]
    for q in range(state.recv.shape[0]):
        if q != p and state.readers[v, q] > 0:
            return True
    for u in state.indices[state.indptr[v] : state.indptr[v + 1]]:  # noqa: SIM110 (Numba compiles no generators)
        if state.part[u] != p:
            return True
    return False


@njit(nogil=True, cache=True)
def fits(state: VertexExchange, v: int, q: int) -> bool:
    """Whether v may join q without breaking a constraint that it adds to."""
    for c in range(state.loads.shape[0]):
        weight = state.weights[c, v]
        if weight > 0 and state.loads[c, q] + weight > state.capacities[c]:
            return False
    return True


@njit(nogil=True, cache=True)
def volume_changes(state: VertexExchange, v: int, change: Array) -> None:
    """`change[q]`: how the communication volume would change if v moved to q; 0 for its own part."""
    p, end = state.part[v], state.indptr[v + 1]
    parts = change.shape[0]
    change[:] = 0
    leave, own, k = 0, 0, state.indptr[v]
    while k < end:
        u = state.indices[k]
        times = run_length(state.indices, k, end)
        k += times
        if u == v:
            own = times
            continue
        home = state.part[u]
        leave += home != p and state.readers[u, p] == times
        for q in range(parts):
            change[q] += state.readers[u, q] == 0 and home != q
    stays_read = state.readers[v, p] > own
    for q in range(parts):
        change[q] += stays_read - leave
        change[q] -= state.readers[v, q] > 0
    change[p] = 0


@njit(nogil=True, cache=True)
def traffic_changes(state: VertexExchange, v: int, q: int, send: Array, recv: Array) -> None:
    """How each part's send and receive would change if v moved to q."""
    p, end = state.part[v], state.indptr[v + 1]
    send[:] = 0
    recv[:] = 0
    own, k = 0, state.indptr[v]
    while k < end:
        u = state.indices[k]
        times = run_length(state.indices, k, end)
        k += times
        if u == v:
            own = times
            continue
        home = state.part[u]
        if home != p and state.readers[u, p] == times:
            recv[p] -= 1
            send[home] -= 1
        if home != q and state.readers[u, q] == 0:
            recv[q] += 1
            send[home] += 1
    for r in range(send.shape[0]):
        count = state.readers[v, r] - (own if r == p else 0)
        if count > 0:
            if r != p:
                send[p] -= 1
            if r != q:
                send[q] += 1
    recv[p] += state.readers[v, p] > own
    recv[q] -= state.readers[v, q] > 0


@njit(nogil=True, cache=True)
def move(state: VertexExchange, v: int, q: int, send: Array, recv: Array) -> None:
    """Carry out a move; `send` and `recv` are scratch of one entry per part."""
    p = state.part[v]
    traffic_changes(state, v, q, send, recv)
    for r in range(send.shape[0]):
        state.send[r] += send[r]
        state.recv[r] += recv[r]
    for k in range(state.indptr[v], state.indptr[v + 1]):
        u = state.indices[k]
        state.readers[u, p] -= 1
        state.readers[u, q] += 1
    for c in range(state.loads.shape[0]):
        state.loads[c, p] -= state.weights[c, v]
        state.loads[c, q] += state.weights[c, v]
    state.part[v] = q
