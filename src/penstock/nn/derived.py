"""Blocks derived from a block, each computed once: with self loops, of edges, without empty rows."""

from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.device.gather import looped
from penstock.nn.masked import MaskedBlock
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import is_traced, room

Made = TypeVar("Made")


@singledispatch
def with_self_loops(block: Block) -> Block:
    """The block in which every destination reads itself once, after its neighbours.

    Self loops of the graph are replaced, as in PyG. With weights, the new edge has weight one.
    """
    return _once(block, "looped", lambda: _add_self_loops(block))


@singledispatch
def without_empty_rows(block: Block) -> tuple[Block, Array]:
    """The block of the destination rows that read something, and which rows those are.

    In it, destination rows are not the first source rows. For blocks of the host only: on a device the number of rows
    that are left would require a wait.
    """
    return _once(block, "without empty rows", lambda: _drop_empty_rows(block))


@singledispatch
def edge_lists(block: Block) -> Block:
    """The block whose destinations read rows of its edges instead of rows of its sources."""
    return _once(block, "edge lists", lambda: _reading_edges(block))


def source_reads(block: Block) -> Block:
    """The block whose destinations are the block's edges, each of which reads its source."""
    return _once(block, "source reads", lambda: _reads(block, block.indices, block.num_src))


def destination_reads(block: Block) -> Block:
    """The block whose destinations are the block's edges, each of which reads its destination."""
    return _once(block, "destination reads", lambda: _reads(block, _destinations(block), block.num_dst))


class LoopedEdges(NamedTuple):
    """A block with self loops, and the source of its edges' rows."""

    block: Block
    """As `with_self_loops` gives it."""
    others: Block
    """A block in which destinations read rows of their edges that are not self loops."""
    reads: Block
    """A block in which each edge of `block` reads its row: one of the original edges', or after them one for each
    destination.
    """


@singledispatch
def looped_edges(block: Block) -> LoopedEdges:
    """The derived blocks of a layer that has rows for self loops; for a block on a device this waits for the device."""
    return _once(block, "looped edges", lambda: _loop_edges(block))


def _once(block: Block, what: str, make: Callable[[], Made]) -> Made:
    """The block made by `make`, which is made once and kept in `block` under the name `what`."""
    if what not in block.derived:
        block.derived[what] = make()
    found: Made = block.derived[what]
    return found


def _reading_edges(block: Block) -> Block:
    return type(block)(block.indptr, _places(block), block.num_edges, block.weights, block.totals)


@singledispatch
def _places(block: Block) -> Any:
    """The numbers 0, 1, 2, ... of a block's edges, on the device of its lists."""
    places = room(block.num_edges, np.int32)
    if not is_traced():
        places[...] = np.arange(block.num_edges)
    return places


@singledispatch
def _destinations(block: Block) -> Any:
    """The destination row of every edge, on the device of the lists."""
    found = room(block.num_edges, np.int32)
    if not is_traced():
        found[...] = block.destinations()
    return found


@singledispatch
def _reads(block: Block, indices: Any, num_src: int) -> Block:
    """A block with one destination for each edge, which reads one row."""
    indptr = room(block.num_edges + 1, np.int64)
    if not is_traced():
        indptr[...] = np.arange(block.num_edges + 1)
    return Block(indptr, indices, num_src)


@singledispatch
def _loop_edges(block: Block) -> LoopedEdges:
    looped, edges = with_self_loops(block), block.num_edges
    if is_traced():
        # Self loops of the graph itself, which are replaced, are few.
        reads = Block(room(looped.num_edges + 1, np.int64), room(looped.num_edges, np.int32), edges + block.num_dst)
        return LoopedEdges(looped, edge_lists(block), reads)
    kept = np.flatnonzero(block.indices != block.destinations())
    lists = np.searchsorted(kept, block.indptr)
    others = Block(lists, kept.astype(np.int32), edges, None if block.weights is None else block.weights[kept])
    others.totals = None if block.weights is None else block.totals
    places = np.insert(kept, lists[1:], edges + np.arange(block.num_dst)).astype(np.int32)
    return LoopedEdges(looped, others, Block(np.arange(len(places) + 1), places, edges + block.num_dst))


def _add_self_loops(block: Block) -> Block:
    if is_traced():
        edges = block.num_edges + block.num_dst
        weights = None if block.weights is None else room(edges, np.float32)
        lists = room(block.num_dst + 1, np.int64), room(edges, block.indices.dtype)
        return Block(*lists, block.num_src, weights)
    own = np.arange(block.num_dst, dtype=block.indices.dtype)
    kept = block.indices != block.destinations()
    before = np.concatenate([[0], np.cumsum(kept)])[block.indptr]
    ends = before[1:]
    weights = None if block.weights is None else np.insert(block.weights[kept], ends, 1)
    indices = np.insert(block.indices[kept], ends, own)
    return Block(before + np.arange(block.num_dst + 1), indices, block.num_src, weights)


def _drop_empty_rows(block: Block) -> tuple[Block, Array]:
    rows = np.flatnonzero(np.diff(block.indptr))
    indptr = np.append(block.indptr[rows], block.indptr[-1])
    totals = None if block.totals is None else block.totals[rows]
    return Block(indptr, block.indices, block.num_src, block.weights, totals), rows


# The same for blocks on a device, in operations of torch.

with_self_loops.register(DeviceBlock, looped)


@_places.register
def _(block: DeviceBlock) -> Tensor:
    return torch.arange(block.num_edges, dtype=torch.int32, device=block.device)


@_destinations.register
def _(block: DeviceBlock) -> Tensor:
    rows = torch.arange(block.num_dst, dtype=torch.int32, device=block.device)
    return rows.repeat_interleave(block.lists.diff().long(), output_size=block.num_edges)


@_reads.register
def _(block: DeviceBlock, indices: Any, num_src: int) -> Block:
    lists: Any = torch.arange(block.num_edges + 1, dtype=torch.int32, device=block.device)
    return DeviceBlock(lists, indices, num_src, derived={"longest": 1})


@_loop_edges.register
def _(block: DeviceBlock) -> LoopedEdges:
    """Derived blocks for a block without padding."""
    indices: Any = block.indices
    rows, edges, weights = _destinations(block), block.num_edges, cast(Any, block.weights)
    kept = torch.nonzero(indices != rows).flatten()
    lists = torch.searchsorted(kept, block.lists.long())
    own = torch.arange(block.num_dst, device=block.device)
    places = torch.empty(len(kept) + block.num_dst, dtype=torch.int64, device=block.device)
    ends: Any = (lists + torch.arange(block.num_dst + 1, device=block.device)).int()
    places[torch.arange(len(kept), device=block.device) + rows[kept]] = kept
    places[ends[1:].long() - 1] = edges + own
    behind = torch.cat([indices, own.int()])
    heavy: Any = None if weights is None else torch.cat([weights, weights.new_ones(block.num_dst)])[places]
    looped = DeviceBlock(ends, cast(Any, behind[places]), block.num_src, heavy)
    few: tuple[Any, Any] = lists.int(), kept.int()
    others = DeviceBlock(*few, edges, None if weights is None else weights[kept])
    others.totals = None if weights is None else block.totals
    reads = _reads(looped, cast(Any, places.int()), edges + block.num_dst)
    return LoopedEdges(looped, others, reads)


# The same for masked blocks: made of the plain block, with the mask on what its edges became.


@with_self_loops.register
def _(block: MaskedBlock) -> Block:
    return block.looped(with_self_loops(block.plain))


@without_empty_rows.register
def _(block: MaskedBlock) -> tuple[Block, Array]:
    filled, rows = without_empty_rows(block.plain)
    return MaskedBlock(filled, block.mask), rows


@edge_lists.register
def _(block: MaskedBlock) -> Block:
    return MaskedBlock(edge_lists(block.plain), block.mask)


@looped_edges.register
def _(block: MaskedBlock) -> LoopedEdges:
    plain = looped_edges(block.plain)
    return plain._replace(block=block.looped(plain.block))
