"""Neighbours in both directions for methods that stream a graph: the mapped lists, and their transpose on disk."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array, ArrayWriter, index_dtype, open_array
from penstock.graph.hashing import mix
from penstock.kernels import njit
from penstock.partition.problem import Adjacency, WholeAdjacency, fill_union, union_lengths
from penstock.processes import map_blocks, ranges
from penstock.progress import Progress

_ROWS = 1 << 16
_HELD_BYTES = 256 << 20
"""The part of the transpose that is made at a time."""
_MOST_READINGS, _MOST_FILES = 4, 64
"""How often all lists are read at most; where that is too few, the most files that their entries are sorted into."""
_SORTED = 4 << 20
"""Entries that are sorted at a time."""


class BothDirections(NamedTuple):
    """Neighbour lists as kernels read them: what a vertex reads, and where edges are directed, also who reads it."""

    indptr: Array
    indices: Array
    weights: Array
    """A weight for each entry; empty where all are 1."""
    back_indptr: Array
    """Offsets of the opposite direction; empty where the lists hold both directions."""
    back_indices: Array

    @property
    def rows(self) -> int:
        """The number of vertices, each of which has a list."""
        return len(self.indptr) - 1


def lists_of(whole: WholeAdjacency, folder: Path, threads: int, progress: Progress) -> BothDirections:
    """Both directions of a graph's edges. Where the lists are not symmetric, the transpose is written into `folder`
    and mapped, so that it takes no memory.
    """
    lists = read_only_lists(whole.indptr, whole.indices)
    with progress.step("comparing directions"):
        symmetric = is_symmetric(lists.indptr, lists.indices, threads)
    if symmetric:
        return lists
    back = _transposed(lists.indptr, lists.indices, folder, progress)
    return read_only_lists(lists.indptr, lists.indices, None, back)


def read_only_lists(
    indptr: Array, indices: Array, weights: Array | None = None, back: tuple[Array, Array] | None = None
) -> BothDirections:
    """Lists for kernels, which are then compiled once for arrays in memory and for those of mapped files."""
    none = np.empty(0, np.int64)
    arrays = (indptr, indices, none if weights is None else weights, *(back or (none, np.empty(0, indices.dtype))))
    views = [array.view() for array in arrays]
    for view in views:
        view.flags.writeable = False
    return BothDirections(*views)


def is_symmetric(indptr: Array, indices: Array, threads: int) -> bool:
    """Whether every edge has its reverse, as often: the sum of a hash of each edge's ends, negative for one direction,
    is zero. Edges that differ give zero with a probability of 2^-64.
    """
    sums = map_blocks(lambda a, b: int(_signed_sum(indptr, indices, a, b)), len(indptr) - 1, _ROWS, threads)
    return sum(sums) % (1 << 64) == 0


@njit(nogil=True, cache=True, writes=())
def _signed_sum(indptr: Array, indices: Array, start: int, stop: int) -> np.uint64:
    total = np.uint64(0)
    for v in range(start, stop):
        for k in range(indptr[v], indptr[v + 1]):
            u = np.int64(indices[k])
            if u < v:
                total += mix(mix(np.uint64(u) + np.uint64(1)) + np.uint64(v))
            elif u > v:
                total -= mix(mix(np.uint64(v) + np.uint64(1)) + np.uint64(u))
    return total


def _transposed(indptr: Array, indices: Array, folder: Path, progress: Progress) -> tuple[Array, Array]:
    """The transpose as mapped files, made range by range of its rows. Where there are a few ranges each reads all lists
    once, in order; where there are more, entries are sorted into files of some ranges before.
    """
    count = len(indptr) - 1
    lengths = np.zeros(count, np.int32)
    _count(indices, lengths)
    kind = index_dtype(count)
    most = _HELD_BYTES // kind.itemsize
    firsts = np.array([first for first, _, _ in _bounded_ranges(lengths, most)])
    ranges_a_file = 0 if len(firsts) <= _MOST_READINGS else -(-len(firsts) // _MOST_FILES)
    files = _sorted_entries(indptr, indices, firsts[::ranges_a_file], folder, progress) if ranges_a_file else []
    with (
        progress.step("turning lists round", len(indices), "entries"),
        ArrayWriter(folder / "back_indptr.npy", np.int64) as offsets,
        ArrayWriter(folder / "back.npy", kind) as back,
    ):
        offsets.append(np.zeros(1, np.int64))
        for number, (first, last, starts) in enumerate(_bounded_ranges(lengths, most)):
            found = np.empty(int(starts[-1]), kind)
            if files:
                file = files[number // ranges_a_file]
                _place_readers(open_array(file), first, last, starts[:-1].copy(), found)
                if number % ranges_a_file == ranges_a_file - 1 or last == count:
                    file.unlink()
            else:
                _gather_readers(indptr, indices, first, last, starts[:-1].copy(), found)
            offsets.append(back.rows + starts[1:])
            back.append(found)
            progress.advance(len(found))
    return open_array(folder / "back_indptr.npy"), open_array(folder / "back.npy")


def _sorted_entries(indptr: Array, indices: Array, firsts: Array, folder: Path, progress: Progress) -> list[Path]:
    """Files of all entries as pairs (vertex, row whose list it is in), one for the vertices from each of `firsts` on;
    in each, rows ascend.
    """
    files = [folder / f"entries-{number}.npy" for number in range(len(firsts))]
    kind = index_dtype(len(indptr) - 1)
    pairs, starts = np.empty((min(_SORTED, len(indices)), 2), kind), np.zeros(len(firsts) + 1, np.int64)
    with ExitStack() as stack, progress.step("sorting entries", len(indices), "entries"):
        writers = [stack.enter_context(ArrayWriter(file, kind, (2,))) for file in files]
        for first, last in ranges(len(indices), _SORTED):
            row = int(np.searchsorted(indptr, first, "right")) - 1
            _sort_entries(indptr, indices, row, first, last, firsts, starts, pairs)
            for writer, begin, end in zip(writers, starts[:-1], starts[1:], strict=True):
                writer.append(pairs[begin:end])
            progress.advance(last - first)
    return files


@njit(nogil=True, cache=True, writes=("starts", "pairs"))
def _sort_entries(
    indptr: Array, indices: Array, row: int, first: int, last: int, firsts: Array, starts: Array, pairs: Array
) -> None:
    """Write some entries as pairs, ordered by file; those of a file begin at its entry of `starts`."""
    starts[:] = 0
    for k in range(first, last):
        starts[np.searchsorted(firsts, indices[k], side="right")] += 1
    for file in range(len(firsts)):
        starts[file + 1] += starts[file]
    fill = starts[:-1].copy()
    for k in range(first, last):
        while k >= indptr[row + 1]:
            row += 1
        file = np.searchsorted(firsts, indices[k], side="right") - 1
        pairs[fill[file], 0], pairs[fill[file], 1] = indices[k], row
        fill[file] += 1


@njit(nogil=True, cache=True, writes=("fill", "found"))
def _place_readers(pairs: Array, first: int, last: int, fill: Array, found: Array) -> None:
    for k in range(pairs.shape[0]):
        u = pairs[k, 0]
        if first <= u < last:
            found[fill[u - first]] = pairs[k, 1]
            fill[u - first] += 1


def _bounded_ranges(lengths: Array, entries: int) -> Iterator[tuple[int, int, Array]]:
    """Consecutive ranges of rows that have so many entries at most, or are one row; and the offsets in each."""
    first = 0
    while first < len(lengths):
        starts = np.zeros(1, np.int64)
        last = first
        for start, stop in ranges(len(lengths) - first, _ROWS):
            ends = starts[-1] + np.cumsum(lengths[first + start : first + stop], dtype=np.int64)
            fit = int(np.searchsorted(ends, entries, "right"))
            starts = np.concatenate([starts, ends[:fit]])
            last += fit
            if fit < stop - start:
                break
        if last == first:
            starts, last = np.array([0, lengths[first]], np.int64), first + 1
        yield first, last, starts
        first = last


@njit(nogil=True, cache=True, writes=("lengths",))
def _count(indices: Array, lengths: Array) -> None:
    for k in range(indices.shape[0]):
        lengths[indices[k]] += 1


@njit(nogil=True, cache=True, writes=("fill", "found"))
def _gather_readers(indptr: Array, indices: Array, first: int, last: int, fill: Array, found: Array) -> None:
    for v in range(indptr.shape[0] - 1):
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if first <= u < last:
                found[fill[u - first]] = v
                fill[u - first] += 1


def merged_blocks(lists: BothDirections, rows: int = _ROWS) -> Iterator[Adjacency]:
    """Neighbours in either direction, each once, without self loops, of so many vertices at a time; weighted by how
    many edges join the two.
    """
    directed = len(lists.back_indptr) > 0
    for start, stop in ranges(lists.rows, rows):
        own = lists.indptr[start : stop + 1]
        back = lists.back_indptr[start : stop + 1] if directed else np.zeros(stop - start + 1, np.int64)
        lengths = np.zeros(stop - start + 1, np.int64)
        union_lengths(own, lists.indices, back, lists.back_indices, start, lengths)
        indptr = np.cumsum(lengths)
        indices = np.empty(int(indptr[-1]), lists.indices.dtype)
        weights = np.empty(len(indices), np.int32)
        fill_union(own, lists.indices, back, lists.back_indices, start, indptr, indices, weights)
        yield Adjacency(indptr, indices, weights)
