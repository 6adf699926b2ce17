"""Bins of vertices for training on the whole graph: their order, and the rows and edges of each, counted."""

from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit

# The fewest rows that carry all edges from one worker to another where the reader sums its neighbours' rows. An edge
# from u to v can be sent in two ways: as the row of u, which serves all readers of u, or inside the sum of all such
# rows that v reads, which the sender computes. Rows and sums are the two sides of a bipartite graph with the edges
# between them, and what is sent must cover every edge. The smallest vertex cover is as large as a largest matching
# (König).

_WORTH = 0.9
"""Two workers exchange sums if at most this share of the rows remains: a sum is sent later than its first row."""


def edges_to_sum(rows: Array, sums: Array, pairs: Array) -> Array:
    """Which edges are sent inside sums. Edge i is carried by the row `rows[i]` or by the sum `sums[i]`.

    Both are arbitrary identifiers; no row or sum belongs to two of the pairs of workers, `pairs[i]` from 0 on. All
    edges of one row are sent in the same way.
    """
    if not len(rows):
        return np.zeros(0, np.bool_)
    row_keys, first, row = np.unique(rows, return_index=True, return_inverse=True)
    sum_keys, first_of_sum, total = np.unique(sums, return_index=True, return_inverse=True)
    summed, sent = np.zeros(len(row_keys), np.bool_), np.zeros(len(sum_keys), np.bool_)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row))])
    _leave_out_rows(indptr, total[np.argsort(row, kind="stable")], summed, sent)
    of_row, of_sum = pairs[first], pairs[first_of_sum]
    count = int(of_row.max()) + 1
    before = np.bincount(of_row, minlength=count)
    after = np.bincount(of_row[~summed], minlength=count) + np.bincount(of_sum[sent], minlength=count)
    summed &= (after <= _WORTH * before)[of_row]
    found: Array = summed[row]
    return found


@njit(nogil=True, cache=True)
def _leave_out_rows(indptr: Array, indices: Array, summed: Array, sent: Array) -> None:
    """Mark the rows that are not sent, and the sums that are: those that alternating paths reach from a free row."""
    row_of = np.full(sent.shape[0], -1, np.int64)
    is_free = np.ones(summed.shape[0], np.bool_)
    for row in range(summed.shape[0]):
        for k in range(indptr[row], indptr[row + 1]):
            if row_of[indices[k]] < 0:
                row_of[indices[k]] = row
                is_free[row] = False
                break
    depth = np.empty(summed.shape[0], np.int64)
    queue = np.empty(summed.shape[0], np.int64)
    while _measure_paths(indptr, indices, row_of, is_free, depth, queue):
        _lengthen_matching(indptr, indices, row_of, is_free, depth, queue)
    for row in range(summed.shape[0]):
        if depth[row] >= 0:
            summed[row] = True
            for k in range(indptr[row], indptr[row + 1]):
                sent[indices[k]] = True


@njit(nogil=True, cache=True)
def _measure_paths(indptr: Array, indices: Array, row_of: Array, is_free: Array, depth: Array, queue: Array) -> bool:
    """Rows' distances along alternating paths from free rows (-1: unreachable); returns whether one
    ends in a free sum.
    """
    found, head, tail = False, 0, 0
    for row in range(depth.shape[0]):
        depth[row] = 0 if is_free[row] else -1
        if is_free[row]:
            queue[tail] = row
            tail += 1
    while head < tail:
        row = queue[head]
        head += 1
        for k in range(indptr[row], indptr[row + 1]):
            other = row_of[indices[k]]
            if other < 0:
                found = True
            elif depth[other] < 0:
                depth[other] = depth[row] + 1
                queue[tail] = other
                tail += 1
    return found


@njit(nogil=True, cache=True)
def _lengthen_matching(
    indptr: Array, indices: Array, row_of: Array, is_free: Array, depth: Array, stack: Array
) -> None:
    """One phase of Hopcroft and Karp: augment along vertex-disjoint paths from free rows to free sums."""
    at = indptr[:-1].copy()
    for start in range(depth.shape[0]):
        if not is_free[start]:
            continue
        top = 0
        stack[0] = start
        while top >= 0:
            row = stack[top]
            if at[row] == indptr[row + 1]:
                top -= 1
                continue
            other = row_of[indices[at[row]]]
            at[row] += 1
            if other < 0:
                for place in range(top + 1):
                    row_of[indices[at[stack[place]] - 1]] = stack[place]
                is_free[start] = False
                break
            if depth[other] == depth[row] + 1 and at[other] < indptr[other + 1]:
                top += 1
                stack[top] = other


# Breadth-first order, in which vertices that read the same neighbours are close to each other.


@njit(nogil=True, cache=True)
def breadth_first(indptr: Array, indices: Array, owner: Array) -> Array:
    """Every vertex's position in a breadth-first search along the lists within its worker's vertices."""
    count = owner.shape[0]
    place = np.full(count, -1, np.int64)
    queue = np.empty(count, np.int64)
    head, tail = 0, 0
    for root in range(count):
        if place[root] >= 0:
            continue
        place[root] = tail
        queue[tail] = root
        tail += 1
        while head < tail:
            v = queue[head]
            head += 1
            for k in range(indptr[v], indptr[v + 1]):
                u = indices[k]
                if place[u] < 0 and owner[u] == owner[v]:
                    place[u] = tail
                    queue[tail] = u
                    tail += 1
    return place


# Training on the whole graph, counted: rows and edges of every bin, and the rows that workers send each other. Level 0
# are the inputs and level n + 1 the outputs of layer n. Every worker owns some vertices, computes their rows layer by
# layer, and divides each layer into bins of about the same load. Vertices that other workers read come first, and of
# these the ones that are read by vertices with few remote inputs: such a vertex is ready after few bins. Vertices of
# the next layer are in the order in which their last input arrives. Where a layer sums its neighbours, a worker may
# send sums of rows instead of rows, each for one vertex and one relation; a sum is counted as one row, with the last of
# its rows. All lists are read a few times for each layer.

_RANKS = 256
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class LayerBins:
    """One layer of W workers with B bins each. A worker's bins are numbered in the order in which they are computed."""

    rows: Array  # int64 [W, B]: rows that a bin computes
    edges: Array  # int64 [W, B]: entries of their lists
    inputs: Array  # int64 [W, B]: different rows and sums of the level below that a bin reads
    remote_edges: Array  # int64 [W, B]: of these, entries that name vertices of other workers
    halo: Array  # int64 [W]: rows of other workers that a worker reads in this layer
    again: Array  # int64 [W, 2]: rows, and their edges, of other workers that a worker computes itself in this layer
    sent: Array  # int64 [W, B, W]: rows of a bin that another worker's next layer reads
    needed: Array  # int32 [W, B, W]: the last bin of another worker's layer below that a bin reads; -1: none
    onward: Array  # bool [W]: whether the backward pass has a worker's bins in the same order, and not in reverse
    returned: Array  # int64 [W, B, W]: rows of another worker whose gradients are complete after a bin of the backward
    # pass: those that no bin reads after it
    awaited: Array  # int32 [W, B, W]: the bin of another worker's next layer after which gradients of a bin's rows are
    # complete; none: B, or -1 where that worker's bins are in the same order backward


@dataclass(frozen=True, eq=False)
class BinCounts:
    """All layers of a step."""

    layers: list[LayerBins]
    inputs: Array  # int64 [W, W]: inputs of a worker (row) that another one (column) reads in the first layer


def levels_reached(indptr: Array, indices: Array, wanted: Array, layers: int) -> Array:
    """int8: for each vertex the last level that has it, from the wanted vertices (numbers) down;
    -1: no level has it.
    """
    last = np.full(len(indptr) - 1, -1, np.int8)
    last[wanted] = layers
    for level in range(layers, 0, -1):
        _reach(indptr, indices, last, level)
    return last


def share_parts(part_of: Array, workers: Array, loads: Array) -> Array:
    """int32: the worker of every vertex, where the workers of a part (`workers[part]` of them) share it by loads.

    A part's vertices are shared in the order of their numbers.
    """
    first = np.concatenate([[0], np.cumsum(workers)])
    owner = np.zeros(len(part_of), np.int32)
    for part, count in enumerate(workers.tolist()):
        mine = np.flatnonzero(part_of == part)
        owner[mine] = first[part] + _evenly(loads[mine], count)
    return owner


def count_bins(
    indptr: Array,
    indices: Array,
    owner: Array,
    workers: int,
    last_level: Array,
    bins: int,
    eager: bool = True,
    again_degree: int = -1,
    sums: bool = False,
    by_bin: bool = True,
    relations: Array | None = None,
) -> BinCounts:
    """The bins of all layers. `owner` is every vertex's worker and `last_level` the last level that has it.

    With `by_bin` gradients return after each bin; a worker's backward pass then begins with its first bin instead of
    its last if gradients of other workers' rows are complete after fewer bins that way.

    With `eager`, bins of later layers are ordered by when their inputs arrive. Rows of the first layer with at most
    `again_degree` neighbours are computed by their readers, and not sent. With `sums`, workers send sums of rows where
    that is less; `relations` then numbers the relation of every entry of the lists, where there are several.
    """
    kinds = np.zeros(0, np.int16) if relations is None else relations
    layers = int(last_level.max(initial=0))
    position = breadth_first(indptr, indices, owner)
    degrees = np.diff(indptr)
    below = np.zeros(len(owner), np.int32)
    local = degrees <= again_degree
    made: list[LayerBins] = []
    inputs = np.zeros((workers, workers), np.int64)
    for number in range(layers):
        wished = np.full(len(owner), _NEVER, np.int64)
        if number + 1 < layers:
            _mark_wishes(indptr, indices, owner, last_level > number + 1, workers, wished)
        arrival = np.full(len(owner), -1, np.int32)
        if number and eager:
            _mark_arrival(indptr, indices, owner, last_level > number, below, arrival)
        members = np.flatnonzero(last_level > number)
        kept_here = wished[members] == _NEVER
        order = members[np.lexsort((position[members], wished[members], arrival[members], kept_here, owner[members]))]
        bin_of = _divide(order, owner, degrees, workers, bins)
        computed = local if number == 1 else np.zeros(0, np.bool_)
        summed = np.zeros(0, np.bool_)
        if sums and number:
            summed = _summed(indptr, indices, kinds, owner, workers, order, computed)
        read = _Read(workers, bins, computed, summed, kinds)
        if number and eager:
            read.count(indptr, indices, owner, order, bin_of, below)
            bin_of, order = _by_arrival(read.needed, bin_of, order, owner)
            read = _Read(workers, bins, computed, summed, kinds)
        read.count(indptr, indices, owner, order, bin_of, below)
        if by_bin and number:
            read.turn()
        if number:
            made[-1].sent[:], made[-1].awaited[:], made[-1].again[:] = read.sent, read.awaited, read.again
        else:
            inputs = read.sent.sum(axis=1)
        made.append(
            LayerBins(
                rows=_sums(owner, bin_of, order, np.ones(len(owner), np.int64), workers, bins),
                edges=_sums(owner, bin_of, order, degrees, workers, bins),
                inputs=read.inputs,
                remote_edges=read.remote,
                halo=read.sent.sum(axis=(0, 1)) + read.again[:, 0],
                again=np.zeros((workers, 2), np.int64),
                sent=np.zeros((workers, bins, workers), np.int64),
                needed=read.needed,
                onward=read.onward,
                returned=read.returned,
                awaited=np.full((workers, bins, workers), bins, np.int32),
            )
        )
        below = bin_of
    return BinCounts(made, inputs)


class _Read:
    """What bins of one layer read from other workers.

    `computed` are vertices that a reader computes itself, `summed` edges that are sent inside sums; where there are
    none the arrays are empty. `kinds` are the edges' relations; empty: there is one.
    """

    def __init__(self, workers: int, bins: int, computed: Array, summed: Array, kinds: Array) -> None:
        shape = (workers, bins, workers)
        self._computed, self._summed, self._kinds = computed, summed, kinds
        self.sent, self.returned = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.needed, self.awaited = np.full(shape, -1, np.int32), np.full(shape, bins, np.int32)
        self.remote, self.again = np.zeros(shape[:2], np.int64), np.zeros((workers, 2), np.int64)
        self.inputs, self.onward = np.zeros(shape[:2], np.int64), np.zeros(workers, np.bool_)
        self._returned_last, self._awaited_last = np.zeros(shape, np.int64), np.full(shape, -1, np.int32)

    def count(self, indptr: Array, indices: Array, owner: Array, order: Array, bin_of: Array, below: Array) -> None:
        """Read the lists of a layer's vertices, which are in `order` by worker and bin."""
        _count_read(
            indptr, indices, owner, order, bin_of, below, self._computed, self._summed, self._kinds,
            self.sent, self.returned, self.needed, self.awaited, self.remote, self.again, self.inputs,
            self._returned_last, self._awaited_last,
        )  # fmt: skip

    def turn(self) -> None:
        """Use the forward order of workers' bins in the backward pass if gradients are complete after fewer bins that
        way.
        """
        turns = np.arange(self.returned.shape[1])
        in_reverse = (self.returned.sum(axis=2) * turns[::-1]).sum(axis=1)
        self.onward = (self._returned_last.sum(axis=2) * turns).sum(axis=1) < in_reverse
        self.returned[self.onward] = self._returned_last[self.onward]
        self.awaited[:, :, self.onward] = self._awaited_last[:, :, self.onward]


def _summed(
    indptr: Array, indices: Array, kinds: Array, owner: Array, workers: int, order: Array, computed: Array
) -> Array:
    """Which edges are sent inside sums that their sender computes, each for one vertex and one relation."""
    edges, targets = _cut_edges(indptr, indices, owner, order, computed)
    sources = indices[edges].astype(np.int64)
    to, come = owner[targets].astype(np.int64), owner[sources].astype(np.int64)
    sums = targets * (int(kinds.max(initial=0)) + 1) + (kinds[edges] if len(kinds) else 0)
    found = np.zeros(len(indices), np.bool_)
    found[edges] = edges_to_sum(sources * workers + to, sums * workers + come, come * workers + to)
    return found


def _divide(order: Array, owner: Array, degrees: Array, workers: int, bins: int) -> Array:
    """The bin of every vertex of a layer, whose vertices stand in `order` worker after worker; -1 elsewhere."""
    bin_of = np.full(len(owner), -1, np.int32)
    ends = np.searchsorted(owner[order], np.arange(workers + 1))
    for worker in range(workers):
        mine = order[ends[worker] : ends[worker + 1]]
        bin_of[mine] = _evenly(degrees[mine] + 1, bins)
    return bin_of


def _evenly(loads: Array, shares: int) -> Array:
    """The share of each of some consecutive items, such that all shares have about the same load."""
    ends = np.cumsum(loads)
    total = int(ends[-1]) if len(ends) else 0
    found: Array = np.minimum((ends - loads) * shares // max(total, 1), shares - 1)
    return found


def _by_arrival(needed: Array, bin_of: Array, order: Array, owner: Array) -> tuple[Array, Array]:
    """Bins renumbered by when their inputs arrive; and the order of vertices by them."""
    ready = needed.max(axis=2)
    place = np.argsort(np.argsort(ready, axis=1, kind="stable"), axis=1).astype(np.int32)
    moved = np.full_like(bin_of, -1)
    moved[order] = place[owner[order], bin_of[order]]
    return moved, order[np.lexsort((moved[order], owner[order]))]


def _sums(owner: Array, bin_of: Array, order: Array, amounts: Array, workers: int, bins: int) -> Array:
    """Amounts of vertices added up by worker and bin."""
    place = owner[order].astype(np.int64) * bins + bin_of[order]
    return np.bincount(place, weights=amounts[order], minlength=workers * bins).astype(np.int64).reshape(workers, bins)


@njit(nogil=True, cache=True, writes=("last",))
def _reach(indptr: Array, indices: Array, last: Array, level: int) -> None:
    for v in range(last.shape[0]):
        if last[v] >= level:
            for k in range(indptr[v], indptr[v + 1]):
                u = indices[k]
                if last[u] < level - 1:
                    last[u] = level - 1


def _mark_wishes(indptr: Array, indices: Array, owner: Array, readers: Array, workers: int, wished: Array) -> None:
    """For every vertex that readers of other workers read, its priority: the least of their ranks.

    A reader's rank is its position among its worker's readers by the number of remote inputs, out of `_RANKS`.
    """
    remote = np.zeros(len(owner), np.int64)
    _count_remote(indptr, indices, owner, readers, remote)
    rank = np.zeros(len(owner), np.int64)
    for worker in range(workers):
        mine = np.flatnonzero((remote > 0) & (owner == worker))
        rank[mine[np.argsort(remote[mine], kind="stable")]] = np.arange(len(mine)) * _RANKS // max(len(mine), 1)
    _take_least(indptr, indices, owner, readers, rank, wished)


@njit(nogil=True, cache=True, writes=("remote",))
def _count_remote(indptr: Array, indices: Array, owner: Array, readers: Array, remote: Array) -> None:
    for v in range(owner.shape[0]):
        if readers[v]:
            for k in range(indptr[v], indptr[v + 1]):
                remote[v] += owner[indices[k]] != owner[v]


@njit(nogil=True, cache=True, writes=("wished",))
def _take_least(indptr: Array, indices: Array, owner: Array, readers: Array, rank: Array, wished: Array) -> None:
    for v in range(owner.shape[0]):
        if readers[v]:
            for k in range(indptr[v], indptr[v + 1]):
                u = indices[k]
                if owner[u] != owner[v]:
                    wished[u] = min(wished[u], rank[v])


@njit(nogil=True, cache=True, writes=("arrival",))
def _mark_arrival(indptr: Array, indices: Array, owner: Array, readers: Array, below: Array, arrival: Array) -> None:
    """For every reader the last bin of another worker's layer below that it reads."""
    for v in range(owner.shape[0]):
        if readers[v]:
            for k in range(indptr[v], indptr[v + 1]):
                u = indices[k]
                if owner[u] != owner[v]:
                    arrival[v] = max(arrival[v], below[u])


@njit(
    nogil=True,
    cache=True,
    writes=("sent", "returned", "needed", "awaited", "remote", "again", "inputs", "returned_last", "awaited_last"),
)
def _count_read(
    indptr: Array,
    indices: Array,
    owner: Array,
    order: Array,
    bin_of: Array,
    below: Array,
    computed: Array,
    summed: Array,
    kinds: Array,
    sent: Array,
    returned: Array,
    needed: Array,
    awaited: Array,
    remote: Array,
    again: Array,
    inputs: Array,
    returned_last: Array,
    awaited_last: Array,
) -> None:
    # Readers are ordered by worker and bin, so a row's first reader in a worker is in the first bin.
    reader = np.full(owner.shape[0], -1, np.int32)
    gathered = np.full(owner.shape[0], -1, np.int64)
    newest = np.zeros(owner.shape[0], np.int32)
    # By sender and relation, the last bin of a sum's rows; `begun` marks which sums a reader has.
    several = np.int64(kinds.max()) + 1 if kinds.shape[0] else 1
    last = np.full(sent.shape[0] * several, -1, np.int32)
    begun = np.empty(last.shape[0], np.int64)
    for v in order:
        amount = 0
        worker, own = owner[v], bin_of[v]
        place = np.int64(worker) * sent.shape[1] + own
        inputs[worker, own] += gathered[v] != place
        gathered[v] = place
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            sender = owner[u]
            in_sum = summed.shape[0] and summed[k]
            if not in_sum:
                inputs[worker, own] += gathered[u] != place
                gathered[u] = place
            if sender == worker:
                continue
            remote[worker, own] += 1
            is_new = reader[u] != worker
            reader[u] = worker
            if computed.shape[0] and computed[u]:
                if is_new:
                    again[worker, 0] += 1
                    again[worker, 1] += indptr[u + 1] - indptr[u]
                continue
            needed[worker, own, sender] = max(needed[worker, own, sender], below[u])
            if in_sum:
                each = sender * several + (kinds[k] if kinds.shape[0] else 0)
                if last[each] < 0:
                    begun[amount] = each
                    amount += 1
                last[each] = max(last[each], below[u])
            elif is_new:
                sent[sender, below[u], worker] += 1
                returned[worker, own, sender] += 1
                returned_last[worker, own, sender] += 1
            else:
                returned_last[worker, newest[u], sender] -= 1
                returned_last[worker, own, sender] += 1
            newest[u] = own
            if in_sum or is_new:
                awaited[sender, below[u], worker] = min(awaited[sender, below[u], worker], own)
            awaited_last[sender, below[u], worker] = max(awaited_last[sender, below[u], worker], own)
        for each in begun[:amount]:
            sender = each // several
            sent[sender, last[each], worker] += 1
            returned[worker, own, sender] += 1
            returned_last[worker, own, sender] += 1
            inputs[worker, own] += 1
            last[each] = -1


@njit(nogil=True, cache=True, writes=())
def _cut_edges(indptr: Array, indices: Array, owner: Array, order: Array, computed: Array) -> tuple[Array, Array]:
    """The edges from other workers that some vertices read, by position in `indices`, and their readers."""
    count = 0
    for v in order:
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if owner[u] != owner[v] and not (computed.shape[0] and computed[u]):
                count += 1
    edges, targets = np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for v in order:
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if owner[u] != owner[v] and not (computed.shape[0] and computed[u]):
                edges[count] = k
                targets[count] = v
                count += 1
    return edges, targets
