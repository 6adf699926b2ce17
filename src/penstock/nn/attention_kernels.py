"""Kernels of attention over a block: softmax over each list, then the weighted sum, for every head.

What is kept for the way back is one number per edge and head; rows of values are read where they lie. `attend_*` go
by destination, `return_*` by source along the transposed lists. Rows are [heads, size]: an index that is a sum might be
negative for all the compiler knows, and loops over such do not become vector instructions.
"""

import math

from penstock.graph.arrays import Array
from penstock.kernels import njit

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
    """Turn scores into shares w * exp(score) / sum of w * exp(score), in place, and add up shares * kept * values."""
    heads, size = values.shape[1:]
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
                for c in range(size):
                    out[i, h, c] += share * values[j, h, c]


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
    heads, size = values.shape[1:]
    for i in range(first, last):
        start, stop = indptr[i], indptr[i + 1]
        for h in range(heads):
            mean = values.dtype.type(0)
            for e in range(start, stop):
                j = indices[e]
                dot = values.dtype.type(0)
                for c in range(size):
                    dot += grad[i, h, c] * values[j, h, c]
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
    """GAT, by destination: gradients of scores become those of the sums under the leaky step, and are added up."""
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
    """GATv2, by destination: gradients of `right` and, added up over this chunk, of `direction`."""
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
