"""Launches of the aggregation kernels, over a block's lists and from rows in place."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.sampling.device.block import CHUNK, DeviceBlock, SourceLists
from penstock.traced import launches, skips_kernels

# A block's lists as kernels read them: transposed, with self loops, cut into chunks. Nothing here waits for the device:
# shapes come from the block's room, never from its contents.

_LANES = 256
"""Searches of one program."""


@dataclass(eq=False)
class DeviceLists:
    """The lists that a kernel reads: `edges`, where given, are the positions of a list's entries in the block.

    `chunks[c]` is the row whose long list contains all of chunk c, or -1; None where no list can be long.
    """

    indptr: Tensor
    indices: Tensor
    edges: Tensor | None = None
    chunks: Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of lists, which is that of output rows."""
        return len(self.indptr) - 1

    @property
    def mean_length(self) -> float:
        """The room for entries, per list."""
        return len(self.indices) / max(1, self.rows)


def destination_lists(block: DeviceBlock) -> DeviceLists:
    """The block's own lists. `derived["longest"]`, where a sampler knows a bound on their length, saves a search."""
    indptr, indices = block.lists, _tensor(block.indices)
    short = block.derived.get("longest", len(indices)) <= 2 * CHUNK
    if not short and "chunks" not in block.derived:
        block.derived["chunks"] = _chunks(indptr, len(indices))
    return DeviceLists(indptr, indices, None, None if short else block.derived["chunks"])


def listed_by_source(block: DeviceBlock, rows: int) -> DeviceLists:
    """The lists of `rows` source rows, for gathering gradients."""
    found = source_lists(block, rows)
    return DeviceLists(found.indptr, found.indices, found.edges, block.derived["source_chunks"])


def source_lists(block: DeviceBlock, rows: int) -> SourceLists:
    """The transposed lists of `rows` source rows: a stable sort of its edges by source. Cached in the block.

    A sampler may request it ahead, on its own stream.
    """
    found = block.derived.get("sources")
    if isinstance(found, SourceLists) and len(found.indptr) == rows + 1 and "source_chunks" in block.derived:
        return found
    made = _turn_round(block, rows)
    long = len(made.indices) > 2 * CHUNK
    block.derived["sources"] = made
    block.derived["source_chunks"] = _chunks(made.indptr, len(made.indices)) if long else None
    return made


def looped(block: DeviceBlock) -> DeviceBlock:
    """The block in which every destination reads itself once, after its neighbours; it has room for all of them.

    Rows past the batch's own read themselves too; their sums are not used.
    """
    found = block.derived.get("looped")
    if found is None:
        found = block.derived["looped"] = _add_self_loops(block)
    return cast(DeviceBlock, found)


def _turn_round(block: DeviceBlock, rows: int) -> SourceLists:
    indptr, indices = block.lists, _tensor(block.indices)
    places, targets = len(indices), block.num_dst
    keys = torch.empty(places, dtype=torch.int32, device=indices.device)
    if launches(indptr, indices, keys):
        from penstock.nn.device import gather_kernels as kernels

        kernels.source_keys[(-(-places // _LANES),)](indptr, indices, keys, targets, rows, places, BLOCK=_LANES)
    keys, order = torch.sort(keys, stable=True)
    made = SourceLists(
        torch.empty(rows + 1, dtype=torch.int32, device=keys.device), torch.empty_like(keys), torch.empty_like(keys)
    )
    sizes = targets, rows, places, (targets + 1).bit_length(), places.bit_length()
    grid = (-(-max(places, rows + 1) // _LANES),)
    outs = made.indptr, made.indices, made.edges
    if launches(indptr, keys, order, *outs):
        from penstock.nn.device import gather_kernels as kernels

        kernels.grouped_edges[grid](indptr, keys, order, *outs, *sizes, BLOCK=_LANES)
    return made


def _chunks(indptr: Tensor, places: int) -> Tensor:
    """The row of every whole chunk of edges that lies in a long list."""
    count, rows = places // CHUNK, len(indptr) - 1
    found = torch.empty(count, dtype=torch.int32, device=indptr.device)
    steps = (rows + 1).bit_length()
    if launches(indptr, found):
        from penstock.nn.device import gather_kernels as kernels

        kernels.chunk_rows[(-(-count // 128),)](indptr, found, rows, count, steps, CHUNK=CHUNK, BLOCK=128)
    return found


def _add_self_loops(block: DeviceBlock) -> DeviceBlock:
    indptr, indices, rows = block.lists, _tensor(block.indices), block.num_dst
    weights: Any = block.weights
    room = len(indices) + rows
    counts = torch.empty(rows, dtype=torch.int32, device=indptr.device)
    tile: dict[str, Any] = {"BLOCK_E": 8, "BLOCK_R": 32}
    grid = (-(-rows // tile["BLOCK_R"]),)
    if launches(indptr, indices, counts):
        from penstock.nn.device import gather_kernels as kernels

        kernels.count_others[grid](indptr, indices, counts, rows, **tile)
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    made = torch.zeros(rows + 1, dtype=torch.int32, device=indptr.device), indices.new_empty(room)
    heavy = None if weights is None else weights.new_empty(room)
    if launches(indptr, indices, weights, ends, *made, heavy):
        from penstock.nn.device import gather_kernels as kernels

        kernels.write_looped[grid](indptr, indices, weights, ends, *made, heavy, rows, **tile)
    given: tuple[Any, Any] = made
    result = DeviceBlock(*given, block.num_src, heavy)
    if "longest" in block.derived:
        result.derived["longest"] = block.derived["longest"] + 1
    return result


def _tensor(array: Any) -> Tensor:
    """An array of a device's block, typed as a tensor."""
    assert isinstance(array, Tensor)
    return array


# Launches of the aggregation kernels: which tile suits which rows, and which pointers are absent.

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
    """Which values of a result are nonzero: those where `positive` is, multiplied by `scale`."""

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

    `ids`: row j is x[ids[j]]. `read.mean` divides by lengths of `read_lists`. `winner`: only maxima count. `beside`:
    [rows, 2 * width + behind], after every row x[i] itself, then a one and zeros. `kept` masks the result. `direct`:
    the lists hold rows of x, and `ids` only those of the rows' own.
    """
    x = _straight(x)
    width = x.shape[1]
    out = torch.empty(lists.rows, width * (1 + beside) + behind, dtype=out_dtype or x.dtype, device=x.device)
    partial = None
    if lists.chunks is not None and out.numel():
        partial = torch.empty(len(lists.chunks), width, dtype=sum_dtype(x), device=x.device)
    lists_read = lists.indptr, lists.indices, lists.edges, weights, winner
    if not out.numel() or not launches(*lists_read, partial, out, rows=len(lists.indices), of=x):
        return out
    from penstock.nn.device import gather_kernels as kernels

    read, write, own_rows = read or Scale(), write or Scale(), None if own is None else _straight(own.rows)
    entries = (lists.indices, lists.edges, weights, read.values, read_lists if read.mean else None, winner, ids, x)
    sizes: dict[str, Any] = {"WIDTH": width, "X_STRIDE": x.stride(0), "READ_DIVIDES": read.divides, "CHUNK": CHUNK}
    sizes["NUMBER"] = number_of(x)
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
    """Each list's maxima, and the edges they came from (int32, -1 where a list is empty)."""
    x = _straight(x)
    out = torch.empty(lists.rows, x.shape[1], dtype=x.dtype, device=x.device)
    winner = torch.empty_like(out, dtype=torch.int32)
    if out.numel() and launches(lists.indptr, lists.indices, out, winner, rows=len(lists.indices), of=x):
        from penstock.nn.device import gather_kernels as kernels

        tile = _tile(x, lists.mean_length)
        grid = (-(-lists.rows // tile["BLOCK_R"]), -(-x.shape[1] // tile["BLOCK_F"]))
        sizes = {"WIDTH": x.shape[1], "X_STRIDE": x.stride(0), "NUMBER": number_of(x)}
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
    """A tile in which a thread reads 16 bytes at once, where rows allow it, and some 32 values before it adds them up.

    It takes as many edges of a list at once as a list has, between 4 and 16, and more rows where that is few.
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
    """Columns of a tile: all of them up to 256, so that a list is mostly read once."""
    return min(256, 1 << max(2, (width - 1).bit_length()))


def _count(own: Own) -> int:
    return len(own.rows if own.ids is None else own.ids)


def _straight(x: Tensor) -> Tensor:
    """Rows whose values are contiguous; rows may be further apart."""
    x = x.detach()
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def sum_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which sums are accumulated."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def number_of(x: Tensor) -> Any:
    """The dtype of sums in Triton; None under a trace, which needs no Triton."""
    if skips_kernels():
        return None
    import triton.language as tl

    return tl.float64 if x.dtype == torch.float64 else tl.float32


# Features that stay in their table: a batch lists the rows it reads, and a layer reads them there.


@dataclass(eq=False)
class TableRows:
    """table[ids] without the copy: `table` [vertices, width] on a device, `ids` int32 or int64 [rows].

    `SAGELayer` aggregates directly from the table; other layers call `materialise`. Ids past the batch's own, where
    there is room for more, are read as well (for unused rows), so they must be valid. `direct`: the block's lists hold
    rows of the table, as its sampler gave neighbours no rows of their own, and `ids` are the destinations'.
    """

    table: Tensor
    ids: Tensor
    direct: bool = False

    def materialise(self, dtype: torch.dtype | None = None) -> Tensor:
        """[rows, width], in the table's type or another."""

        if self.direct:
            raise PenstockError(
                "The batch's neighbours have no rows of their own, so they cannot be copied to a matrix.",
                code="unsupported-combination",
            )
        return copy_rows(self.table, self.ids, dtype or self.table.dtype)

    def __getitem__(self, rows: slice) -> "TableRows":
        return TableRows(self.table, self.ids[rows])

    def __len__(self) -> int:
        return len(self.ids)

    def dim(self) -> int:
        """2: the rows form a matrix."""
        return 2

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix that the rows would form."""
        return len(self.ids), self.table.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the table."""
        return self.table.dtype

    @property
    def device(self) -> torch.device:
        """The device that computes with the rows."""
        return self.table.device

    @property
    def requires_grad(self) -> bool:
        """False: features are not learned."""
        return False


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which a layer with this weight computes: autocast's if that is on."""
    kind = weight.device.type
    # Traced tensors have no device; their autocast is that of the host.
    kind = "cpu" if kind == "meta" else kind
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
