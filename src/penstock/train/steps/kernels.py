"""Small kernels of captured training."""

import triton
import triton.language as tl


@triton.jit
def take_labels(
    labels, number, counts, weights, batch_size, out, share,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Copy the labels of one batch from those of the epoch, and each seed's weight in the mean loss; zero past the last
    seed.
    """
    rows = tl.program_id(0) * B + tl.arange(0, B)
    batch = tl.load(number).to(tl.int64)
    first = batch * batch_size
    held = rows < tl.load(counts + batch)
    column = tl.arange(0, COLUMNS)
    wanted = (column < WIDTH)[None, :] & (rows < batch_size)[:, None]
    values = tl.load(labels + (first + rows)[:, None] * WIDTH + column[None, :], mask=wanted & held[:, None], other=0)
    tl.store(out + rows[:, None] * WIDTH + column[None, :], values, mask=wanted)
    tl.store(share + rows, tl.where(held, tl.load(weights + batch), 0.0), mask=rows < batch_size)
