"""Kernels of dropout: the same bits as the CPU's `drop_rows`, and the ReLU in the same pass."""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.nn.device.gather_kernels import first_above
from penstock.sampling.device.kernels import mix

_STEP = tl.constexpr(0x9E3779B97F4A7C15)


@jit(do_not_specialize=["call", "low", "high", "words"])
def drop_rows(
    x,
    names,
    key,
    call,
    low,
    high,
    figures,
    weight,
    bias,
    count,
    out,
    words,
    LIMIT: tl.constexpr,
    SCALE: tl.constexpr,
    WIDTH: tl.constexpr,
    RECTIFIES: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = SCALE * x where a value's 16 random bits are below LIMIT, else 0; with RECTIFIES, of max(x, 0).

    Four values of a row share a word. The words' key is the `call`-th of the stream whose key is in memory, or else the
    two halves given; a word is identified by its row's name, or without `names` the row's number, and its position in
    it. With `figures`, every column's mean and 1 / its standard deviation, the first `count` rows are normalised first,
    and the others are zeros.
    """
    DRAWS: tl.constexpr = (WIDTH + 3) // 4
    first = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    place = first + lane
    # One 64-bit division per program; those of the lanes are 32-bit.
    behind = (first % DRAWS).to(tl.int32) + lane
    row, k = first // DRAWS + behind // DRAWS, behind % DRAWS
    named = drawn_key(key, call, low, high)
    name = row if names is None else tl.load(names + row, mask=place < words, other=0).to(tl.int64)
    bits = mix(named + (name * DRAWS + k).to(tl.uint64) * _STEP)
    column = tl.arange(0, 4)[None, :]
    draws = (bits[:, None] >> (16 * column).to(tl.uint64)) & 0xFFFF
    kept = draws.to(tl.int32) < LIMIT
    if WIDTH % 4 == 0:
        offset = 4 * place[:, None] + column
        inside = (place < words)[:, None] & (column >= 0)
    else:
        f = 4 * k[:, None] + column
        offset = row[:, None] * WIDTH + f
        inside = (place < words)[:, None] & (f < WIDTH)
    value = tl.load(x + offset, mask=inside, other=0).to(NUMBER)
    if figures is not None:
        f = 4 * k[:, None] + column
        has = inside & (row < tl.load(count))[:, None]
        mean = tl.load(figures + f, mask=inside, other=0).to(NUMBER)
        gain = tl.load(figures + WIDTH + f, mask=inside, other=0).to(NUMBER)
        gain *= tl.load(weight + f, mask=inside, other=0).to(NUMBER)
        value = (value - mean) * gain + tl.load(bias + f, mask=inside, other=0).to(NUMBER)
        value = tl.where(has, value, 0)
    if RECTIFIES:
        value = tl.maximum(value, 0)
    result = tl.where(kept, value * tl.full((1, 1), SCALE, NUMBER), 0)
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=inside)


@jit
def drawn_key(key, call, low, high):
    """The key of a call's words: the `call`-th of the stream whose key is in memory, or else the two halves given."""
    if key is not None:
        stream = tl.load(key).to(tl.uint64, bitcast=True)
        named = mix(stream + (call + 1).to(tl.uint64) * _STEP)
    else:
        named = (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)
    return named


@jit
def kept_groups(
    named, names, row, mask, first, LIMIT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """[ROWS, GROUPS, GROUP]: which values of rows `row` dropout keeps, in GROUPS * GROUP columns from `first` on; that
    and GROUP are multiples of 4.
    """
    DRAWS: tl.constexpr = (WIDTH + 3) // 4
    name = row.to(tl.int64) if names is None else tl.load(names + row, mask=mask, other=0).to(tl.int64)
    k = (first // 4 + GROUP // 4 * tl.arange(0, GROUPS))[:, None] + tl.arange(0, GROUP // 4)[None, :]
    # The sum of two products, one of the row and one of the column, which is one addition for each word.
    of_row = named + (name * DRAWS).to(tl.uint64) * _STEP
    bits = mix(of_row[:, None, None] + (k.to(tl.uint64) * _STEP)[None, :, :])
    draws = (bits[:, :, :, None] >> (16 * tl.arange(0, 4)).to(tl.uint64)[None, None, None, :]) & 0xFFFF
    return tl.reshape((draws.to(tl.int32) < LIMIT).to(tl.int8), [ROWS, GROUPS, GROUP]) > 0


@jit(do_not_specialize=["rows", "places", "steps"])
def name_edges(indptr, indices, targets, sources, out, rows, places, steps, BLOCK: tl.constexpr):
    """out[e] = the name of edge e's destination * 2^32 + that of its source; 0 past the last edge."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = e < tl.load(indptr + rows)
    i = first_above(indptr, e, inside, rows + 1, steps) - 1
    j = tl.load(indices + e, mask=inside, other=0)
    target = tl.load(targets + i, mask=inside, other=0).to(tl.int64)
    source = tl.load(sources + j, mask=inside, other=0).to(tl.int64)
    tl.store(out + e, (target << 32) + source, mask=e < places)


@jit
def pass_where_positive(y, grad, out, numbers, SCALE: tl.constexpr, NUMBER: tl.constexpr, BLOCK: tl.constexpr):
    """out = SCALE * grad where y > 0, else 0."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numbers
    positive = tl.load(y + at, mask=inside, other=0) > 0
    value = tl.load(grad + at, mask=inside, other=0).to(NUMBER) * tl.full((1,), SCALE, NUMBER)
    tl.store(out + at, tl.where(positive, value, 0).to(out.dtype.element_ty), mask=inside)
