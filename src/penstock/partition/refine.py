"""Local search on a finished assignment: restores balance, reduces the volume in total, or that of the busiest part."""

from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.kernels import njit
from penstock.partition.problem import Problem

# The state of local search: which parts read a vertex, and what a move would change. O(degree) per move. `readers[u,
# p]` counts the edges from u into part p. Part p receives u when that count is positive and u lives elsewhere, so only
# a count that reaches or leaves 0 changes anything.

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
    indptr, indices = whole.indptr.view(), whole.indices.view()
    # Kernels are compiled once for lists in memory and for those of mapped files.
    indptr.flags.writeable = indices.flags.writeable = False
    return VertexExchange(indptr, indices, part, readers, send, recv, weights, loads, capacities)


def check_table(problem: Problem) -> None:
    """Refuse a problem whose table of readers would be absurdly large."""
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


@njit(nogil=True, cache=True, writes=("readers",))
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
    """The number of equal neighbours from position k on."""
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


# Less communication in total: greedy moves that lower the volume and keep every constraint.

_VOLUME_ROUNDS = 12
_WORTHWHILE = 0.001


def less_volume(problem: Problem, assignment: Array) -> Array:
    """Rounds over the boundary in a random order until one gains less than a thousandth."""
    if not table_fits(problem):
        return assignment
    state = exchange_of(problem, assignment)
    volume = int(state.recv.sum())
    for turn in range(_VOLUME_ROUNDS):
        saved = _improve(state, drawn_order(problem, turn))
        if saved < _WORTHWHILE * volume:
            break
        volume -= saved
    return state.part


def drawn_order(problem: Problem, turn: int) -> Array:
    """A different order of the vertices for every round, from the seed."""
    return np.argsort(unit_draws(key_of(problem.seed, "order {}", turn), problem.whole.count), kind="stable")


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


# `refine=balanced`: lower what the busiest part sends or receives (G3's second stage, in a form that never ends worse).
# Every step lowers Σ send^8 + recv^8 over parts, a smooth approximation of the largest of them. The largest itself may
# rise for a few moves, so moves are logged and undone back to the best state seen, which is at least as good as the
# first.

_BALANCE_ROUNDS = 10
_SETTLED = 0.005
"""Stop when a round lowers the largest by less than this share (G3's threshold)."""
_TARGETS = 3


def balanced(problem: Problem, assignment: Array) -> Array:
    """An assignment whose largest send and largest receive are both no larger than before, and whose constraints hold
    as well as before.
    """
    parts = problem.parts
    loads = problem.constraints.loads(assignment, parts)
    state = exchange_of(problem, assignment, np.maximum(problem.capacities(), loads.max(1)))
    bounds = (int(state.send.max()), int(state.recv.max()))
    best = max(bounds)
    for turn in range(_BALANCE_ROUNDS):
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


# Into the tolerance: move as few and as cheap vertices as needed out of overloaded parts. Every move lowers the summed
# relative overload. It may overload another constraint a little (a train vertex also needs room among the vertices);
# that is corrected in its turn, and since the sum only falls, the moves end.

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
        # The search aims inside the tolerance, so that it is within it even if it gets stuck.
        aim = np.maximum(means + _AIM * (problem.capacities() - means), np.ceil(means))
        state = exchange_of(problem, assignment, aim)
        for _ in range(_ROUNDS_EACH * state.loads.size):
            if (state.loads <= problem.capacities()[:, None]).all():
                break
            if not any(_relieve(state, means, constraint, part) for constraint, part in _overloads(state)):
                break
    return state.part


def filled(problem: Problem, assignment: Array) -> Array:
    """Give every empty part a vertex: partitioners may leave some empty when parts are small."""
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
    """The part that lowers the overload at the least volume per unit, and that cost; (-1, inf) if none does."""
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
