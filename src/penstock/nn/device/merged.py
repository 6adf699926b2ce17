"""A batch's edges as one list of pairs, for modules that know no blocks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.graph.schema import EdgeType
from penstock.sampling.block import Block, TypedBlock, merge_edges
from penstock.sampling.device.block import DeviceBlock


def merged_edges(blocks: Sequence[Block]) -> Tensor:
    """[2, edges] int64 of blocks that are outermost first, where the blocks are; each vertex's list once.

    On a device the lists' lengths must be known here, so this waits for it; blocks with spare room are not for modules
    that know nothing of them.
    """
    if not isinstance(blocks[0], DeviceBlock):
        return torch.from_numpy(merge_edges(blocks))
    sources, targets, known = list[Tensor](), list[Tensor](), 0
    for block in reversed(blocks):
        assert isinstance(block, DeviceBlock)
        indices: Any = block.indices
        start, stop = int(block.lists[known]), int(block.lists[-1])
        rows = torch.arange(block.num_dst, device=block.device)
        sources.append(indices[start:stop].long())
        targets.append(rows.repeat_interleave(block.lists.diff().long(), output_size=stop)[start:])
        known = block.num_dst
    return torch.stack([torch.cat(sources), torch.cat(targets)])


def merged_relations(blocks: Sequence[TypedBlock]) -> dict[EdgeType, Tensor]:
    """`merged_edges` of every relation that has any in some layer."""
    kinds = dict.fromkeys(kind for block in blocks for kind in block.relations)
    return {
        kind: merged_edges([block.relations[kind] for block in blocks if kind in block.relations]) for kind in kinds
    }
