"""Clusters of close vertices, found by label propagation in passes over mapped lists, and the graph of clusters.

Both read lists in order and hold 8 bytes for each vertex. Threads work on blocks of a wave of vertices, from labels
that are frozen when the wave begins; then one thread carries out in the order of vertices what still fits. Answers
therefore do not depend on threads.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array, ArrayWriter, index_dtype, open_array, write_array
from penstock.graph.hashing import draw, key_of
from penstock.kernels import njit
from penstock.partition.directions import BothDirections, read_only_lists
from penstock.partition.problem import Weights, add_up
from penstock.processes import map_blocks, ranges
from penstock.progress import Progress

_LEAST_WAVE, _MOST_WAVE, _WAVES = 1 << 9, 1 << 20, 64
_PASSES = 5
_SETTLED = 0.02
"""Stop when a pass moves less than this share of the vertices."""
_LARGEST_SHARE = 1 << 30


@dataclass(frozen=True)
class ClusteredGraph:
    """A graph to cluster or to divide: its lists, and the weights of its vertices."""

    lists: BothDirections
    weights: Weights
    """int64 [constraints, vertices]"""
    totals: Array

    @property
    def entries(self) -> int:
        """The number of list entries, of both directions."""
        return len(self.lists.indices) + len(self.lists.back_indices)


def waves(count: int) -> list[tuple[int, int]]:
    """The ranges of vertices between two of which labels change; they depend on nothing but the number of vertices."""
    return list(ranges(count, min(max(count // _WAVES, _LEAST_WAVE), _MOST_WAVE)))


def over_blocks(
    pool: ThreadPoolExecutor, threads: int, start: int, stop: int, work: Callable[[int, int], None]
) -> None:
    """Call `work` on blocks of a wave, in parallel."""
    size = max(_LEAST_WAVE, -(-(stop - start) // (4 * threads)))
    for _ in pool.map(lambda block: work(start + block[0], start + block[1]), ranges(stop - start, size)):
        pass


# How often labels occur among a vertex's neighbours: an open-addressing table for each thread. A vertex takes as much
# of it as its degree needs, and a hub with more labels than fit counts those that it met first.

_SLOTS = 1 << 16
Number = int | np.int64
"""A label or a part: those of arrays of any width are made 64 bits wide, as kernels would else mix signs."""


class LabelCounts(NamedTuple):
    """Labels, or -1, and the weight of each; `used` lists the slots that are taken."""

    slots: Array
    counts: Array
    used: Array


@njit(nogil=True, cache=True)
def new_table() -> LabelCounts:
    """A table of `_SLOTS` slots that counts no label yet."""
    return LabelCounts(np.full(_SLOTS, -1, np.int64), np.zeros(_SLOTS, np.int64), np.empty(_SLOTS, np.int64))


@njit(nogil=True, cache=True, writes=("slots", "counts", "used"))
def _add(
    indices: Array,
    weights: Array,
    first: Number,
    last: Number,
    v: int,
    labels: Array,
    mask: int,
    slots: Array,
    counts: Array,
    used: Array,
    found: int,
) -> int:
    """Add the weights of v's neighbours between two entries of the lists; returns how many labels there are now."""
    weighted = weights.shape[0] > 0
    for k in range(first, last):
        u = indices[k]
        if u == v:
            continue
        label, weight = np.int64(labels[u]), weights[k] if weighted else 1
        place = (label * 0x9E3779B1 >> 12) & mask
        while slots[place] != -1 and slots[place] != label:
            place = (place + 1) & mask
        if slots[place] == label:
            counts[place] += weight
        elif found <= mask >> 1:
            slots[place], counts[place], used[found] = label, weight, place
            found += 1
    return found


@njit(nogil=True, cache=True, writes=("table",))
def tally(lists: BothDirections, v: int, labels: Array, table: LabelCounts) -> int:
    """Sum the weights of v's neighbours by label; returns how many labels there are."""
    first, last = lists.indptr[v], lists.indptr[v + 1]
    back, back_end = np.int64(0), np.int64(0)
    if lists.back_indptr.shape[0] > 0:
        back, back_end = lists.back_indptr[v], lists.back_indptr[v + 1]
    mask = 15
    while mask < 2 * (last - first + back_end - back) and mask < _SLOTS - 1:
        mask = 2 * mask + 1
    # Plain arrays: Numba counts references of tuple members that are read in a loop.
    slots, counts, used = table.slots, table.counts, table.used
    found = _add(lists.indices, lists.weights, first, last, v, labels, mask, slots, counts, used, 0)
    if back_end > back:
        none = lists.weights[:0]
        found = _add(lists.back_indices, none, back, back_end, v, labels, mask, slots, counts, used, found)
    return found


@njit(nogil=True, cache=True, inline="always")
def clear(table: LabelCounts, found: int) -> None:
    """Empty the table again, by the `found` slots that are used."""
    slots, used = table.slots, table.used
    for i in range(found):
        slots[used[i]] = -1


# Label propagation: a vertex joins the cluster that most of its edges lead to, if that has room.


def cluster(
    level: ClusteredGraph, room: float, parts: int, seed: int, threads: int, progress: Progress
) -> tuple[Array, int]:
    """The cluster of every vertex, numbered by first appearance, and how many there are. No cluster of several
    vertices has more than `room` of a part's share of any constraint.
    """
    count = level.lists.rows
    # Sizes are whole numbers, of which a part has 2^24: a vertex counts by its largest share of any constraint.
    scale = np.where(level.totals > 0, (1 << 24) * parts / np.maximum(level.totals, 1), 0.0)[:, None]

    def sizes_of(start: int, stop: int) -> Array:
        shares: Array = np.ceil(level.weights(start, stop) * scale).max(0)
        return np.clip(shares, 1, _LARGEST_SHARE).astype(np.int32)

    most = min(int(room * (1 << 24)), _LARGEST_SHARE)
    label, size = np.arange(count, dtype=index_dtype(count)), np.empty(count, np.int32)
    for start, stop in waves(count):
        size[start:stop] = sizes_of(start, stop)
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(_PASSES):
            key, moved = key_of(seed, "clusters {}", turn), 0
            open_cluster: Number = -1
            with progress.step(f"finding clusters, pass {turn + 1}", count, "vertices"):
                for start, stop in waves(count):
                    own, proposed = sizes_of(start, stop), np.empty(stop - start, label.dtype)
                    over_blocks(
                        pool,
                        threads,
                        start,
                        stop,
                        lambda a, b, s=start, w=own, p=proposed, k=key: _propose(  # type: ignore[misc]
                            level.lists, a, b, label, size, w[a - s : b - s], most, k, p[a - s : b - s]
                        ),
                    )
                    changed, open_cluster = _join(start, proposed, own, most, open_cluster, label, size)
                    moved += changed
                    progress.advance(stop - start)
            if moved < _SETTLED * count:
                break
    return label, _number_clusters(label, size.view(np.int32))


@njit(nogil=True, cache=True, writes=("proposed",))
def _propose(
    lists: BothDirections,
    start: int,
    stop: int,
    label: Array,
    size: Array,
    own: Array,
    most: int,
    key: np.uint64,
    proposed: Array,
) -> None:
    """The cluster that each vertex would join: most edges, then a draw; -1 for a vertex without neighbours."""
    table = new_table()
    slots, counts, used = table.slots, table.counts, table.used
    for v in range(start, stop):
        found = tally(lists, v, label, table)
        mine = np.int64(label[v])
        best, most_edges, best_draw = mine, 0, np.uint64(0)
        for i in range(found):
            if slots[used[i]] == mine:
                most_edges, best_draw = counts[used[i]], np.uint64(0xFFFFFFFFFFFFFFFF)
        for i in range(found):
            other, edges = slots[used[i]], counts[used[i]]
            if edges >= most_edges and other != mine and size[other] + own[v - start] <= most:
                lot = draw(key, np.uint64(other))
                if edges > most_edges or lot > best_draw:
                    best, most_edges, best_draw = other, edges, lot
        proposed[v - start] = best if found > 0 else -1
        clear(table, found)


@njit(nogil=True, cache=True)
def _join(
    first: int, proposed: Array, own: Array, most: int, open_cluster: Number, label: Array, size: Array
) -> tuple[int, Number]:
    """Carry out in order what fits; returns how many moved, and the cluster that vertices without neighbours fill.

    A cluster that everyone has left is not joined: two neighbours that chose each other would merely trade places.
    """
    moved = 0
    for i in range(proposed.shape[0]):
        v, old = first + i, np.int64(label[first + i])
        wanted: Number = np.int64(proposed[i])
        if wanted < 0:
            if size[old] > own[i]:
                continue
            if open_cluster < 0 or size[open_cluster] + own[i] > most:
                open_cluster = old
            wanted = open_cluster
        if wanted != old and 0 < size[wanted] <= most - own[i]:
            size[old] -= own[i]
            size[wanted] += own[i]
            label[v] = wanted
            moved += 1
    return moved, open_cluster


@njit(nogil=True, cache=True)
def _number_clusters(label: Array, scratch: Array) -> int:
    scratch[:] = -1
    clusters = 0
    for v in range(label.shape[0]):
        if scratch[label[v]] < 0:
            scratch[label[v]] = clusters
            clusters += 1
        label[v] = scratch[label[v]]
    return clusters


# The graph of clusters: pairs of labels are counted block by block, and the sorted counts of blocks merged, on disk
# where they outgrow what may be held.

_BLOCK_ENTRIES = 1 << 20
_HELD_PAIRS, _HELD_SHARE = 4 << 20, 64
"""Pairs that are merged in memory, at some 50 bytes each: so many, or one for so many entries of the lists."""


def contract(
    level: ClusteredGraph, label: Array, clusters: int, folder: Path, threads: int, progress: Progress
) -> ClusteredGraph:
    """The graph of clusters, its edges weighted by how many join two clusters, written into `folder` and mapped."""
    lists = level.lists
    totals = np.zeros((len(level.totals), clusters), np.int64)
    for start, stop in waves(lists.rows):
        add_up(label[start:stop], level.weights(start, stop), totals)
    runs = _Runs(folder, max(_HELD_PAIRS, level.entries // _HELD_SHARE), threads)
    with progress.step(f"joining {clusters:,} clusters", level.entries, "entries"):
        directions = [(lists.indptr, lists.indices, lists.weights)]
        if len(lists.back_indptr):
            directions.append((lists.back_indptr, lists.back_indices, lists.weights))
        for indptr, indices, weights in directions:

            def count(a: int, b: int, one: tuple[Array, Array, Array] = (indptr, indices, weights)) -> Run:
                return _counted_pairs(*one, a, b, label, clusters)

            for run in map_blocks(count, len(indices), _BLOCK_ENTRIES, threads):
                runs.add(run)
                progress.advance(_BLOCK_ENTRIES)
    return ClusteredGraph(
        _lists_on_disk(runs, clusters, folder), lambda start, stop: totals[:, start:stop], level.totals
    )


Run = tuple[Array, Array]
"""Pairs of clusters as ascending numbers, first cluster * clusters + second, and their weights."""


def _counted_pairs(
    indptr: Array, indices: Array, weights: Array, first: int, last: int, label: Array, clusters: int
) -> Run:
    row = int(np.searchsorted(indptr, first, "right")) - 1
    pairs = np.empty(last - first, np.int64)
    kept = np.empty(last - first if len(weights) else 0, np.int64)
    used = _pairs_of(indptr, indices, weights, row, first, last, label, clusters, pairs, kept)
    if not len(weights):
        pairs = np.sort(pairs[:used])
        starts = np.flatnonzero(np.diff(pairs, prepend=-1))
        return pairs[starts], np.diff(starts, append=used)
    return _merged([(pairs[:used], kept[:used])])


@njit(nogil=True, cache=True, writes=("pairs", "kept"))
def _pairs_of(
    indptr: Array,
    indices: Array,
    weights: Array,
    row: int,
    first: int,
    last: int,
    label: Array,
    clusters: int,
    pairs: Array,
    kept: Array,
) -> int:
    """Write the pair, and if there are any the weight, of each entry that joins two clusters; returns how many do."""
    used, weighted = 0, weights.shape[0] > 0
    for k in range(first, last):
        while k >= indptr[row + 1]:
            row += 1
        one, other = np.int64(label[row]), np.int64(label[indices[k]])
        if one == other:
            continue
        pairs[used] = one * clusters + other
        if weighted:
            kept[used] = weights[k]
        used += 1
    return used


class _Runs:
    """Sorted runs of pairs; what outgrows memory lies in files of `folder`."""

    def __init__(self, folder: Path, most: int, threads: int) -> None:
        """`most`: how many pairs are held."""
        self._folder, self._most, self._threads, self._size = folder, most, threads, 0
        self._held: list[Run] = []
        self._stored: list[Run] = []

    def add(self, run: Run) -> None:
        """Take a run, and merge those that are held when they become too many."""
        self._held.append(run)
        self._size += len(run[0])
        if self._size > self._most:
            merged = _merged_by_threads(self._held, self._threads)
            self._held, self._size = [merged], len(merged[0])
            if self._size > self._most // 2:
                self._store()

    def _store(self) -> None:
        run = _merged_by_threads(self._held, self._threads)
        names = [self._folder / f"{what}-{len(self._stored)}.npy" for what in ("pairs", "counts")]
        for name, values in zip(names, run, strict=True):
            write_array(name, values)
        self._stored.append((open_array(names[0]), open_array(names[1])))
        self._held, self._size = [], 0

    def merged(self) -> Iterator[Run]:
        """All pairs in order, each once, in pieces that fit memory."""
        if not self._stored:
            yield _merged_by_threads(self._held, self._threads)
            return
        self._store()
        pieces = 1 + 2 * sum(len(pairs) for pairs, _ in self._stored) // self._most
        for runs in _in_ranges(self._stored, pieces):
            yield _merged_by_threads(runs, self._threads)


def _in_ranges(runs: list[Run], count: int) -> Iterator[list[Run]]:
    """Runs cut into ranges of pairs that follow each other, each the same range of all runs."""
    longest = max((pairs for pairs, _ in runs), key=len)
    bounds = [longest[len(longest) * i // count] for i in range(1, count)] if len(longest) else []
    places = [[0, *np.searchsorted(pairs, bounds), len(pairs)] for pairs, _ in runs]
    for i in range(len(bounds) + 1):
        yield [
            (pairs[at[i] : at[i + 1]], counts[at[i] : at[i + 1]])
            for (pairs, counts), at in zip(runs, places, strict=True)
        ]


def _merged_by_threads(runs: list[Run], threads: int) -> Run:
    """One run of several, of which each thread merges a range."""
    if threads == 1 or len(runs) < 2:
        return _merged(runs)
    with ThreadPoolExecutor(threads) as pool:
        merged = list(pool.map(_merged, _in_ranges(runs, threads)))
    pairs, counts = (np.concatenate(each) for each in zip(*merged, strict=True))
    return pairs, counts


def _merged(runs: list[Run]) -> Run:
    """One run of several; equal pairs are added up."""
    pairs, counts = (np.concatenate(each) for each in zip(_NO_RUN, *runs, strict=True))
    order = np.argsort(pairs, kind="stable")
    pairs = pairs[order]
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    return pairs[starts], np.add.reduceat(counts[order], starts) if len(starts) else counts


_NO_RUN = np.empty(0, np.int64), np.empty(0, np.int64)


def _lists_on_disk(runs: _Runs, clusters: int, folder: Path) -> BothDirections:
    """The neighbour lists of the clusters."""
    lengths = np.zeros(clusters + 1, np.int64)
    kind = index_dtype(clusters)
    with ArrayWriter(folder / "indices.npy", kind) as indices, ArrayWriter(folder / "weights.npy", np.int64) as weights:
        for pairs, counts in runs.merged():
            rows = pairs // clusters
            lengths[1:] += np.bincount(rows, minlength=clusters)
            indices.append(pairs - rows * clusters)
            weights.append(counts)
    return read_only_lists(np.cumsum(lengths), open_array(folder / "indices.npy"), open_array(folder / "weights.npy"))
