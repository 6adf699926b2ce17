"""Both directions of every drawn edge, and the edges kept out for link prediction."""

from collections.abc import Iterator

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.blocks import map_blocks, run_blocks
from penstock.graph.hashing import draw, mix, unit
from penstock.kernels import njit

_BLOCK = 1 << 15


def transposed(indptr: Array, indices: Array, threads: int) -> tuple[Array, Array]:
    """Out-lists of drawn in-lists. Every thread scans all edges and keeps those of its own range of vertices."""
    count = len(indptr) - 1
    share = max(1, -(-count // threads))
    out_indptr = np.zeros(count + 1, np.int64)
    run_blocks(lambda a, b: _count_range(indices, a, b, out_indptr[1:]), count, share, threads)
    np.cumsum(out_indptr, out=out_indptr)
    out = np.empty(len(indices), indices.dtype)
    fill = out_indptr[:-1].copy()
    run_blocks(lambda a, b: _scatter_range(indptr, indices, a, b, fill, out), count, share, threads)
    return out_indptr, out


def merged_rows(
    half: tuple[Array, Array],
    other: tuple[Array, Array],
    start: int,
    stop: int,
    key: np.uint64,
    held_out: tuple[float, float],
) -> tuple[Array, Array, Array]:
    """`(lengths, neighbours, held)` of rows [start, stop): the union of both directions.

    `held` are rows (source, destination, 0 for val or 1 for test) of edges drawn to be kept out, each named once.
    """
    space = int(half[0][stop] - half[0][start] + other[0][stop] - other[0][start])
    lengths = np.zeros(stop - start, np.int64)
    out = np.empty(space, half[1].dtype)
    held = np.empty((space if sum(held_out) else 0, 3), np.int64)
    used, kept_out = _merge(*half, *other, start, key, held_out[0], sum(held_out), lengths, out, held)
    return lengths, out[:used], held[:kept_out]


def merge_all(
    half: tuple[Array, Array],
    other: tuple[Array, Array],
    key: np.uint64,
    held_out: tuple[float, float],
    threads: int | None,
) -> Iterator[tuple[Array, Array, Array]]:
    """`merged_rows` of every block in order."""
    count = len(half[0]) - 1
    return map_blocks(lambda a, b: merged_rows(half, other, a, b, key, held_out), count, _BLOCK, threads)


@njit(nogil=True, cache=True)
def _count_range(indices: Array, low: int, high: int, counts: Array) -> None:
    for k in range(indices.shape[0]):
        if low <= indices[k] < high:
            counts[indices[k]] += 1


@njit(nogil=True, cache=True)
def _scatter_range(indptr: Array, indices: Array, low: int, high: int, fill: Array, out: Array) -> None:
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            target = indices[k]
            if low <= target < high:
                out[fill[target]] = row
                fill[target] += 1


@njit(nogil=True, cache=True)
def _merge(
    a_ptr: Array,
    a_idx: Array,
    b_ptr: Array,
    b_idx: Array,
    start: int,
    key: np.uint64,
    val_share: float,
    held_share: float,
    lengths: Array,
    out: Array,
    held: Array,
) -> tuple[int, int]:
    used = kept_out = 0
    for i in range(lengths.shape[0]):
        row = start + i
        first = used
        a, b = a_ptr[row], b_ptr[row]
        while a < a_ptr[row + 1] or b < b_ptr[row + 1]:
            if b >= b_ptr[row + 1] or (a < a_ptr[row + 1] and a_idx[a] <= b_idx[b]):
                vertex = a_idx[a]
                if b < b_ptr[row + 1] and b_idx[b] == vertex:
                    b += 1
                a += 1
            else:
                vertex = b_idx[b]
                b += 1
            if held_share > 0.0:
                # The draw belongs to the unordered pair, so both directions agree.
                share = unit(draw(mix(key ^ np.uint64(min(row, vertex))), np.uint64(max(row, vertex))))
                if share < held_share:
                    if vertex < row:
                        held[kept_out, 0], held[kept_out, 1] = vertex, row
                        held[kept_out, 2] = 0 if share < val_share else 1
                        kept_out += 1
                    continue
            out[used] = vertex
            used += 1
        lengths[i] = used - first
    return used, kept_out
