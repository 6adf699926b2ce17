"""Kernels of GAT's first layer on a GPU: rows of features are weighed head by head before they are transformed.

A tile is [rows, edges, columns] and has whole lists, which are short, so that every row is read once for all heads. Of
an edge only its coefficients are kept, one for each head, negative where the leaky ReLU's slope applied.
"""

import triton.language as tl

from penstock.gpu_kernels import jit


@jit(do_not_specialize=["rows"])
def attend_inputs(
    indptr,
    indices,
    weights,
    ids,
    x,
    directions,
    out,
    shares,
    own_shares,
    rows,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    BEHIND: tl.constexpr,
    DIRECT: tl.constexpr,
    LOOPS: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """out[h, i] = the mean of x over row i's list by head h's coefficients, followed by a one and zeros, BEHIND in all.

    Coefficients are softmax(leaky(directions[h] . x[j] + directions[HEADS + h] . x[i])). `ids` are the rows of x of the
    block's rows; DIRECT: lists hold rows of x, and `ids` are those of the destinations.
    """
    i = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    f = tl.arange(0, BLOCK_F)
    e, valid, near, mine = tile_of(
        indptr, indices, ids, x, i, f, rows, WIDTH, X_STRIDE, DIRECT, LOOPS, NUMBER, BLOCK_E
    )  # fmt: skip
    live, slope = i < rows, tl.full((1,), SLOPE, NUMBER)
    more = WIDTH + BEHIND
    for h in tl.static_range(HEADS):
        towards = tl.load(directions + h * WIDTH + f, mask=f < WIDTH, other=0).to(NUMBER)
        own_towards = tl.load(directions + (HEADS + h) * WIDTH + f, mask=f < WIDTH, other=0).to(NUMBER)
        of_own = tl.sum(mine * own_towards[None, :], axis=1)
        under = tl.sum(near * towards[None, None, :], axis=2) + of_own[:, None]
        score = tl.where(valid, tl.where(under > 0, under, under * slope), float("-inf"))
        highest = tl.max(score, axis=1)
        own_under = tl.zeros_like(of_own)
        if LOOPS:
            own_under = tl.sum(mine * towards[None, :], axis=1) + of_own
            own_score = tl.where(own_under > 0, own_under, own_under * slope)
            highest = tl.maximum(highest, own_score)
        # A list without entries, which only lists without loops may be, has no highest score.
        highest = tl.where(highest > float("-inf"), highest, 0)
        power = tl.exp(score - highest[:, None])
        if weights is not None:
            power *= tl.load(weights + e, mask=valid, other=0).to(NUMBER)
        total = tl.sum(power, axis=1)
        if LOOPS:
            own_power = tl.exp(own_score - highest)
            total += own_power
        part = tl.where(total > 0, 1 / tl.where(total > 0, total, 1), 0)
        power *= part[:, None]
        result = tl.sum(power[:, :, None] * near, axis=1)
        tl.store(shares + e.to(tl.int64) * HEADS + h, tl.where(under > 0, power, -power), mask=valid)
        if LOOPS:
            own_power *= part
            result += own_power[:, None] * mine
            at = own_shares + i.to(tl.int64) * HEADS + h
            tl.store(at, tl.where(own_under > 0, own_power, -own_power), mask=live)
        to = out + (tl.cast(h, tl.int64) * rows + i.to(tl.int64)) * more
        tl.store(to[:, None] + f[None, :], result.to(out.dtype.element_ty), mask=live[:, None] & (f < WIDTH)[None, :])
        for behind in tl.static_range(BEHIND):
            tl.store(to + WIDTH + behind, tl.full((BLOCK_R,), behind == 0, NUMBER).to(out.dtype.element_ty), mask=live)


@jit(do_not_specialize=["rows"])
def return_directions(
    indptr,
    indices,
    ids,
    x,
    grad,
    shares,
    own_shares,
    parts,
    rows,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    BEHIND: tl.constexpr,
    DIRECT: tl.constexpr,
    LOOPS: tl.constexpr,
    NUMBER: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """parts[p] [2 * HEADS, WIDTH] = the gradients of `directions` through the lists of TILES tiles of rows, from the
    gradient of `out` [HEADS, rows, WIDTH + BEHIND].
    """
    f, d = tl.arange(0, BLOCK_F), tl.arange(0, BLOCK_D)[None, :, None]
    slope = tl.full((1,), SLOPE, NUMBER)
    total = tl.zeros((BLOCK_R, BLOCK_D, BLOCK_F), NUMBER)
    more = WIDTH + BEHIND
    first = tl.program_id(0) * (TILES * BLOCK_R)
    last = tl.minimum(first + TILES * BLOCK_R, rows)
    while first < last:
        i = first + tl.arange(0, BLOCK_R)
        live = i < rows
        e, valid, near, mine = tile_of(
            indptr, indices, ids, x, i, f, rows, WIDTH, X_STRIDE, DIRECT, LOOPS, NUMBER, BLOCK_E
        )  # fmt: skip
        for h in tl.static_range(HEADS):
            at = grad + (tl.cast(h, tl.int64) * rows + i.to(tl.int64)) * more
            inside = live[:, None] & (f < WIDTH)[None, :]
            given = tl.load(at[:, None] + f[None, :], mask=inside, other=0).to(NUMBER)
            share = tl.load(shares + e.to(tl.int64) * HEADS + h, mask=valid, other=0).to(NUMBER)
            dot = tl.sum(near * given[:, None, :], axis=2)
            mean = tl.sum(tl.abs(share) * dot, axis=1)
            if LOOPS:
                own_share = tl.load(own_shares + i.to(tl.int64) * HEADS + h, mask=live, other=0).to(NUMBER)
                own_dot = tl.sum(mine * given, axis=1)
                mean += tl.abs(own_share) * own_dot
            # |share| times the leaky ReLU's derivative.
            of_edge = tl.where(share > 0, share, -share * slope) * (dot - mean[:, None])
            of_row = tl.sum(of_edge, axis=1)
            of_sources = tl.sum(of_edge[:, :, None] * near, axis=1)
            if LOOPS:
                of_loop = tl.where(own_share > 0, own_share, -own_share * slope) * (own_dot - mean)
                of_row += of_loop
                of_sources += of_loop[:, None] * mine
            total += tl.where(d == h, of_sources[:, None, :], 0)
            total += tl.where(d == HEADS + h, (of_row[:, None] * mine)[:, None, :], 0)
        first += BLOCK_R
    result = tl.sum(total, axis=0)
    row = tl.arange(0, BLOCK_D)
    to = parts + tl.program_id(0).to(tl.int64) * (2 * HEADS * WIDTH)
    at = to + row[:, None] * WIDTH + f[None, :]
    tl.store(at, result, mask=(row < 2 * HEADS)[:, None] & (f < WIDTH)[None, :])


@jit
def tile_of(
    indptr, indices, ids, x, i, f, rows, WIDTH: tl.constexpr, X_STRIDE: tl.constexpr, DIRECT: tl.constexpr,
    LOOPS: tl.constexpr, NUMBER: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """[rows, edges]: the edges of rows i, and which of them count; [rows, edges, columns]: the rows of x that they
    read; [rows, columns]: the rows' own.
    """
    live = i < rows
    start = tl.load(indptr + i, mask=live, other=0)
    stop = tl.load(indptr + i + 1, mask=live, other=0)
    me = i.to(tl.int64)
    if ids is not None:
        me = tl.load(ids + i, mask=live, other=0).to(tl.int64)
    e = start[:, None] + tl.arange(0, BLOCK_E)[None, :]
    valid = e < stop[:, None]
    j = tl.load(indices + e, mask=valid, other=0)
    if LOOPS:
        # A row is its own neighbour once, whether its list names it or not.
        valid &= j != (me if DIRECT else i)[:, None]
    row = j.to(tl.int64)
    if ids is not None and not DIRECT:
        row = tl.load(ids + j, mask=valid, other=0).to(tl.int64)
    read = valid[:, :, None] & (f < WIDTH)[None, None, :]
    near = tl.load((x + row * X_STRIDE)[:, :, None] + f[None, None, :], mask=read, other=0).to(NUMBER)
    held = live[:, None] & (f < WIDTH)[None, :]
    mine = tl.load((x + me * X_STRIDE)[:, None] + f[None, :], mask=held, other=0).to(NUMBER)
    return e, valid, near, mine
