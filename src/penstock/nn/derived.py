"""Blocks made from a block, each once: read from its sources, with self loops, without empty rows."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.nn.device.gather import looped
from penstock.nn.kernels import transpose
from penstock.nn.masked import MaskedBlock
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import is_traced, room

Made = TypeVar("Made")


@dataclass(eq=False)
class Transposed:
    """Source row j is read by `indices[indptr[j]:indptr[j + 1]]`; `edges` are those edges' places in the block."""

    indptr: Array
    indices: Array
    edges: Array


def transposed(block: Block, rows: int) -> Transposed:
    """The lists of `rows` source rows, for gathering gradients: a counting sort, two passes over the edges."""
    found = _transposed.get(block, lambda: _transpose(block, rows))
    if len(found.indptr) != rows + 1:  # the block was read with another number of rows before
        found = _transpose(block, rows)
        _transposed.put(block, found)
    return found


def with_self_loops(block: Block) -> Block:
    """The block in which every destination reads itself once, behind its neighbours.

    Self loops that the graph has already are replaced, as PyG does. With weights, the new edge weighs one.
    """
    if isinstance(block, DeviceBlock):
        return looped(block)
    if isinstance(block, MaskedBlock):
        return block.looped(with_self_loops(block.plain))
    return _looped.get(block, lambda: _add_self_loops(block))


def without_empty_rows(block: Block) -> tuple[Block, Array]:
    """The block of the destination rows that read something, and which rows those are.

    In it, destination rows are not the first source rows. Blocks of the host only: how many rows are left would have to
    be asked of a device.
    """
    if isinstance(block, MaskedBlock):
        filled, rows = without_empty_rows(block.plain)
        return MaskedBlock(filled, block.mask), rows
    return _filled.get(block, lambda: _drop_empty_rows(block))


def edge_lists(block: Block) -> Block:
    """The block whose destinations read rows of its edges, in the place of their sources' rows."""
    if isinstance(block, DeviceBlock):
        return _on_device(block, "edge lists", lambda: _reading_edges(block))
    if isinstance(block, MaskedBlock):
        return MaskedBlock(edge_lists(block.plain), block.mask)
    return _edge_lists.get(block, lambda: _reading_edges(block))


def source_reads(block: Block) -> Block:
    """The block whose destinations are the block's edges, each of which reads its source."""
    if isinstance(block, DeviceBlock):
        return _on_device(block, "source reads", lambda: _reads(block, block.indices, block.num_src))
    return _source_reads.get(block, lambda: _reads(block, block.indices, block.num_src))


def destination_reads(block: Block) -> Block:
    """The block whose destinations are the block's edges, each of which reads its destination."""
    if isinstance(block, DeviceBlock):
        return _on_device(block, "destination reads", lambda: _reads(block, _destinations(block), block.num_dst))
    return _destination_reads.get(block, lambda: _reads(block, _destinations(block), block.num_dst))


class LoopedEdges(NamedTuple):
    """A block with self loops, and where its edges' rows come from."""

    block: Block
    """As `with_self_loops` gives it."""
    others: Block
    """Destinations read rows of their edges that are no self loops."""
    reads: Block
    """Each edge of `block` reads its row among the first block's edges, behind which each destination has one."""


def looped_edges(block: Block) -> LoopedEdges:
    """What a layer needs that gives self loops rows of their own; on a device this waits for it."""
    if isinstance(block, DeviceBlock):
        if "looped edges" not in block.derived:
            block.derived["looped edges"] = _loop_edges_there(block)
        found: LoopedEdges = block.derived["looped edges"]
        return found
    if isinstance(block, MaskedBlock):
        plain = looped_edges(block.plain)
        return plain._replace(block=block.looped(plain.block))
    return _looped_edges.get(block, lambda: _loop_edges(block))


class _Known(Generic[Made]):
    """What was made of a block, for as long as the block lives."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Block, Made] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self, block: Block, make: Callable[[], Made]) -> Made:
        with self._lock:
            found = self._made.get(block)
        if found is None:
            found = make()
            self.put(block, found)
        return found

    def put(self, block: Block, made: Made) -> None:
        with self._lock:
            self._made[block] = made


_transposed: _Known[Transposed] = _Known()
_looped: _Known[Block] = _Known()
_filled: _Known[tuple[Block, Array]] = _Known()
_edge_lists: _Known[Block] = _Known()
_source_reads: _Known[Block] = _Known()
_destination_reads: _Known[Block] = _Known()
_looped_edges: _Known[LoopedEdges] = _Known()


def _transpose(block: Block, rows: int) -> Transposed:
    indptr, indices = room(rows + 1, np.int64), room(block.num_edges, block.indices.dtype)
    made = Transposed(indptr, indices, room(block.num_edges, np.int64))
    if not is_traced():
        transpose(block.indptr, block.indices, made.indptr, made.indices, made.edges)
    return made


def _on_device(block: DeviceBlock, what: str, make: Callable[[], Block]) -> Block:
    """What is derived of a device's block is kept in it."""
    if what not in block.derived:
        block.derived[what] = make()
    found: Block = block.derived[what]
    return found


def _reading_edges(block: Block) -> Block:
    lists = block.indptr, _places(block), block.num_edges, block.weights, block.totals
    return DeviceBlock(*lists) if isinstance(block, DeviceBlock) else Block(*lists)


def _places(block: Block) -> Any:
    """0, 1, 2, ... for the edges of a block, where its lists are."""
    if isinstance(block, DeviceBlock):
        return torch.arange(block.num_edges, dtype=torch.int32, device=block.device)
    places = room(block.num_edges, np.int32)
    if not is_traced():
        places[...] = np.arange(block.num_edges)
    return places


def _destinations(block: Block) -> Any:
    """The destination row of every edge, where the lists are."""
    if isinstance(block, DeviceBlock):
        rows = torch.arange(block.num_dst, dtype=torch.int32, device=block.device)
        return rows.repeat_interleave(block.lists.diff().long(), output_size=block.num_edges)
    found = room(block.num_edges, np.int32)
    if not is_traced():
        found[...] = block.destinations()
    return found


def _reads(block: Block, indices: Any, num_src: int) -> Block:
    """A block with one destination for each edge, which reads one row."""
    if isinstance(block, DeviceBlock):
        lists: Any = torch.arange(block.num_edges + 1, dtype=torch.int32, device=block.device)
        return DeviceBlock(lists, indices, num_src, derived={"longest": 1})
    indptr = room(block.num_edges + 1, np.int64)
    if not is_traced():
        indptr[...] = np.arange(block.num_edges + 1)
    return Block(indptr, indices, num_src)


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


def _loop_edges_there(block: DeviceBlock) -> LoopedEdges:
    """`looped_edges` in operations of torch, for a block without spare room."""
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
