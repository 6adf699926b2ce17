"""The lists of several relations that end in the same rows as one, for attention over all of them at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.masked import MaskedBlock
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import is_traced, room


class JoinedLists(NamedTuple):
    """A row's lists, one relation after the other. Their sources are all relations' rows, one below the other."""

    block: Block
    places: Any
    """Where each relation's edges went, one relation after the other; an array or tensor, as the blocks have."""

    def rows_of_edges(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows for the edges of each relation, in the order of the joined block's edges."""
        given = torch.cat(list(rows))
        if is_traced():
            return torch.empty_like(given)
        where = self.places if isinstance(self.places, Tensor) else torch.from_numpy(self.places)
        return torch.empty_like(given).index_copy(0, where, given)


def joined_lists(parts: Sequence[Block], rows: Sequence[int]) -> JoinedLists:
    """Blocks with the same destinations as one block; `rows` are those of each one's sources, below each other.

    Weights are kept where a block has any, and 1 for others. Blocks of a device must have no room to spare.
    """
    if isinstance(parts[0], DeviceBlock):
        return _joined_there(cast(Sequence[DeviceBlock], parts), rows)
    joined = _joined_here(parts, rows)
    if not isinstance(parts[0], MaskedBlock):
        return joined
    masks = [cast(MaskedBlock, part).mask for part in parts]
    return joined._replace(block=MaskedBlock(joined.block, joined.rows_of_edges(masks)))


def _joined_here(parts: Sequence[Block], rows: Sequence[int]) -> JoinedLists:
    edges, dst = sum(part.num_edges for part in parts), parts[0].num_dst
    indptr, indices, places = room(dst + 1, np.int64), room(edges, np.int32), room(edges, np.int64)
    weights = room(edges, np.float32) if any(part.weights is not None for part in parts) else None
    block = JoinedLists(Block(indptr, indices, sum(rows), weights), places)
    if is_traced():
        return block
    lengths = [np.diff(part.indptr) for part in parts]
    indptr[0] = 0
    np.cumsum(sum(lengths), out=indptr[1:])
    starts, offset, done = indptr[:-1].copy(), 0, 0
    for part, length, count in zip(parts, lengths, rows, strict=True):
        where: Array = np.arange(part.num_edges) + np.repeat(starts - part.indptr[:-1], length)
        places[done : done + part.num_edges] = where
        indices[where] = part.indices + offset
        if weights is not None:
            weights[where] = 1.0 if part.weights is None else part.weights
        starts, offset, done = starts + length, offset + count, done + part.num_edges
    return block


def _joined_there(parts: Sequence[DeviceBlock], rows: Sequence[int]) -> JoinedLists:
    """The same in operations of torch, which ask nothing of the device."""
    device, edges = parts[0].device, sum(part.num_edges for part in parts)
    lengths = [part.lists.diff().long() for part in parts]
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    ends = torch.cat([zero, torch.stack(lengths).sum(dim=0).cumsum(0)])
    starts, offset, places, sources, weights = ends[:-1], 0, [], [], []
    for part, length, count in zip(parts, lengths, rows, strict=True):
        shift = (starts - part.lists[:-1]).repeat_interleave(length, output_size=part.num_edges)
        places.append(torch.arange(part.num_edges, device=device) + shift)
        sources.append(cast(Any, part.indices) + offset)
        given = cast(Any, part.weights)
        weights.append(torch.ones(part.num_edges, device=device) if given is None else given)
        starts, offset = starts + length, offset + count
    where = torch.cat(places)

    def ordered(values: list[Tensor]) -> Any:
        given = torch.cat(values)
        return torch.empty_like(given).index_copy(0, where, given)

    heavy = ordered(weights) if any(part.weights is not None for part in parts) else None
    lists: Any = ends.int()
    assert len(where) == edges
    return JoinedLists(DeviceBlock(lists, ordered(sources), sum(rows), heavy), where)
