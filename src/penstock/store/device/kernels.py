"""The kernels that gather rows, in Triton. Imported where a gather is launched, never at start-up."""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048
"""Values a program moves at a time: enough loads under way in each thread to cover the latency of the bus."""
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
    """`out[i] = table[ids[i]]`; `cache` is the hottest rows, a slot for each row of the table, and hits and reads.

    With `places`, int32 or int64, it is `out[places[i]]`. Columns of the table from `first` on are read, as many as
    `out` has.

    `order` is the numbers i, int64, in the order in which they are to be read; without it, as they come. Tables and
    `out` have two dimensions. Ids are trusted: at or beyond the table's end they are read as they are.

    With `turn`, one int32 that is 0, as many `programs` take rows in turns. A kernel that waits for the bus then leaves
    the rest of the device to others, and reads at few places of the table at a time. With `near`, rows that are not in
    the cache are left out: neither read nor written.
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
    """`keys[i]` becomes `ids[i]` where that is a row outside the cache, and the type's largest number elsewhere.

    `slots` is where in the cache each row of the table is, negative: it is not; None: there is no cache. Sorted, `keys`
    begin with the rows that are read from the table, in its order.
    """
    if len(ids):
        cold_kernel[(triton.cdiv(len(ids), _LISTED),)](
            ids, ids if count is None else count, ids if slots is None else slots, keys, len(ids),
            NONE=torch.iinfo(keys.dtype).max, CACHED=slots is not None, COUNTED=count is not None, B=_LISTED,
        )  # fmt: skip


def _plain(tensor: Tensor) -> Tensor:
    """Truth values as the bytes they are: a pointer to bits has no type to convert from."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


# The number of ids changes from launch to launch; a kernel compiled for a multiple of 16 would gain nothing.
@triton.jit(do_not_specialize=["asked"])
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
            # Ids behind the count mean nothing and are not even read.
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
                # From and to bfloat16 there is a way through float32 alone.
                if values.dtype.is_bf16() or out.dtype.element_ty.is_bf16():
                    values = values.to(tl.float32)
                values = values.to(out.dtype.element_ty)
            tl.store(target + column, values, mask=written[:, None] & real)
        if turn is not None:
            tile = tl.atomic_add(turn, 1)
        else:
            tile = tiles


@triton.jit(do_not_specialize=["asked"])
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
