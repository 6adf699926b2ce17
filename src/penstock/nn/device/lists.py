"""A block's lists as kernels walk them: turned round to be read from its sources, with self loops, cut into chunks.

Nothing here waits for the device: shapes come from the block's room, never from what is in it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.sampling.device.block import CHUNK, DeviceBlock, SourceLists
from penstock.traced import launches

_LANES = 256
"""Searches of one program."""


@dataclass(eq=False)
class DeviceLists:
    """What a kernel walks: `edges`, where given, are the places of a list's entries in the block.

    `chunks[c]` is the row in whose long list chunk c lies whole, or -1; None where no list can be long.
    """

    indptr: Tensor
    indices: Tensor
    edges: Tensor | None = None
    chunks: Tensor | None = None

    @property
    def rows(self) -> int:
        """How many lists there are."""
        return len(self.indptr) - 1

    @property
    def mean_length(self) -> float:
        """Entries there is room for, a list."""
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
    """The block read from `rows` source rows: a stable sort of its edges by source. Kept in the block.

    A sampler may ask for it ahead, on its own stream.
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
    """The block in which every destination reads itself once, behind its neighbours; has room for all of them.

    Rows behind the batch's own read themselves too: their sums are of their own rows, which nobody reads.
    """
    found = block.derived.get("looped")
    if not isinstance(found, DeviceBlock):
        found = block.derived["looped"] = _add_self_loops(block)
    return found


def _turn_round(block: DeviceBlock, rows: int) -> SourceLists:
    indptr, indices = block.lists, _tensor(block.indices)
    places, targets = len(indices), block.num_dst
    keys = torch.empty(places, dtype=torch.int32, device=indices.device)
    if launches(indptr, indices, keys):
        from penstock.nn.device import list_kernels as kernels

        kernels.source_keys[(-(-places // _LANES),)](indptr, indices, keys, targets, rows, places, BLOCK=_LANES)
    keys, order = torch.sort(keys, stable=True)
    made = SourceLists(
        torch.empty(rows + 1, dtype=torch.int32, device=keys.device), torch.empty_like(keys), torch.empty_like(keys)
    )
    sizes = targets, rows, places, (targets + 1).bit_length(), places.bit_length()
    grid = (-(-max(places, rows + 1) // _LANES),)
    outs = made.indptr, made.indices, made.edges
    if launches(indptr, keys, order, *outs):
        from penstock.nn.device import list_kernels as kernels

        kernels.grouped_edges[grid](indptr, keys, order, *outs, *sizes, BLOCK=_LANES)
    return made


def _chunks(indptr: Tensor, places: int) -> Tensor:
    """The row of every whole chunk of edges that lies in a long list."""
    count, rows = places // CHUNK, len(indptr) - 1
    found = torch.empty(count, dtype=torch.int32, device=indptr.device)
    steps = (rows + 1).bit_length()
    if launches(indptr, found):
        from penstock.nn.device import list_kernels as kernels

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
        from penstock.nn.device import list_kernels as kernels

        kernels.count_others[grid](indptr, indices, counts, rows, **tile)
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    made = torch.zeros(rows + 1, dtype=torch.int32, device=indptr.device), indices.new_empty(room)
    heavy = None if weights is None else weights.new_empty(room)
    if launches(indptr, indices, weights, ends, *made, heavy):
        from penstock.nn.device import list_kernels as kernels

        kernels.write_looped[grid](indptr, indices, weights, ends, *made, heavy, rows, **tile)
    given: tuple[Any, Any] = made
    result = DeviceBlock(*given, block.num_src, heavy)
    if "longest" in block.derived:
        result.derived["longest"] = block.derived["longest"] + 1
    return result


def _tensor(array: Any) -> Tensor:
    """An array of a device's block, as what it is there."""
    assert isinstance(array, Tensor)
    return array
