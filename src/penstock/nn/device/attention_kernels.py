"""Kernels of attention on a GPU: softmax over each list, then the weighted sum. A program handles one list.

Tiles are [heads, edges, columns of a head], so that sums over edges stay in registers. One value per edge and head is
kept for the backward pass. A list is read twice where a sum over it must be known first; what the first pass computed
is computed again rather than kept. JOINT is GATv2: scores direction . leaky(left[j] + right[i]), values are `left`, and
`of_dst` is right; without it GAT: scores leaky(of_src[j] + of_dst[i]).
"""

import triton
import triton.language as tl


@triton.jit
def attend_rows(
    indptr,
    indices,
    weights,
    kept,
    values,
    of_src,
    of_dst,
    direction,
    shares,
    out,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    JOINT: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """shares = w * exp(score) / sum of w * exp(score) over row i's list; out[i] = sum of shares * kept * values."""
    i = tl.program_id(0)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    start, stop = tl.load(indptr + i), tl.load(indptr + i + 1)
    mine = own_part(of_dst, i, h, c, HEADS, SIZE, JOINT, NUMBER)
    towards = own_part(direction, 0, h, c, HEADS, SIZE, JOINT, NUMBER)
    highest = tl.full((BLOCK_H,), float("-inf"), NUMBER)
    total = tl.zeros((BLOCK_H,), NUMBER)
    k = start
    while k < stop:
        e = k + tl.arange(0, BLOCK_E)
        valid = e < stop
        j = tl.load(indices + e, mask=valid, other=0)
        rows = head_rows(values, j, valid, h, c, HEADS, SIZE, NUMBER) if JOINT else mine
        score = edge_scores(rows, of_src, mine, towards, j, valid, h, SLOPE, HEADS, JOINT, NUMBER)
        score = tl.where(valid[None, :], score, float("-inf"))
        top = tl.maximum(highest, tl.max(score, axis=1))
        part = tl.exp(score - top[:, None])
        if weights is not None:
            part *= tl.load(weights + e, mask=valid, other=0).to(NUMBER)[None, :]
        total = total * tl.exp(highest - top) + tl.sum(part, axis=1)
        highest = top
        k += BLOCK_E
    share_of = tl.where(total > 0, 1 / tl.where(total > 0, total, 1), 0)
    result = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    k = start
    while k < stop:
        e = k + tl.arange(0, BLOCK_E)
        valid = e < stop
        j = tl.load(indices + e, mask=valid, other=0)
        rows = head_rows(values, j, valid, h, c, HEADS, SIZE, NUMBER)
        score = edge_scores(rows, of_src, mine, towards, j, valid, h, SLOPE, HEADS, JOINT, NUMBER)
        share = tl.exp(score - highest[:, None]) * share_of[:, None]
        if weights is not None:
            share *= tl.load(weights + e, mask=valid, other=0).to(NUMBER)[None, :]
        at, held = edge_places(e, valid, h, HEADS)
        tl.store(shares + at, share, mask=held)
        if kept is not None:
            share *= tl.load(kept + at, mask=held, other=0).to(NUMBER)
        result += tl.sum(tl.where(valid[None, :], share, 0)[:, :, None] * rows, axis=1)
        k += BLOCK_E
    store_rows(out, i, result, h, c, HEADS, SIZE)


@triton.jit
def return_to_destinations(
    indptr,
    indices,
    kept,
    values,
    of_src,
    of_dst,
    direction,
    shares,
    grad,
    of_score,
    out_dst,
    out_direction,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    JOINT: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Gradients through row i's softmax: of its edges' scores (GAT: of the sums inside the leaky ReLU), of its own part
    of them, and this row's part of the gradient of `direction`.
    """
    i = tl.program_id(0)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    start, stop = tl.load(indptr + i), tl.load(indptr + i + 1)
    mine = own_part(of_dst, i, h, c, HEADS, SIZE, JOINT, NUMBER)
    towards = own_part(direction, 0, h, c, HEADS, SIZE, JOINT, NUMBER)
    given = own_part(grad, i, h, c, HEADS, SIZE, True, NUMBER)
    slope = tl.full((1, 1, 1), SLOPE, NUMBER)
    mean = tl.zeros((BLOCK_H,), NUMBER)
    k = start
    while k < stop:
        e = k + tl.arange(0, BLOCK_E)
        valid = e < stop
        j = tl.load(indices + e, mask=valid, other=0)
        rows = head_rows(values, j, valid, h, c, HEADS, SIZE, NUMBER)
        share, dot = share_and_dot(rows, given, shares, kept, e, valid, h, HEADS, NUMBER)
        mean += tl.sum(share * dot, axis=1)
        k += BLOCK_E
    total = tl.zeros((BLOCK_H,), NUMBER)
    total_own = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    total_direction = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    k = start
    while k < stop:
        e = k + tl.arange(0, BLOCK_E)
        valid = e < stop
        j = tl.load(indices + e, mask=valid, other=0)
        rows = head_rows(values, j, valid, h, c, HEADS, SIZE, NUMBER)
        share, dot = share_and_dot(rows, given, shares, kept, e, valid, h, HEADS, NUMBER)
        of_edge = share * (dot - mean[:, None])
        at, held = edge_places(e, valid, h, HEADS)
        if JOINT:
            under = rows + mine[:, None, :]
            leaked = of_edge[:, :, None] * tl.where(under > 0, tl.full((1, 1, 1), 1, NUMBER), slope)
            total_own += tl.sum(leaked, axis=1) * towards
            total_direction += tl.sum(leaked * under, axis=1)
        else:
            under = tl.load(of_src + j[None, :].to(tl.int64) * HEADS + h[:, None], mask=held, other=0).to(NUMBER)
            flat = under + mine <= 0
            of_edge *= tl.where(flat, tl.full((1, 1), SLOPE, NUMBER), tl.full((1, 1), 1, NUMBER))
            total += tl.sum(of_edge, axis=1)
        tl.store(of_score + at, of_edge, mask=held)
        k += BLOCK_E
    if JOINT:
        store_rows(out_dst, i, total_own, h, c, HEADS, SIZE)
        store_rows(out_direction, i, total_direction, h, c, HEADS, SIZE)
    else:
        tl.store(out_dst + i.to(tl.int64) * HEADS + h, total.to(out_dst.dtype.element_ty), mask=h < HEADS)


@triton.jit
def return_to_sources(
    indptr,
    indices,
    edges,
    kept,
    values,
    of_dst,
    direction,
    shares,
    of_score,
    grad,
    out,
    out_src,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    JOINT: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """By source j: out[j] = sum of share * kept * grad[i] over its destinations i, and the gradient
    through the scores.
    """
    source = tl.program_id(0)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    start, stop = tl.load(indptr + source), tl.load(indptr + source + 1)
    mine = own_part(values, source, h, c, HEADS, SIZE, True, NUMBER)
    towards = own_part(direction, 0, h, c, HEADS, SIZE, JOINT, NUMBER)
    slope = tl.full((1, 1, 1), SLOPE, NUMBER)
    total = tl.zeros((BLOCK_H,), NUMBER)
    result = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    k = start
    while k < stop:
        p = k + tl.arange(0, BLOCK_E)
        valid = p < stop
        i = tl.load(indices + p, mask=valid, other=0)
        e = tl.load(edges + p, mask=valid, other=0)
        at, held = edge_places(e, valid, h, HEADS)
        share = tl.load(shares + at, mask=held, other=0)
        if kept is not None:
            share *= tl.load(kept + at, mask=held, other=0).to(NUMBER)
        of_edge = tl.load(of_score + at, mask=held, other=0)
        added = share[:, :, None] * head_rows(grad, i, valid, h, c, HEADS, SIZE, NUMBER)
        if JOINT:
            under = mine[:, None, :] + head_rows(of_dst, i, valid, h, c, HEADS, SIZE, NUMBER)
            steep = tl.where(under > 0, tl.full((1, 1, 1), 1, NUMBER), slope)
            added += of_edge[:, :, None] * steep * towards[:, None, :]
        else:
            total += tl.sum(of_edge, axis=1)
        result += tl.sum(added, axis=1)
        k += BLOCK_E
    store_rows(out, source, result, h, c, HEADS, SIZE)
    if not JOINT:
        tl.store(out_src + source.to(tl.int64) * HEADS + h, total.to(out_src.dtype.element_ty), mask=h < HEADS)


@triton.jit
def own_part(x, row, h, c, HEADS: tl.constexpr, SIZE: tl.constexpr, BY_COLUMN: tl.constexpr, NUMBER: tl.constexpr):
    """[heads, columns] of a row; without BY_COLUMN, where a row has one value per head, [heads, 1]."""
    if BY_COLUMN:
        at = x + tl.cast(row, tl.int64) * (HEADS * SIZE)
        inside = (h < HEADS)[:, None] & (c < SIZE)[None, :]
        result = tl.load(at + h[:, None] * SIZE + c[None, :], mask=inside, other=0).to(NUMBER)
    elif x is None:
        result = tl.zeros_like(h)[:, None].to(NUMBER)
    else:
        at = x + tl.cast(row, tl.int64) * HEADS + h[:, None]
        result = tl.load(at, mask=(h < HEADS)[:, None], other=0).to(NUMBER)
    return result


@triton.jit
def head_rows(x, j, valid, h, c, HEADS: tl.constexpr, SIZE: tl.constexpr, NUMBER: tl.constexpr):
    """[heads, edges, columns] of rows j."""
    at = (x + j.to(tl.int64) * (HEADS * SIZE))[None, :, None] + (h * SIZE)[:, None, None] + c[None, None, :]
    inside = (h < HEADS)[:, None, None] & valid[None, :, None] & (c < SIZE)[None, None, :]
    return tl.load(at, mask=inside, other=0).to(NUMBER)


@triton.jit
def edge_scores(
    rows, of_src, mine, towards, j, valid, h,
    SLOPE: tl.constexpr, HEADS: tl.constexpr, JOINT: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """[heads, edges]: the scores."""
    if JOINT:
        under = rows + mine[:, None, :]
        leaked = tl.where(under > 0, under, under * tl.full((1, 1, 1), SLOPE, NUMBER))
        result = tl.sum(leaked * towards[:, None, :], axis=2)
    else:
        held = (h < HEADS)[:, None] & valid[None, :]
        under = tl.load(of_src + j[None, :].to(tl.int64) * HEADS + h[:, None], mask=held, other=0).to(NUMBER) + mine
        result = tl.where(under > 0, under, under * tl.full((1, 1), SLOPE, NUMBER))
    return result


@triton.jit
def share_and_dot(rows, given, shares, kept, e, valid, h, HEADS: tl.constexpr, NUMBER: tl.constexpr):
    """[heads, edges]: the coefficients, and the gradient of each: kept * (the row's gradient . the edge's values)."""
    at, held = edge_places(e, valid, h, HEADS)
    dot = tl.sum(rows * given[:, None, :], axis=2)
    if kept is not None:
        dot *= tl.load(kept + at, mask=held, other=0).to(NUMBER)
    return tl.load(shares + at, mask=held, other=0), dot


@triton.jit
def edge_places(e, valid, h, HEADS: tl.constexpr):
    """[heads, edges]: the addresses of the edges' values, and which are valid."""
    return e[None, :].to(tl.int64) * HEADS + h[:, None], (h < HEADS)[:, None] & valid[None, :]


@triton.jit
def store_rows(out, row, result, h, c, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """out[row] = result [heads, columns]."""
    at = out + row.to(tl.int64) * (HEADS * SIZE) + h[:, None] * SIZE + c[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=(h < HEADS)[:, None] & (c < SIZE)[None, :])
