"""Blocks made from a block, each once: read from its sources, with self loops, without empty rows."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from penstock.graph.arrays import Array
from penstock.nn.device.lists import looped
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


def _transpose(block: Block, rows: int) -> Transposed:
    indptr, indices = room(rows + 1, np.int64), room(block.num_edges, block.indices.dtype)
    made = Transposed(indptr, indices, room(block.num_edges, np.int64))
    if not is_traced():
        transpose(block.indptr, block.indices, made.indptr, made.indices, made.edges)
    return made


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
