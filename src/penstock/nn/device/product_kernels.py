"""A product of many rows with a weight on a GPU, and what would otherwise be a pass of its own over its result."""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.nn.device.drop_kernels import drawn_key, kept_columns


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
    i = tl.program_id(0) // TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    first = tl.program_id(0) % TILES * BLOCK_N
    f, k = first + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    live, wide = i < rows, f < WIDTH
    of_x = (x + i.to(tl.int64) * X_STRIDE)[:, None] + k[None, :]
    of_weight = (weight + f * INNER)[None, :] + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), NUMBER)
    for step in tl.range(0, INNER, BLOCK_K):
        inside = step + k < INNER
        left = tl.load(of_x + step, mask=live[:, None] & inside[None, :], other=0)
        right = tl.load(of_weight + step, mask=wide[None, :] & inside[:, None], other=0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    at = (i.to(tl.int64) * (WIDTH + BEHIND))[:, None] + f[None, :]
    written = live[:, None] & wide[None, :]
    if own is not None:
        of_own = own + (i.to(tl.int64) * WIDTH)[:, None] + f[None, :]
        total += tl.load(of_own, mask=written & (i < own_rows)[:, None], other=0).to(NUMBER)
    if RECTIFIES:
        total = tl.maximum(total, 0)
        if LIMIT < 65536:
            named = drawn_key(key, call, low, high)
            kept = kept_columns(named, names, i, live, first + 0 * i, LIMIT, WIDTH, BLOCK_M, BLOCK_N)
            total = tl.where(kept, total * tl.full((1, 1), SCALE, NUMBER), 0)
    if positive is not None:
        passes = tl.load(positive + at, mask=written, other=0) > 0
        total = tl.where(passes, total * tl.full((1, 1), SCALE, NUMBER), 0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=written)
    if BEHIND:  # noqa: SIM102 - the outer condition is the compiler's
        if first == 0:
            more = tl.arange(0, BEHIND)[None, :]
            number = tl.where(more == 0, FIRST_BEHIND, 0.0) + tl.zeros((BLOCK_M, BEHIND), tl.float32)
            to = out + (i.to(tl.int64) * (WIDTH + BEHIND) + WIDTH)[:, None] + more
            tl.store(to, number.to(out.dtype.element_ty), mask=live[:, None] & (more >= 0))
