"""Kernels of the host over a block: aggregation, attention and dropout, one pass over each list."""

import math

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.kernels import njit

# Kernels of aggregation over a block: a row of the result is one pass over its list. No message is ever stored: every
# edge's row is read in place and added to the result. Kernels compute rows [first, last) of the result, so that threads
# share a block without conflicts. Four edges are added at once, which keeps more loads in flight and touches the
# result's row a quarter as often. Arrays of length zero stand for "all ones".

_STEP = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True, fastmath={"contract"})
def gather_sum(
    indptr: Array,
    indices: Array,
    weights: Array,
    read_scale: Array,
    write_scale: Array,
    own_scale: Array,
    own: Array,
    x: Array,
    out: Array,
    first: int,
    last: int,
) -> None:
    """out[i] = own_scale[i] * own[i] + write_scale[i] * sum over its edges e of weights[e] * read_scale[j] * x[j].

    j is the source row of e. Rows beyond `own` have no such term.
    """
    width = x.shape[1]
    weighted, scaled, written = weights.shape[0] > 0, read_scale.shape[0] > 0, write_scale.shape[0] > 0
    one = x.dtype.type(1)
    c = np.empty(4, x.dtype)
    for i in range(first, last):
        start, stop = indptr[i], indptr[i + 1]
        factor = write_scale[i] if written else one
        if i < own.shape[0]:
            share = own_scale[i] if own_scale.shape[0] > 0 else one
            for f in range(width):
                out[i, f] = share * own[i, f]
        else:
            for f in range(width):
                out[i, f] = 0
        e = start
        while e + 4 <= stop:
            j0, j1, j2, j3 = indices[e], indices[e + 1], indices[e + 2], indices[e + 3]
            for k in range(4):
                c[k] = factor
                if weighted:
                    c[k] *= weights[e + k]
                if scaled:
                    c[k] *= read_scale[indices[e + k]]
            c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
            for f in range(width):
                out[i, f] += (c0 * x[j0, f] + c1 * x[j1, f]) + (c2 * x[j2, f] + c3 * x[j3, f])
            e += 4
        while e < stop:
            j0 = indices[e]
            c0 = factor
            if weighted:
                c0 *= weights[e]
            if scaled:
                c0 *= read_scale[j0]
            for f in range(width):
                out[i, f] += c0 * x[j0, f]
            e += 1


@njit(nogil=True, cache=True, fastmath={"contract"})
def add_sums(
    rows: Array, indptr: Array, indices: Array, weights: Array, x: Array, out: Array, first: int, last: int
) -> None:
    """out[rows[i]] += sum over its edges e of weights[e] * x[j], j being the source row of e; no row is named twice."""
    width = x.shape[1]
    for i in range(first, last):
        row, e, stop = rows[i], indptr[i], indptr[i + 1]
        while e + 4 <= stop:
            j0, j1, j2, j3 = indices[e], indices[e + 1], indices[e + 2], indices[e + 3]
            c0, c1, c2, c3 = weights[e], weights[e + 1], weights[e + 2], weights[e + 3]
            for f in range(width):
                out[row, f] += (c0 * x[j0, f] + c1 * x[j1, f]) + (c2 * x[j2, f] + c3 * x[j3, f])
            e += 4
        while e < stop:
            j0, c0 = indices[e], weights[e]
            for f in range(width):
                out[row, f] += c0 * x[j0, f]
            e += 1


@njit(nogil=True, cache=True)
def gather_max(indptr: Array, indices: Array, x: Array, out: Array, winner: Array, first: int, last: int) -> None:
    """out[i] = the maximum x[j] of each column, the first among equals; winner[i] = its row j, or -1 and 0 if none."""
    width = x.shape[1]
    for i in range(first, last):
        start, stop = indptr[i], indptr[i + 1]
        if start == stop:
            for f in range(width):
                out[i, f] = 0
                winner[i, f] = -1
            continue
        j = indices[start]
        for f in range(width):
            out[i, f] = x[j, f]
            winner[i, f] = j
        for e in range(start + 1, stop):
            j = indices[e]
            for f in range(width):
                value = x[j, f]
                larger = value > out[i, f]
                out[i, f] = value if larger else out[i, f]
                winner[i, f] = j if larger else winner[i, f]


@njit(nogil=True, cache=True)
def scatter_winners(winner: Array, grad: Array, out: Array, first: int, last: int) -> None:
    """For columns [first, last): add to every winner the gradient of the maximum that it provided, in the order of the
    rows.
    """
    for i in range(winner.shape[0]):
        for f in range(first, last):
            if winner[i, f] >= 0:
                out[winner[i, f], f] += grad[i, f]


@njit(nogil=True, cache=True)
def transpose(indptr: Array, indices: Array, out_indptr: Array, out_indices: Array, out_edges: Array) -> None:
    """Transpose: group edges by source, with destinations in ascending order and each edge's former position."""
    rows = out_indptr.shape[0] - 1
    out_indptr[:] = 0
    for e in range(indices.shape[0]):
        out_indptr[indices[e] + 1] += 1
    for j in range(rows):
        out_indptr[j + 1] += out_indptr[j]
    free = out_indptr[:-1].copy()
    for i in range(indptr.shape[0] - 1):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            out_indices[free[j]] = i
            out_edges[free[j]] = e
            free[j] += 1


@njit(nogil=True, cache=True)
def cut_evenly(indptr: Array, chunks: int) -> Array:
    """Row bounds of chunks with about equal numbers of edges and rows together."""
    rows = indptr.shape[0] - 1
    total = indptr[rows] + rows
    bounds = np.empty(chunks + 1, np.int64)
    for k in range(chunks + 1):
        goal = total * k // chunks
        low, high = 0, rows
        while low < high:
            middle = (low + high) // 2
            if indptr[middle] + middle < goal:
                low = middle + 1
            else:
                high = middle
        bounds[k] = low
    return bounds


@njit(nogil=True, cache=True)
def drop_rows(
    x: Array, names: Array, key: np.uint64, limit: int, scale: float, rectify: bool, out: Array, first: int, last: int
) -> None:
    """out = scale * x where a value's 16 random bits are below `limit`, else 0; with `rectify`, of max(x, 0).

    Bits are a hash of the key, the row's name (an int64, its position where there are no `names`) and the column, drawn
    a row at a time so that both loops vectorise.
    """
    width = x.shape[1]
    draws = (width + 3) // 4
    words = np.empty(draws, np.uint64)
    bits = words.view(np.uint16)
    zero = x.dtype.type(0)
    for i in range(first, last):
        name = np.uint64(names[i]) if len(names) > 0 else np.uint64(i)
        start = name * np.uint64(draws)
        for k in range(draws):
            words[k] = mix(key + (start + np.uint64(k)) * _STEP)
        for f in range(width):
            value = x[i, f]
            if rectify:
                value = max(value, zero)
            out[i, f] = scale * value if bits[f] < limit else zero


@njit(nogil=True, cache=True)
def pass_where_positive(y: Array, grad: Array, scale: float, out: Array, first: int, last: int) -> None:
    """out = scale * grad where y > 0, else 0."""
    zero = y.dtype.type(0)
    for i in range(first, last):
        for f in range(y.shape[1]):
            out[i, f] = scale * grad[i, f] if y[i, f] > 0 else zero


# Kernels of attention over a block: softmax over each list, then the weighted sum, for every head. One value per edge
# and head is kept for the backward pass; rows of values are read in place. `attend_*` go by destination, `return_*` by
# source along the transposed lists. Rows are [heads, size]: the compiler does not vectorise loops over computed
# indices, which it must assume may be negative.

_FAST = {"contract", "reassoc", "nsz"}


@njit(nogil=True, cache=True, fastmath=_FAST)
def additive_scores(
    indptr: Array, indices: Array, of_src: Array, of_dst: Array, slope: float, scores: Array, first: int, last: int
) -> None:
    """scores[e, h] = leaky(of_src[j, h] + of_dst[i, h]): GAT."""
    for i in range(first, last):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for h in range(scores.shape[1]):
                s = of_src[j, h] + of_dst[i, h]
                scores[e, h] = s if s > 0 else s * slope


@njit(nogil=True, cache=True, fastmath=_FAST)
def joint_scores(
    indptr: Array,
    indices: Array,
    left: Array,
    right: Array,
    direction: Array,
    slope: float,
    scores: Array,
    first: int,
    last: int,
) -> None:
    """scores[e, h] = direction[h] . leaky(left[j, h] + right[i, h]): GATv2."""
    heads, size = direction.shape
    for i in range(first, last):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for h in range(heads):
                total = left.dtype.type(0)
                for c in range(size):
                    s = left[j, h, c] + right[i, h, c]
                    total += direction[h, c] * max(s, s * slope)
                scores[e, h] = total


@njit(nogil=True, cache=True, fastmath=_FAST)
def attend_rows(
    indptr: Array,
    indices: Array,
    weights: Array,
    kept: Array,
    values: Array,
    shares: Array,
    out: Array,
    first: int,
    last: int,
) -> None:
    """Turn scores into coefficients w * exp(score) / sum of w * exp(score), in place, and add up coefficients * kept *
    values. Where values have one head, all heads read it.
    """
    heads, size, each = shares.shape[1], values.shape[2], values.shape[1] > 1
    for i in range(first, last):
        start, stop = indptr[i], indptr[i + 1]
        for h in range(heads):
            highest = shares[start, h] if stop > start else values.dtype.type(0)
            for e in range(start, stop):
                highest = max(highest, shares[e, h])
            total = values.dtype.type(0)
            for e in range(start, stop):
                share = math.exp(shares[e, h] - highest)
                if weights.shape[0] > 0:
                    share *= weights[e]
                shares[e, h] = share
                total += share
            for e in range(start, stop):
                shares[e, h] = shares[e, h] / total if total > 0 else values.dtype.type(0)
        for h in range(heads):
            for c in range(size):
                out[i, h, c] = 0
        for e in range(start, stop):
            j = indices[e]
            for h in range(heads):
                share = shares[e, h]
                if kept.shape[0] > 0:
                    share *= kept[e, h]
                read = h if each else 0
                for c in range(size):
                    out[i, h, c] += share * values[j, read, c]


@njit(nogil=True, cache=True, fastmath=_FAST)
def score_gradients(
    indptr: Array,
    indices: Array,
    kept: Array,
    values: Array,
    shares: Array,
    grad: Array,
    out: Array,
    first: int,
    last: int,
) -> None:
    """out[e, h] = the gradient of score e, h: through the softmax, from the gradient of the rows."""
    heads, size, each = shares.shape[1], values.shape[2], values.shape[1] > 1
    for i in range(first, last):
        start, stop = indptr[i], indptr[i + 1]
        for h in range(heads):
            read = h if each else 0
            mean = values.dtype.type(0)
            for e in range(start, stop):
                j = indices[e]
                dot = values.dtype.type(0)
                for c in range(size):
                    dot += grad[i, h, c] * values[j, read, c]
                if kept.shape[0] > 0:
                    dot *= kept[e, h]
                out[e, h] = dot
                mean += shares[e, h] * dot
            for e in range(start, stop):
                out[e, h] = shares[e, h] * (out[e, h] - mean)


@njit(nogil=True, cache=True, fastmath=_FAST)
def leak_gradients(
    indptr: Array,
    indices: Array,
    of_src: Array,
    of_dst: Array,
    slope: float,
    of_score: Array,
    out_dst: Array,
    first: int,
    last: int,
) -> None:
    """GAT, by destination: turn gradients of scores into those of the sums inside the leaky ReLU, and add these up."""
    for i in range(first, last):
        for h in range(of_score.shape[1]):
            out_dst[i, h] = 0
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for h in range(of_score.shape[1]):
                if of_src[j, h] + of_dst[i, h] <= 0:
                    of_score[e, h] *= slope
                out_dst[i, h] += of_score[e, h]


@njit(nogil=True, cache=True, fastmath=_FAST)
def return_values(
    indptr: Array,
    indices: Array,
    edges: Array,
    kept: Array,
    shares: Array,
    grad: Array,
    out: Array,
    first: int,
    last: int,
) -> None:
    """By source: out[j] = sum of share * kept * grad[i] over the destinations i that read j."""
    heads, size = grad.shape[1:]
    for j in range(first, last):
        for h in range(heads):
            for c in range(size):
                out[j, h, c] = 0
        for k in range(indptr[j], indptr[j + 1]):
            i, e = indices[k], edges[k]
            for h in range(heads):
                share = shares[e, h]
                if kept.shape[0] > 0:
                    share *= kept[e, h]
                for c in range(size):
                    out[j, h, c] += share * grad[i, h, c]


@njit(nogil=True, cache=True, fastmath=_FAST)
def return_scores(indptr: Array, edges: Array, of_score: Array, out: Array, first: int, last: int) -> None:
    """GAT, by source: out[j, h] = sum of its edges' gradients."""
    for j in range(first, last):
        for h in range(out.shape[1]):
            out[j, h] = 0
        for k in range(indptr[j], indptr[j + 1]):
            for h in range(out.shape[1]):
                out[j, h] += of_score[edges[k], h]


@njit(nogil=True, cache=True, fastmath=_FAST)
def joint_gradients(
    indptr: Array,
    indices: Array,
    left: Array,
    right: Array,
    direction: Array,
    slope: float,
    of_score: Array,
    out_right: Array,
    out_direction: Array,
    first: int,
    last: int,
) -> None:
    """GATv2, by destination: gradients of `right` and, summed over this chunk, of `direction`."""
    heads, size = direction.shape
    one = left.dtype.type(1)
    for i in range(first, last):
        for h in range(heads):
            for c in range(size):
                out_right[i, h, c] = 0
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for h in range(heads):
                g = of_score[e, h]
                for c in range(size):
                    s = left[j, h, c] + right[i, h, c]
                    steep = one if s > 0 else slope
                    out_right[i, h, c] += g * direction[h, c] * steep
                    out_direction[h, c] += g * s * steep


@njit(nogil=True, cache=True, fastmath=_FAST)
def return_joint(
    indptr: Array,
    indices: Array,
    edges: Array,
    left: Array,
    right: Array,
    direction: Array,
    slope: float,
    of_score: Array,
    out: Array,
    first: int,
    last: int,
) -> None:
    """GATv2, by source: add the gradient that reaches `left` through the scores to `out`."""
    heads, size = direction.shape
    one = left.dtype.type(1)
    for j in range(first, last):
        for k in range(indptr[j], indptr[j + 1]):
            i, e = indices[k], edges[k]
            for h in range(heads):
                g = of_score[e, h]
                for c in range(size):
                    steep = one if left[j, h, c] + right[i, h, c] > 0 else slope
                    out[j, h, c] += g * direction[h, c] * steep
