"""A product of many rows with a weight on a GPU, and what would otherwise be a pass of its own over its result; the
joined weights that it reads, and the losses of the last product's rows.
"""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.nn.device.drop_kernels import drawn_key, kept_groups


@jit(do_not_specialize=["call", "low", "high", "rows", "own_rows"])
def product_rows(
    x,
    weight,
    names,
    key,
    call,
    low,
    high,
    own,
    positive,
    out,
    rows,
    own_rows,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    X_STRIDE: tl.constexpr,
    BEHIND: tl.constexpr,
    FIRST_BEHIND: tl.constexpr,
    RECTIFIES: tl.constexpr,
    LIMIT: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    NUMBER: tl.constexpr,
    WARPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out [rows, WIDTH + BEHIND] = x [rows, INNER] times the transposed weight [WIDTH, INNER], then FIRST_BEHIND and
    zeros.

    With RECTIFIES, SCALE * max(out, 0) where dropout keeps a value (`drop_rows`), else 0. `own` [.., WIDTH] is added to
    the first rows. With `positive`, whose rows are as long as those of `out`, SCALE * out where that is positive, else
    0.
    """
    # Programs that read the same rows follow each other.
    TILES: tl.constexpr = (WIDTH + BLOCK_N - 1) // BLOCK_N
    # A thread of Hopper's tensor cores gets pairs of columns, each pair 8 columns behind the last, of two rows that are
    # 8 apart. The tile's rows and columns are therefore given to it in another order (`order_of_columns`), in which a
    # thread's pairs are the columns that it can write at once. Whatever follows the product then happens where the
    # results are, and they are not brought into order through shared memory.
    EACH: tl.constexpr = min(128 // out.dtype.element_ty.primitive_bitwidth, BLOCK_N // 4)
    GROUP: tl.constexpr = 4 * EACH
    GROUPS: tl.constexpr = BLOCK_N // GROUP
    HALVES: tl.constexpr = 2 if BLOCK_M % (16 * WARPS) == 0 else 1
    BY_WARP: tl.constexpr = WARPS if BLOCK_M % (16 * WARPS) == 0 else BLOCK_M // 8
    ABOVE: tl.constexpr = BLOCK_M // (8 * HALVES * BY_WARP)
    begin, first = tl.program_id(0) // TILES * BLOCK_M, tl.program_id(0) % TILES * BLOCK_N
    k = tl.arange(0, BLOCK_K)
    i, f = begin + order_of_rows(BLOCK_M, HALVES, BY_WARP), first + order_of_columns(BLOCK_N, EACH)
    of_x = (x + i.to(tl.int64) * X_STRIDE)[:, None] + k[None, :]
    of_weight = (weight + f * INNER)[None, :] + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), NUMBER)
    for step in tl.range(0, INNER, BLOCK_K):
        inside = step + k < INNER
        left = tl.load(of_x + step, mask=(i < rows)[:, None] & inside[None, :], other=0)
        right = tl.load(of_weight + step, mask=(f < WIDTH)[None, :] & inside[:, None], other=0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    total = tl.reshape(total, [ABOVE, BY_WARP, HALVES, 8, GROUPS, EACH // 2, 4, 2])
    total = tl.reshape(tl.permute(total, (0, 2, 1, 3, 4, 6, 5, 7)), [BLOCK_M, GROUPS, GROUP])
    i = begin + tl.arange(0, BLOCK_M)
    f = (first + GROUP * tl.arange(0, GROUPS))[:, None] + tl.arange(0, GROUP)[None, :]
    at = (i.to(tl.int64) * (WIDTH + BEHIND))[:, None, None] + f[None, :, :]
    written = (i < rows)[:, None, None] & (f < WIDTH)[None, :, :]
    if own is not None:
        of_own = own + (i.to(tl.int64) * WIDTH)[:, None, None] + f[None, :, :]
        total += tl.load(of_own, mask=written & (i < own_rows)[:, None, None], other=0).to(NUMBER)
    if RECTIFIES:
        total = tl.maximum(total, 0)
        if LIMIT < 65536:
            named = drawn_key(key, call, low, high)
            kept = kept_groups(named, names, i, i < rows, first, LIMIT, WIDTH, BLOCK_M, GROUPS, GROUP)
            total = tl.where(kept, total * tl.full((1, 1, 1), SCALE, NUMBER), 0)
    if positive is not None:
        passes = tl.load(positive + at, mask=written, other=0) > 0
        total = tl.where(passes, total * tl.full((1, 1, 1), SCALE, NUMBER), 0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=written)
    if BEHIND:  # noqa: SIM102 - the outer condition is the compiler's
        if first == 0:
            more = tl.arange(0, BEHIND)[None, :]
            number = tl.where(more == 0, FIRST_BEHIND, 0.0) + tl.zeros((BLOCK_M, BEHIND), tl.float32)
            to = out + (i.to(tl.int64) * (WIDTH + BEHIND) + WIDTH)[:, None] + more
            tl.store(to, number.to(out.dtype.element_ty), mask=(i < rows)[:, None] & (more >= 0))


@jit
def order_of_rows(ROWS: tl.constexpr, HALVES: tl.constexpr, WARPS: tl.constexpr):
    """[ROWS]: the rows of a tile, 8 of each warp after another, and behind those the second 8 of each warp."""
    m = tl.arange(0, ROWS)
    above, half, warp = m // (8 * HALVES * WARPS), m // 8 % HALVES, m // (8 * HALVES) % WARPS
    return ((above * HALVES + half) * WARPS + warp) * 8 + m % 8


@jit
def order_of_columns(COLUMNS: tl.constexpr, EACH: tl.constexpr):
    """[COLUMNS]: the columns of a tile in groups of 4 * EACH, in which pairs EACH columns apart follow each other."""
    n = tl.arange(0, COLUMNS)
    return n // (4 * EACH) * (4 * EACH) + n // 2 % 4 * EACH + n // 8 % (EACH // 2) * 2 + n % 2


# Several weights as the columns of one.


@jit(do_not_specialize=["one", "two", "three", "width", "numbers"])
def join_columns(first, second, third, out, one, two, three, width, numbers, BLOCK: tl.constexpr):
    """out [.., width] = the columns of three matrices of `one`, `two` and `three` columns, of which the last two may be
    missing, and zeros.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, f = at // width, at % width
    result = tl.load(first + row * one + f, mask=(at < numbers) & (f < one), other=0)
    if second is not None:
        f -= one
        here = (at < numbers) & (f >= 0) & (f < two)
        result = tl.where(here, tl.load(second + row * two + f, mask=here, other=0), result)
    if third is not None:
        f -= two
        here = (at < numbers) & (f >= 0) & (f < three)
        result = tl.where(here, tl.load(third + row * three + f, mask=here, other=0), result)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=at < numbers)


@jit(do_not_specialize=["one", "two", "three", "width", "numbers"])
def part_columns(given, first, second, third, one, two, three, width, numbers, BLOCK: tl.constexpr):
    """The columns of given [.., width], written to the matrices that `join_columns` reads."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, f = at // width, at % width
    number = tl.load(given + at, mask=at < numbers, other=0)
    tl.store(first + row * one + f, number.to(first.dtype.element_ty), mask=(at < numbers) & (f < one))
    if second is not None:
        f -= one
        here = (at < numbers) & (f >= 0) & (f < two)
        tl.store(second + row * two + f, number.to(second.dtype.element_ty), mask=here)
    if third is not None:
        f -= two
        here = (at < numbers) & (f >= 0) & (f < three)
        tl.store(third + row * three + f, number.to(third.dtype.element_ty), mask=here)


# The cross entropy of each row.


@jit(do_not_specialize=["rows"])
def class_losses(
    x, labels, weights, out, logs, rows, WIDTH: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    """out[i] = the weight of row i's label times logs[i] - x[i, label], where logs[i] = log(sum of exp(x[i])); 0 for a
    negative label.
    """
    i, c = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    label = tl.load(labels + i, mask=i < rows, other=-1)
    read = (i < rows)[:, None] & (c < WIDTH)[None, :]
    scores = tl.load(x + i[:, None] * WIDTH + c[None, :], mask=read, other=float("-inf")).to(tl.float32)
    scores = tl.where((i < rows)[:, None], scores, 0)
    top = tl.max(scores, axis=1)
    log = tl.log(tl.sum(tl.exp(scores - top[:, None]), axis=1)) + top
    chosen = tl.sum(tl.where(c[None, :] == label[:, None], scores, 0), axis=1)
    loss = log - chosen
    if weights is not None:
        loss *= tl.load(weights + label, mask=label >= 0, other=0)
    tl.store(out + i, tl.where(label >= 0, loss, 0), mask=i < rows)
    tl.store(logs + i, log, mask=i < rows)


@jit(do_not_specialize=["rows"])
def class_gradients(
    x, labels, weights, logs, grad, out, rows, WIDTH: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    """out = the gradient of x, where grad[i] is that of row i's loss."""
    i, c = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    label = tl.load(labels + i, mask=i < rows, other=-1)
    read = (i < rows)[:, None] & (c < WIDTH)[None, :]
    at = i[:, None] * WIDTH + c[None, :]
    scores = tl.load(x + at, mask=read, other=float("-inf")).to(tl.float32)
    given = tl.load(grad + i, mask=label >= 0, other=0)
    if weights is not None:
        given *= tl.load(weights + label, mask=label >= 0, other=0)
    log = tl.load(logs + i, mask=i < rows, other=0)
    result = tl.exp(scores - log[:, None]) - tl.where(c[None, :] == label[:, None], 1.0, 0.0)
    tl.store(out + at, (given[:, None] * result).to(out.dtype.element_ty), mask=read)
