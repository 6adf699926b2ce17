"""Launches of the kernels that aggregate: which tile suits which rows, and what is absent."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.nn.device.lists import DeviceLists
from penstock.sampling.device.block import CHUNK
from penstock.traced import launches

_WARPS = 4
_THREADS = 32 * _WARPS


@dataclass(eq=False)
class Scale:
    """A factor of every row: values[i], or with `divides` 1 / values[i]; with `mean` also 1 / its list's length."""

    values: Tensor | None = None
    divides: bool = False
    mean: bool = False


@dataclass(eq=False)
class Own:
    """The rows' own term: scale[i] * rows[ids[i]]."""

    rows: Tensor
    scale: Tensor | None = None
    ids: Tensor | None = None


@dataclass(eq=False)
class KeptRows:
    """Numbers of a result that count, `scale` times: those where `positive` is. The others are zero."""

    positive: Tensor
    scale: float


def gather(
    lists: DeviceLists,
    x: Tensor,
    weights: Tensor | None = None,
    read: Scale | None = None,
    write: Scale | None = None,
    own: Own | None = None,
    ids: Tensor | None = None,
    read_lists: Tensor | None = None,
    winner: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    beside: bool = False,
    behind: int = 0,
    kept: KeptRows | None = None,
    direct: bool = False,
) -> Tensor:
    """write[i] * sum of weights[e] * read[j] * x[j] over the entries e = (j, i) of every list, + the rows' own term.

    `ids`: row j is x[ids[j]]. `read.mean` divides by lengths of `read_lists`. `winner`: only numbers that won count.
    `beside`: [rows, 2 * width + behind], behind every row x[i] itself, then a one and zeros. `kept` says which numbers
    of the result are. `direct`: the lists name rows of x, and `ids` only the rows' own.
    """
    x = _straight(x)
    width = x.shape[1]
    out = torch.empty(lists.rows, width * (1 + beside) + behind, dtype=out_dtype or x.dtype, device=x.device)
    partial = None
    if lists.chunks is not None and out.numel():
        partial = torch.empty(len(lists.chunks), width, dtype=_sum_dtype(x), device=x.device)
    lists_read = lists.indptr, lists.indices, lists.edges, weights, winner
    if not out.numel() or not launches(*lists_read, partial, out, rows=len(lists.indices), of=x):
        return out
    from penstock.nn.device import gather_kernels as kernels

    read, write, own_rows = read or Scale(), write or Scale(), None if own is None else _straight(own.rows)
    entries = (lists.indices, lists.edges, weights, read.values, read_lists if read.mean else None, winner, ids, x)
    sizes: dict[str, Any] = {"WIDTH": width, "X_STRIDE": x.stride(0), "READ_DIVIDES": read.divides, "CHUNK": CHUNK}
    sizes["NUMBER"] = _number(x)
    sizes["DIRECT"] = direct
    if partial is not None and lists.chunks is not None:
        columns = _columns(width)
        grid = (len(lists.chunks), -(-width // columns))
        tile: dict[str, Any] = {"BLOCK_E": 16, "BLOCK_F": columns, "num_warps": _WARPS}
        kernels.gather_chunks[grid](lists.chunks, *entries, partial, **sizes, **tile)
    tile = _tile(x, lists.mean_length)
    grid = (-(-lists.rows // tile["BLOCK_R"]), -(-width // tile["BLOCK_F"]))
    terms = (None, None, None, 0) if own is None else (own.scale, own.ids, own_rows, _count(own))
    kernels.gather_rows[grid](
        lists.indptr,
        *entries,
        write.values,
        *terms[:3],
        partial,
        None if kept is None else kept.positive,
        out,
        lists.rows,
        terms[3],
        **sizes,
        OWN_STRIDE=0 if own_rows is None else own_rows.stride(0),
        OUT_STRIDE=out.stride(0),
        BESIDE=beside,
        BEHIND=behind,
        KEPT_SCALE=1.0 if kept is None else kept.scale,
        WRITE_DIVIDES=write.divides,
        MEAN=write.mean,
        **tile,
    )
    return out


def gather_largest(lists: DeviceLists, x: Tensor) -> tuple[Tensor, Tensor]:
    """Each list's largest numbers, and the edges they came by (int32, -1 where a list is empty)."""
    x = _straight(x)
    out = torch.empty(lists.rows, x.shape[1], dtype=x.dtype, device=x.device)
    winner = torch.empty_like(out, dtype=torch.int32)
    if out.numel() and launches(lists.indptr, lists.indices, out, winner, rows=len(lists.indices), of=x):
        from penstock.nn.device import gather_kernels as kernels

        tile = _tile(x, lists.mean_length)
        grid = (-(-lists.rows // tile["BLOCK_R"]), -(-x.shape[1] // tile["BLOCK_F"]))
        sizes = {"WIDTH": x.shape[1], "X_STRIDE": x.stride(0), "NUMBER": _number(x)}
        kernels.gather_largest[grid](lists.indptr, lists.indices, x, out, winner, lists.rows, **sizes, **tile)
    return out, winner


def copy_rows(table: Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """[ids, width]: the table's rows in another type, in one pass."""
    table = _straight(table)
    out = torch.empty(len(ids), table.shape[1], dtype=dtype, device=table.device)
    if out.numel() and launches(ids, out, rows=len(ids), of=table):
        from penstock.nn.device import gather_kernels as kernels

        tile = _tile(table, 1)
        tile["BLOCK_R"] *= tile.pop("BLOCK_E") // 2
        grid = (-(-len(ids) // tile["BLOCK_R"]), -(-table.shape[1] // tile["BLOCK_F"]))
        sizes = {"WIDTH": table.shape[1], "X_STRIDE": table.stride(0)}
        kernels.copy_rows[grid](ids, table, out, len(ids), **sizes, **tile)
    return out


def _tile(x: Tensor, mean_length: float) -> dict[str, Any]:
    """A tile in which a thread reads 16 bytes at once, where rows allow it, and some 32 numbers before it adds them up.

    It takes as many edges of a list at once as a list has, between 4 and 16, and further rows where that is little.
    """
    width = x.shape[1]
    together = 16 // x.element_size()
    while width % together or x.stride(0) % together:
        together //= 2
    columns = _columns(width)
    edges = 4
    while edges < mean_length and edges < 64 // max(together, 4):
        edges *= 2
    rows = _THREADS * together * max(1, min(4, 32 // (edges * together))) // columns
    return {"BLOCK_E": edges, "BLOCK_R": max(1, min(64, rows)), "BLOCK_F": columns, "num_warps": _WARPS}


def _columns(width: int) -> int:
    """Columns of a tile: all of them up to 256, so that a list is mostly walked once."""
    return min(256, 1 << max(2, (width - 1).bit_length()))


def _count(own: Own) -> int:
    return len(own.rows if own.ids is None else own.ids)


def _straight(x: Tensor) -> Tensor:
    """Rows whose numbers lie side by side; rows may be further apart."""
    x = x.detach()
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _sum_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which sums are accumulated."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _number(x: Tensor) -> Any:
    """The type of sums, as Triton calls it."""
    import triton.language as tl

    return tl.float64 if x.dtype == torch.float64 else tl.float32
