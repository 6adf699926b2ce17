"""The kernels that gather rows, step learnable ones and take labels, in Triton. Imported where one is launched."""

# mypy: disable-error-code="no-untyped-def"
import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.gpu_kernels import jit
from penstock.store.embedding import ADAGRAD_EPSILON, BETA_1, BETA_2, EPSILON

# The kernels that gather rows, in Triton. Imported where a gather is launched, never at start-up.

_TILE = 2048
"""Values that a program moves at a time: enough loads in flight per thread to cover the latency of the bus."""
_WIDEST = 1024
_LISTED = 1024
"""Ids that a program looks up in the cache."""


def launch_gather(
    table: Tensor,
    ids: Tensor,
    out: Tensor,
    count: Tensor | None,
    order: Tensor | None = None,
    cache: tuple[Tensor, Tensor, Tensor] | None = None,
    places: Tensor | None = None,
    first: int = 0,
    turn: Tensor | None = None,
    programs: int = 0,
    near: bool = False,
) -> None:
    """`out[i] = table[ids[i]]`; `cache` is the cached rows, a slot for each row of the table, and hits and reads.

    With `places`, int32 or int64, it is `out[places[i]]`. Columns of the table from `first` on are read, as many as
    `out` has.

    `order` has the numbers i, int64, in the order in which they are read. Tables and `out` have two dimensions. Ids are
    not checked: those past the table's end read out of bounds.

    With `turn`, one int32 that is 0, so many `programs` take rows in turns. A kernel that waits for the bus then leaves
    the rest of the device to others, and reads few places of the table at a time. With `near`, uncached rows are
    neither read nor written.
    """
    width = out.shape[1]
    if not len(ids) or not width:
        return
    columns = min(triton.next_power_of_2(width), _WIDEST)
    rows = _TILE // columns
    hot, slots, tally = cache or (table, ids, ids)
    tiles = triton.cdiv(len(ids), rows)
    gather_kernel[(tiles if turn is None else min(tiles, programs),)](
        _plain(table),
        _plain(hot),
        slots,
        tally,
        ids,
        ids if count is None else count,
        order,
        places,
        turn,
        _plain(out),
        len(ids),
        LINE=table.shape[1],
        FIRST=first,
        WIDTH=width,
        STRIDE=out.stride(0),
        ROWS=rows,
        COLUMNS=columns,
        CACHED=cache is not None,
        COUNTED=count is not None,
        NEAR=near,
    )


def list_cold(ids: Tensor, keys: Tensor, count: Tensor | None, slots: Tensor | None) -> None:
    """`keys[i]` becomes `ids[i]` where that is an uncached row, and the type's largest number elsewhere.

    `slots` has each row's slot in the cache, negative if it has none; None: there is no cache. Sorted, `keys` begin
    with the rows that are read from the table, in its order.
    """
    if len(ids):
        cold_kernel[(triton.cdiv(len(ids), _LISTED),)](
            ids, ids if count is None else count, ids if slots is None else slots, keys, len(ids),
            NONE=torch.iinfo(keys.dtype).max, CACHED=slots is not None, COUNTED=count is not None, B=_LISTED,
        )  # fmt: skip


def _plain(tensor: Tensor) -> Tensor:
    """Booleans as bytes, since Triton cannot convert from pointers to bits."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


# The number of ids changes from launch to launch; a kernel compiled for a multiple of 16 would gain nothing.
@jit(do_not_specialize=["asked"])
def gather_kernel(
    table,
    hot,
    slots,
    tally,
    ids,
    count,
    order,
    places,
    turn,
    out,
    asked,
    LINE: tl.constexpr,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CACHED: tl.constexpr,
    COUNTED: tl.constexpr,
    NEAR: tl.constexpr,
):
    tiles = tl.cdiv(asked, ROWS)
    tile = tl.program_id(0)
    if turn is not None:
        tile = tl.atomic_add(turn, 1)
    while tile < tiles:
        place = tile * ROWS + tl.arange(0, ROWS)
        inside = place < asked
        if order is not None:
            place = tl.load(order + place, mask=inside, other=0)
        meant = inside
        if COUNTED:
            # Ids past the count are undefined and not read.
            meant = inside & (place < tl.load(count))
        row = tl.load(ids + place, mask=meant, other=-1).to(tl.int64)
        cold = row >= 0
        if CACHED:
            slot = tl.load(slots + row, mask=cold, other=-1).to(tl.int64)
            warm = slot >= 0
            hits, reads = tl.sum(warm.to(tl.int64), 0), tl.sum(cold.to(tl.int64), 0)
            which = tl.arange(0, 2)
            tl.atomic_add(tally + which, tl.where(which == 0, hits, reads), sem="relaxed")
            cold = cold & (slot < 0)
        if places is not None:
            place = tl.load(places + place, mask=inside, other=0)
        written = inside
        if NEAR:
            written = inside & (cold == 0)
            cold = cold & (cold == 0)
        target = out + place.to(tl.int64)[:, None] * STRIDE
        for first in tl.static_range(0, WIDTH, COLUMNS):
            column = first + tl.arange(0, COLUMNS)[None, :]
            real = column < WIDTH
            values = tl.load(table + row[:, None] * LINE + FIRST + column, mask=cold[:, None] & real, other=0)
            if CACHED:
                near = tl.load(hot + slot[:, None] * LINE + FIRST + column, mask=warm[:, None] & real, other=0)
                values = tl.where(warm[:, None], near, values)
            if values.dtype != out.dtype.element_ty:
                # bfloat16 is converted through float32 only.
                if values.dtype.is_bf16() or out.dtype.element_ty.is_bf16():
                    values = values.to(tl.float32)
                values = values.to(out.dtype.element_ty)
            tl.store(target + column, values, mask=written[:, None] & real)
        if turn is not None:
            tile = tl.atomic_add(turn, 1)
        else:
            tile = tiles


@jit(do_not_specialize=["asked"])
def cold_kernel(
    ids,
    count,
    slots,
    keys,
    asked,
    NONE: tl.constexpr,
    CACHED: tl.constexpr,
    COUNTED: tl.constexpr,
    B: tl.constexpr,
):
    place = tl.program_id(0) * B + tl.arange(0, B)
    inside = place < asked
    meant = inside
    if COUNTED:
        meant = inside & (place < tl.load(count))
    row = tl.load(ids + place, mask=meant, other=-1)
    cold = row >= 0
    if CACHED:
        slot = tl.load(slots + row, mask=cold, other=0)
        cold = cold & (slot < 0)
    tl.store(keys + place, tl.where(cold, row, NONE), mask=inside)


# One optimiser step on rows of a table on a device, in one kernel that also sums gradients of equal rows. Rows that are
# read several times in a batch need not be made unique first: `order` sorts the reads by row, and the first read of a
# row does the row's step. Sums are in that order, so results are the same in every run.

_COLUMNS = 1024
"""The most columns that a program moves."""


def launch_row_steps(
    table: list[Tensor],
    ids: Tensor,
    order: Tensor | None,
    dense: Tensor | None,
    given: Tensor,
    rate: Tensor,
    alone: int = 0,
) -> None:
    """A step on a table: rows, then the moments of Adam (two) or Adagrad (one).

    `ids` are the rows that were read, ascending or all different; those at or past the table's end do not count.
    `order` maps each to its gradient, None to that in the same place: first the rows of `dense`, if there is one, then
    those of `given`. Without `dense`, the first `alone` of them are rows without a gradient, which take the step all
    the same. `rate` is one number on the device, with Adam's bias correction included.
    """
    rows, width = table[0], table[0].shape[1]
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    first_rows = alone if dense is None else len(dense)
    _step_rows[(len(ids), -(-width // columns))](
        rows, table[1], table[-1], ids, order, len(ids), given if dense is None else dense, first_rows, given, rate,
        len(rows), WIDTH=width, DENSE=dense is not None, ADAM=len(table) == 3, BETA_1=BETA_1, BETA_2=BETA_2,
        EPSILON=EPSILON if len(table) == 3 else ADAGRAD_EPSILON, B=columns, **_unfused(),
    )  # fmt: skip


def _unfused() -> dict[str, bool]:
    """The launch option that keeps products and sums apart, so that they are rounded as on the host; the interpreter
    has none.
    """
    return {} if triton.knobs.runtime.interpret else {"enable_fp_fusion": False}


@jit
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
    """The step of one row, and some of its columns, by the program of its first read.

    Each operation is rounded as `store.embedding` rounds it on the host, so that equal gradients give equal bits.
    """
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
            at = tl.cast(q, tl.int64)
            if order is not None:
                at = tl.load(order + q).to(tl.int64)
            if DENSE:
                g += tl.load(dense + at * WIDTH + c, mask=held & (at < dense_rows), other=0.0)
            g += tl.load(given + (at - dense_rows) * WIDTH + c, mask=held & (at >= dense_rows), other=0.0)
            q += 1
            more = tl.load(ids + q, mask=q < count, other=-1).to(tl.int64) == row
        place = row * WIDTH + c
        value = tl.load(rows + place, mask=held, other=0.0)
        speed = tl.load(rate)
        least = tl.full((B,), EPSILON, tl.float32)
        if ADAM:
            one = tl.full((B,), 1.0, tl.float32)
            mean = tl.load(first + place, mask=held, other=0.0)
            mean += (one - tl.full((B,), BETA_1, tl.float32)) * (g - mean)
            tl.store(first + place, mean, mask=held)
            square = tl.load(second + place, mask=held, other=0.0)
            square += (one - tl.full((B,), BETA_2, tl.float32)) * (g * g - square)
            value -= tl.div_rn(speed * mean, tl.sqrt_rn(square) + least)
        else:
            square = tl.load(second + place, mask=held, other=0.0)
            square += g * g
            value -= tl.div_rn(speed * g, tl.sqrt_rn(square) + least)
        tl.store(second + place, square, mask=held)
        tl.store(rows + place, value, mask=held)


# The labels of a batch, for captured training.


@jit
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
