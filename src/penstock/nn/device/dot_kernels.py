"""Kernels of attention by inner products on a GPU. A program handles one list; nothing is kept for each edge.

Tiles are [heads, edges, columns of a head]. The forward pass keeps the logarithm of each softmax's denominator, from
which the backward passes compute the coefficients again.
"""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.nn.device.attention_kernels import edge_places, head_rows, own_part, store_rows

LOWEST = tl.constexpr(-1e30)
"""The logarithm of the denominator of an empty list: below every other, and finite."""


@jit
def attend_dots(
    indptr,
    indices,
    kept,
    keys,
    queries,
    values,
    out,
    logs,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """out[i] = sum of share * kept * values[j] over row i's list, with the shares softmax(queries[i] . keys[j])."""
    i = tl.program_id(0)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    start, stop = tl.load(indptr + i), tl.load(indptr + i + 1)
    mine = own_part(queries, i, HEADS * SIZE, h, c, HEADS, SIZE, True, NUMBER)
    highest = tl.full((BLOCK_H,), LOWEST, NUMBER)
    total = tl.zeros((BLOCK_H,), NUMBER)
    result = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    k = start
    while k < stop:
        e = k + tl.arange(0, BLOCK_E)
        valid = e < stop
        j = tl.load(indices + e, mask=valid, other=0)
        score = tl.sum(head_rows(keys, j, HEADS * SIZE, valid, h, c, HEADS, SIZE, NUMBER) * mine[:, None, :], axis=2)
        score = tl.where(valid[None, :], score, LOWEST)
        top = tl.maximum(highest, tl.max(score, axis=1))
        part = tl.where(valid[None, :], tl.exp(score - top[:, None]), 0)
        before = tl.exp(highest - top)
        total = total * before + tl.sum(part, axis=1)
        if kept is not None:
            at, held = edge_places(e, valid, h, HEADS)
            part *= tl.load(kept + at, mask=held, other=0).to(NUMBER)
        rows = head_rows(values, j, HEADS * SIZE, valid, h, c, HEADS, SIZE, NUMBER)
        result = result * before[:, None] + tl.sum(part[:, :, None] * rows, axis=1)
        highest = top
        k += BLOCK_E
    filled = total > 0
    safe = tl.where(filled, total, 1)
    store_rows(out, i, result / safe[:, None], HEADS * SIZE, h, c, HEADS, SIZE)
    log = tl.where(filled, highest + tl.log(safe), LOWEST)
    tl.store(logs + i.to(tl.int64) * HEADS + h, log, mask=h < HEADS)


@jit
def return_dots_to_destinations(
    indptr,
    indices,
    kept,
    keys,
    queries,
    values,
    grad,
    logs,
    means,
    out,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradient of row i's query. `means` are what is subtracted from each coefficient's gradient."""
    i = tl.program_id(0)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    start, stop = tl.load(indptr + i), tl.load(indptr + i + 1)
    mine = own_part(queries, i, HEADS * SIZE, h, c, HEADS, SIZE, True, NUMBER)
    given = own_part(grad, i, HEADS * SIZE, h, c, HEADS, SIZE, True, NUMBER)
    log = own_part(logs, i, HEADS, h, c, HEADS, SIZE, False, NUMBER)
    mean = own_part(means, i, HEADS, h, c, HEADS, SIZE, False, NUMBER)
    result = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    k = start
    while k < stop:
        e = k + tl.arange(0, BLOCK_E)
        valid = e < stop
        j = tl.load(indices + e, mask=valid, other=0)
        near = head_rows(keys, j, HEADS * SIZE, valid, h, c, HEADS, SIZE, NUMBER)
        share = tl.exp(tl.sum(near * mine[:, None, :], axis=2) - log)
        dot = tl.sum(head_rows(values, j, HEADS * SIZE, valid, h, c, HEADS, SIZE, NUMBER) * given[:, None, :], axis=2)
        if kept is not None:
            at, held = edge_places(e, valid, h, HEADS)
            dot *= tl.load(kept + at, mask=held, other=0).to(NUMBER)
        of_score = tl.where(valid[None, :], share * (dot - mean), 0)
        result += tl.sum(of_score[:, :, None] * near, axis=1)
        k += BLOCK_E
    store_rows(out, i, result, HEADS * SIZE, h, c, HEADS, SIZE)


@jit
def return_dots_to_sources(
    indptr,
    indices,
    edges,
    kept,
    keys,
    queries,
    values,
    grad,
    logs,
    means,
    out_keys,
    out_values,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradients of source j's key and value, over the destinations that read it."""
    source = tl.program_id(0)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    start, stop = tl.load(indptr + source), tl.load(indptr + source + 1)
    key = own_part(keys, source, HEADS * SIZE, h, c, HEADS, SIZE, True, NUMBER)
    value = own_part(values, source, HEADS * SIZE, h, c, HEADS, SIZE, True, NUMBER)
    of_key = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    of_value = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    k = start
    while k < stop:
        p = k + tl.arange(0, BLOCK_E)
        valid = p < stop
        i = tl.load(indices + p, mask=valid, other=0)
        at, held = edge_places(i, valid, h, HEADS)
        asked = head_rows(queries, i, HEADS * SIZE, valid, h, c, HEADS, SIZE, NUMBER)
        given = head_rows(grad, i, HEADS * SIZE, valid, h, c, HEADS, SIZE, NUMBER)
        share = tl.exp(tl.sum(asked * key[:, None, :], axis=2) - tl.load(logs + at, mask=held, other=0))
        share = tl.where(held, share, 0)
        dot = tl.sum(given * value[:, None, :], axis=2)
        if kept is not None:
            of_edge, inside = edge_places(tl.load(edges + p, mask=valid, other=0), valid, h, HEADS)
            factor = tl.load(kept + of_edge, mask=inside, other=0).to(NUMBER)
            of_value += tl.sum((share * factor)[:, :, None] * given, axis=1)
            dot *= factor
        else:
            of_value += tl.sum(share[:, :, None] * given, axis=1)
        of_score = share * (dot - tl.load(means + at, mask=held, other=0))
        of_key += tl.sum(of_score[:, :, None] * asked, axis=1)
        k += BLOCK_E
    store_rows(out_keys, source, of_key, HEADS * SIZE, h, c, HEADS, SIZE)
    store_rows(out_values, source, of_value, HEADS * SIZE, h, c, HEADS, SIZE)
