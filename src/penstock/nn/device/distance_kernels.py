"""Kernels of distances between rows on a GPU: sums of |q - c|, of real numbers or of complex ones.

Tiles are [left rows, right rows, columns]: sums over columns, or over right rows, stay in registers until the end.
COMPLEX rows have their real parts in the first HALF columns and their imaginary parts after them; others have HALF
columns. Groups of rows are concatenated, and only rows of the same group are compared.
"""

import triton.language as tl

from penstock.gpu_kernels import jit


@jit
def distances(
    left,
    right,
    out,
    left_count,
    right_count,
    HALF: tl.constexpr,
    COMPLEX: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """out[g, i, j] = the distance between left[g, i] and right[g, j]."""
    WIDTH: tl.constexpr = 2 * HALF if COMPLEX else HALF
    tiles = (left_count + BLOCK_L - 1) // BLOCK_L
    group = (tl.program_id(0) // tiles).to(tl.int64)
    i = (tl.program_id(0) % tiles) * BLOCK_L + tl.arange(0, BLOCK_L)
    j = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    near, far = i < left_count, j < right_count
    own = left + (group * left_count + i) * WIDTH
    other = right + (group * right_count + j) * WIDTH
    total = tl.zeros((BLOCK_L, BLOCK_R, BLOCK_C), tl.float32)
    start = 0
    while start < HALF:
        c = start + tl.arange(0, BLOCK_C)
        x = difference(own, other, c, near, far, HALF)
        if COMPLEX:
            y = difference(own + HALF, other + HALF, c, near, far, HALF)
            total += tl.sqrt(x * x + y * y)
        else:
            total += tl.abs(x)
        start += BLOCK_C
    place = out + (group * left_count + i[:, None]) * right_count + j[None, :]
    tl.store(place, tl.sum(total, axis=2), mask=near[:, None] & far[None, :])


@jit
def gradients(
    left,
    right,
    given,
    out,
    left_count,
    right_count,
    left_step,
    right_step,
    HALF: tl.constexpr,
    COMPLEX: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """out[g, i] = the sum over j of the gradient of a distance with respect to left[g, i], times given[g, i, j].

    given[g, i, j] is at g * left_count * right_count + i * left_step + j * right_step.
    """
    WIDTH: tl.constexpr = 2 * HALF if COMPLEX else HALF
    tiles = (left_count + BLOCK_L - 1) // BLOCK_L
    group = (tl.program_id(0) // tiles).to(tl.int64)
    i = (tl.program_id(0) % tiles) * BLOCK_L + tl.arange(0, BLOCK_L)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    near, valid = i < left_count, c < HALF
    own = left + (group * left_count + i) * WIDTH
    of_x = tl.zeros((BLOCK_L, BLOCK_R, BLOCK_C), tl.float32)
    of_y = tl.zeros((BLOCK_L, BLOCK_R, BLOCK_C), tl.float32)
    start = 0
    while start < right_count:
        j = start + tl.arange(0, BLOCK_R)
        far = j < right_count
        other = right + (group * right_count + j) * WIDTH
        place = group * left_count * right_count + i[:, None] * left_step + j[None, :] * right_step
        scale = tl.load(given + place, mask=near[:, None] & far[None, :], other=0.0)[:, :, None]
        x = difference(own, other, c, near, far, HALF)
        if COMPLEX:
            y = difference(own + HALF, other + HALF, c, near, far, HALF)
            slope = scale / tl.sqrt(x * x + y * y + 1e-30)
            of_x += slope * x
            of_y += slope * y
        else:
            of_x += tl.where(x > 0, scale, tl.where(x < 0, -scale, 0.0))
        start += BLOCK_R
    place = out + (group * left_count + i[:, None]) * WIDTH + c[None, :]
    mask = near[:, None] & valid[None, :]
    tl.store(place, tl.sum(of_x, axis=1), mask=mask)
    if COMPLEX:
        tl.store(place + HALF, tl.sum(of_y, axis=1), mask=mask)


@jit
def difference(own, other, c, near, far, HALF: tl.constexpr):
    """[left rows, right rows, columns]: differences of rows that begin at `own` and `other`; zero outside of them."""
    valid = c < HALF
    a = tl.load(own[:, None] + c[None, :], mask=near[:, None] & valid[None, :], other=0.0)
    b = tl.load(other[:, None] + c[None, :], mask=far[:, None] & valid[None, :], other=0.0)
    return a[:, None, :] - b[None, :, :]
