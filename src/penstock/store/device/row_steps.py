"""One optimiser step on rows of a table on a device, in one kernel: gradients of equal rows are added up in it.

Whoever reads rows several times in a batch need not number them first: `order` sorts the reads by row, and the first
read of a row does the row's step. Sums go in that order, so results are the same in every run.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from penstock.store.embedding import ADAGRAD_EPSILON, BETA_1, BETA_2, EPSILON

_COLUMNS = 1024
"""The most columns that a program moves."""


def launch_row_steps(
    table: list[Tensor], ids: Tensor, order: Tensor, dense: Tensor | None, given: Tensor, rate: Tensor, alone: int = 0
) -> None:
    """A step on a table: rows, then the moments of Adam (two) or Adagrad (one).

    `ids` are the rows that were read, ascending; at or beyond the table's end they do not count. `order` says which
    gradient belongs to each: first the rows of `dense`, if there is one, then those of `given`. Without `dense`, the
    first `alone` of them are rows without a gradient, which take the step all the same. `rate` is one number on the
    device, with Adam's correction in it.
    """
    rows, width = table[0], table[0].shape[1]
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    first_rows = alone if dense is None else len(dense)
    _step_rows[(len(ids), -(-width // columns))](
        rows, table[1], table[-1], ids, order, len(ids), given if dense is None else dense, first_rows, given, rate,
        len(rows), WIDTH=width, DENSE=dense is not None, ADAM=len(table) == 3, BETA_1=BETA_1, BETA_2=BETA_2,
        EPSILON=EPSILON if len(table) == 3 else ADAGRAD_EPSILON, B=columns,
    )  # fmt: skip


@triton.jit
def _step_rows(
    rows,
    first,
    second,
    ids,
    order,
    count,
    dense,
    dense_rows,
    given,
    rate,
    table_rows,
    WIDTH: tl.constexpr,
    DENSE: tl.constexpr,
    ADAM: tl.constexpr,
    BETA_1: tl.constexpr,
    BETA_2: tl.constexpr,
    EPSILON: tl.constexpr,
    B: tl.constexpr,
):
    """The step of one row, and some of its columns, by the program of its first read."""
    p = tl.program_id(0)
    row = tl.load(ids + p).to(tl.int64)
    before = tl.load(ids + p - 1, mask=p > 0, other=-1).to(tl.int64)
    if (row != before) & (row < table_rows):
        c = tl.program_id(1) * B + tl.arange(0, B)
        held = c < WIDTH
        g = tl.zeros((B,), tl.float32)
        q = p
        more = row == row
        while more:
            at = tl.load(order + q).to(tl.int64)
            if DENSE:
                g += tl.load(dense + at * WIDTH + c, mask=held & (at < dense_rows), other=0.0)
            g += tl.load(given + (at - dense_rows) * WIDTH + c, mask=held & (at >= dense_rows), other=0.0)
            q += 1
            more = tl.load(ids + q, mask=q < count, other=-1).to(tl.int64) == row
        place = row * WIDTH + c
        value = tl.load(rows + place, mask=held, other=0.0)
        speed = tl.load(rate)
        if ADAM:
            mean = tl.load(first + place, mask=held, other=0.0)
            mean += (1 - BETA_1) * (g - mean)
            tl.store(first + place, mean, mask=held)
            square = tl.load(second + place, mask=held, other=0.0)
            square += (1 - BETA_2) * (g * g - square)
            value -= speed * mean / (tl.sqrt(square) + EPSILON)
        else:
            square = tl.load(second + place, mask=held, other=0.0)
            square += g * g
            value -= speed * g / (tl.sqrt(square) + EPSILON)
        tl.store(second + place, square, mask=held)
        tl.store(rows + place, value, mask=held)
