"""Kernels of batch normalisation on a GPU, for rows of which the device alone knows how many are the batch's.

Sums over rows are made in parts of PART rows, which are then added in their order in float64, so that no result depends
on the order of programs. The normalisation itself is a part of `drop_kernels.drop_rows`.
"""

import triton.language as tl

from penstock.gpu_kernels import jit


@jit
def row_moments(
    rows,
    count,
    parts,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """parts[p] = the mean of every column over part p of the batch's rows, and the sum of squared distances to it.

    Distances are first taken to the part's first row, so that rows far from zero lose no precision.
    """
    first, stop, f, inside = part_of(count, WIDTH, PART, BLOCK_F)
    near = tl.load(rows + first * WIDTH + f, mask=inside & (first < stop), other=0).to(NUMBER)[None, :]
    total = tl.zeros((BLOCK_R, BLOCK_F), NUMBER)
    squares = tl.zeros((BLOCK_R, BLOCK_F), NUMBER)
    for step in range(0, PART, BLOCK_R):
        i = first + step + tl.arange(0, BLOCK_R)
        held = (i < stop)[:, None] & inside[None, :]
        value = tl.load(rows + i[:, None] * WIDTH + f[None, :], mask=held, other=0).to(NUMBER)
        value = tl.where(held, value - near, 0)
        total += value
        squares += value * value
    number = tl.maximum(stop - first, 1).to(NUMBER)
    away = tl.sum(total, axis=0) / number
    apart = tl.maximum(tl.sum(squares, axis=0) - number * away * away, 0)
    store_part(parts, f, inside, tl.sum(near, axis=0) + away, apart, WIDTH)


@jit
def gradient_sums(
    rows,
    grad,
    figures,
    count,
    parts,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """parts[p] = the sums of the gradients over part p of the batch's rows, and of gradients times standard rows."""
    first, stop, f, inside = part_of(count, WIDTH, PART, BLOCK_F)
    mean, scale = column_figures(figures, f, inside, WIDTH, NUMBER)
    of_bias = tl.zeros((BLOCK_R, BLOCK_F), NUMBER)
    of_weight = tl.zeros((BLOCK_R, BLOCK_F), NUMBER)
    for step in range(0, PART, BLOCK_R):
        i = first + step + tl.arange(0, BLOCK_R)
        held = (i < stop)[:, None] & inside[None, :]
        at = i[:, None] * WIDTH + f[None, :]
        given = tl.load(grad + at, mask=held, other=0).to(NUMBER)
        standard = (tl.load(rows + at, mask=held, other=0).to(NUMBER) - mean[None, :]) * scale[None, :]
        of_bias += given
        of_weight += given * standard
    store_part(parts, f, inside, tl.sum(of_bias, axis=0), tl.sum(of_weight, axis=0), WIDTH)


@jit
def part_of(count, WIDTH: tl.constexpr, PART: tl.constexpr, BLOCK_F: tl.constexpr):
    """The first row of this program's part and the row behind its last; its columns, and which of them there are."""
    first = tl.program_id(0).to(tl.int64) * PART
    stop = tl.minimum(first + PART, tl.maximum(tl.load(count).to(tl.int64), first))
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    return first, stop, f, f < WIDTH


@jit
def column_figures(figures, f, inside, WIDTH: tl.constexpr, NUMBER: tl.constexpr):
    """The mean of every column, and 1 / its standard deviation."""
    mean = tl.load(figures + f, mask=inside, other=0).to(NUMBER)
    return mean, tl.load(figures + WIDTH + f, mask=inside, other=0).to(NUMBER)


@jit
def store_part(parts, f, inside, first, second, WIDTH: tl.constexpr):
    """parts[p] = two numbers for every column."""
    at = parts + tl.program_id(0).to(tl.int64) * (2 * WIDTH) + f
    tl.store(at, first, mask=inside)
    tl.store(at + WIDTH, second, mask=inside)


@jit(do_not_specialize=["number"])
def settle_moments(
    parts,
    count,
    skip,
    running_mean,
    running_variance,
    batches,
    figures,
    number,
    MOMENTUM: tl.constexpr,
    EPS: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """figures = every column's mean and 1 / its standard deviation over `number` parts; running statistics move.

    A batch of fewer than two rows is normalised by the running statistics. These stay as they are then, and where the
    step is skipped.
    """
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside = f < WIDTH
    rows = tl.load(count).to(tl.int64)
    known = tl.maximum(rows, 1).to(tl.float64)
    sums = tl.zeros((BLOCK_P, BLOCK_F), tl.float64)
    start = 0
    while start < number:
        each, mean, _ = moments_of(parts, start, rows, number, f, inside, WIDTH, PART, BLOCK_P)
        sums += each * mean
        start += BLOCK_P
    centre = tl.sum(sums, axis=0) / known
    squares = tl.zeros((BLOCK_P, BLOCK_F), tl.float64)
    start = 0
    while start < number:
        each, mean, apart = moments_of(parts, start, rows, number, f, inside, WIDTH, PART, BLOCK_P)
        away = mean - centre[None, :]
        squares += apart + each * away * away
        start += BLOCK_P
    variance = tl.sum(squares, axis=0) / known
    before = tl.load(running_mean + f, mask=inside, other=0)
    variance_before = tl.load(running_variance + f, mask=inside, other=0)
    enough = rows > 1
    used = tl.where(enough, centre, before.to(tl.float64))
    spread = tl.where(enough, variance, variance_before.to(tl.float64))
    tl.store(figures + f, used.to(figures.dtype.element_ty), mask=inside)
    scale = 1 / tl.sqrt(spread + tl.full((1,), EPS, tl.float64))
    tl.store(figures + WIDTH + f, scale.to(figures.dtype.element_ty), mask=inside)
    moves = enough & (tl.load(skip) == 0)
    part = tl.full((1,), MOMENTUM, tl.float64)
    corrected = variance * known / tl.maximum(known - 1, 1)
    moved = before.to(tl.float64) * (1 - part) + part * centre
    moved_variance = variance_before.to(tl.float64) * (1 - part) + part * corrected
    tl.store(running_mean + f, moved.to(before.dtype), mask=inside & moves)
    tl.store(running_variance + f, moved_variance.to(before.dtype), mask=inside & moves)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + moves.to(tl.int64))


@jit
def moments_of(
    parts, start, rows, number, f, inside, WIDTH: tl.constexpr, PART: tl.constexpr, BLOCK_P: tl.constexpr
):  # fmt: skip
    """[parts, 1]: their numbers of rows; [parts, columns]: their means, and sums of squared distances."""
    p = start + tl.arange(0, BLOCK_P)
    each = tl.minimum(tl.maximum(rows - p.to(tl.int64) * PART, 0), PART).to(tl.float64)[:, None]
    mean, apart = two_of_parts(parts, p, number, f, inside, WIDTH)
    return each, mean, apart


@jit
def two_of_parts(parts, p, number, f, inside, WIDTH: tl.constexpr):
    """[parts, columns] twice: what parts p have for every column, in float64."""
    at = parts + p[:, None].to(tl.int64) * (2 * WIDTH) + f[None, :]
    held = (p < number)[:, None] & inside[None, :]
    first = tl.load(at, mask=held, other=0).to(tl.float64)
    return first, tl.load(at + WIDTH, mask=held, other=0).to(tl.float64)


@jit(do_not_specialize=["number"])
def add_parts(parts, out, number, WIDTH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_F: tl.constexpr):
    """out [2, columns] = the sums over `number` parts."""
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside = f < WIDTH
    of_bias = tl.zeros((BLOCK_P, BLOCK_F), tl.float64)
    of_weight = tl.zeros((BLOCK_P, BLOCK_F), tl.float64)
    start = 0
    while start < number:
        first, second = two_of_parts(parts, start + tl.arange(0, BLOCK_P), number, f, inside, WIDTH)
        of_bias += first
        of_weight += second
        start += BLOCK_P
    tl.store(out + f, tl.sum(of_bias, axis=0).to(out.dtype.element_ty), mask=inside)
    tl.store(out + WIDTH + f, tl.sum(of_weight, axis=0).to(out.dtype.element_ty), mask=inside)


@jit(do_not_specialize=["places"])
def return_rows(
    rows,
    grad,
    figures,
    weight,
    sums,
    count,
    out,
    places,
    WIDTH: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """The gradient of the rows before they were normalised; zeros behind the batch's own."""
    i = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    inside, amount = f < WIDTH, tl.load(count).to(tl.int64)
    mean, scale = column_figures(figures, f, inside, WIDTH, NUMBER)
    shift, stretch = column_figures(sums, f, inside, WIDTH, NUMBER)
    # Statistics of fewer than two rows were not those of the batch, and have no gradient.
    share = tl.where(amount > 1, 1 / tl.maximum(amount, 1).to(NUMBER), 0)
    factor = tl.load(weight + f, mask=inside, other=0).to(NUMBER) * scale
    at = i[:, None] * WIDTH + f[None, :]
    held = (i < amount)[:, None] & inside[None, :]
    given = tl.load(grad + at, mask=held, other=0).to(NUMBER)
    standard = (tl.load(rows + at, mask=held, other=0).to(NUMBER) - mean[None, :]) * scale[None, :]
    result = (given - (standard * stretch[None, :] + shift[None, :]) * share) * factor[None, :]
    written = (i < places)[:, None] & inside[None, :]
    tl.store(out + at, tl.where(held, result, 0).to(out.dtype.element_ty), mask=written)
