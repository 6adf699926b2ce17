"""Neighbour lists from edges in any order, by two counting sorts: no comparison sort, stable, linear time."""

import numpy as np

from penstock.graph.arrays import Array, index_dtype
from penstock.kernels import njit


def build_lists(
    sources: Array, destinations: Array, num_sources: int, num_destinations: int, want_order: bool = False
) -> tuple[Array, Array, Array | None]:
    """`(indptr, indices, order)` of edges given in any order.

    Lists ascend by source; parallel edges keep their order of arrival. `order[k]` is the arrival position of the k-th
    edge, or None when not wanted (it costs 8 bytes per edge).
    """
    by_source, dst_sorted, order = _transpose(destinations, sources, num_sources, want_order)
    indptr = offsets_of(destinations, num_destinations)
    indices = np.empty(len(sources), index_dtype(num_sources))
    fill = indptr[:-1].copy()
    if order is None:
        _scatter_rows(by_source, dst_sorted, fill, indices)
        return indptr, indices, None
    final_order = np.empty(len(sources), np.int64)
    _scatter_rows_ordered(by_source, dst_sorted, order, fill, indices, final_order)
    return indptr, indices, final_order


def transpose_lists(indptr: Array, indices: Array, num_sources: int) -> tuple[Array, Array]:
    """Out-neighbour lists from in-neighbour lists, each ascending."""
    out_indptr = offsets_of(indices, num_sources)
    out_indices = np.empty(len(indices), index_dtype(len(indptr) - 1))
    _scatter_rows(indptr, indices, out_indptr[:-1].copy(), out_indices)
    return out_indptr, out_indices


def deduplicate_lists(indptr: Array, indices: Array) -> tuple[Array, Array, Array]:
    """Drop all but the first of equal neighbours; `(indptr, indices, kept positions)`."""
    keep = np.empty(len(indices), np.bool_)
    new_indptr = np.zeros_like(indptr)
    _mark_first(indptr, indices, keep, new_indptr)
    kept = np.flatnonzero(keep)
    return new_indptr, indices[kept], kept


def offsets_of(keys: Array, num_rows: int) -> Array:
    """List offsets from the row of every edge."""
    indptr = np.zeros(num_rows + 1, np.int64)
    _count(keys, indptr)
    np.cumsum(indptr, out=indptr)
    return indptr


def _transpose(values: Array, keys: Array, num_keys: int, want_order: bool) -> tuple[Array, Array, Array | None]:
    """Values grouped by key in order of arrival."""
    offsets = offsets_of(keys, num_keys)
    fill = offsets[:-1].copy()
    grouped = np.empty(len(values), values.dtype)
    if not want_order:
        _scatter(keys, values, fill, grouped)
        return offsets, grouped, None
    order = np.empty(len(values), np.int64)
    _scatter_ordered(keys, values, fill, grouped, order)
    return offsets, grouped, order


@njit(nogil=True, cache=True, writes=("indptr",))
def _count(keys: Array, indptr: Array) -> None:
    for i in range(keys.shape[0]):
        indptr[keys[i] + 1] += 1


@njit(nogil=True, cache=True, writes=("fill", "out"))
def _scatter(keys: Array, values: Array, fill: Array, out: Array) -> None:
    for i in range(keys.shape[0]):
        out[fill[keys[i]]] = values[i]
        fill[keys[i]] += 1


@njit(nogil=True, cache=True, writes=("fill", "out", "order"))
def _scatter_ordered(keys: Array, values: Array, fill: Array, out: Array, order: Array) -> None:
    for i in range(keys.shape[0]):
        position = fill[keys[i]]
        out[position] = values[i]
        order[position] = i
        fill[keys[i]] = position + 1


@njit(nogil=True, cache=True, writes=("fill", "out"))
def _scatter_rows(indptr: Array, keys: Array, fill: Array, out: Array) -> None:
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            out[fill[keys[k]]] = row
            fill[keys[k]] += 1


@njit(nogil=True, cache=True)
def _scatter_rows_ordered(indptr: Array, keys: Array, order: Array, fill: Array, out: Array, out_order: Array) -> None:
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            position = fill[keys[k]]
            out[position] = row
            out_order[position] = order[k]
            fill[keys[k]] = position + 1


@njit(nogil=True, cache=True)
def _mark_first(indptr: Array, indices: Array, keep: Array, new_indptr: Array) -> None:
    kept = 0
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            keep[k] = k == indptr[row] or indices[k] != indices[k - 1]
            kept += keep[k]
        new_indptr[row + 1] = kept
