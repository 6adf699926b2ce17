"""Blocks whose edges have a mask: aggregation, attention and derived blocks, in plain torch.

A mask multiplies the message of an edge and nothing else: lists keep their lengths and totals, attention its
coefficients. It is differentiable, which weights of a block are not. Explanations use it on one neighbourhood; it holds
a row for each edge, which training never does.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.graph.arrays import Array
from penstock.sampling.block import Block


class MaskedBlock(Block):
    """A block of the host with a mask value for each of its edges, [num_edges].

    `edge_attr`, where given, replaces the plain block's edge features.
    """

    mask: Tensor

    def __init__(self, plain: Block, mask: Tensor, edge_attr: Tensor | None = None) -> None:
        assert len(mask) == plain.num_edges, f"{len(mask)} mask values for {plain.num_edges} edges"
        lists = plain.indptr, plain.indices, plain.num_src, plain.weights, plain.totals, plain.edges
        carried = plain.edge_attr if edge_attr is None else edge_attr
        super().__init__(*lists, carried, plain.edge_weight, ages=plain.ages)
        self.plain, self.mask = plain, mask

    @cached_property
    def sources(self) -> Tensor:
        """The source row of every edge."""
        return torch.from_numpy(np.asarray(self.indices, np.int64))

    @cached_property
    def targets(self) -> Tensor:
        """The destination row of every edge."""
        return torch.from_numpy(np.asarray(self.destinations(), np.int64))

    def looped(self, looped: Block) -> "MaskedBlock":
        """This mask on the block with self loops, which have 1. Loops of the graph itself were replaced by them."""
        own = torch.from_numpy(looped.indices == looped.destinations())
        kept = torch.from_numpy(self.indices != self.destinations())
        mask = torch.ones(looped.num_edges, dtype=self.mask.dtype)
        return MaskedBlock(looped, mask.masked_scatter(~own, self.mask[kept]))


def gather(
    block: MaskedBlock, x: Tensor, read_scale: Array | None, write_scale: Array | None, own_scale: Array | None
) -> Tensor:
    """As `aggregation.gather`, with each edge's message multiplied by its mask."""
    factor = _weighted(block, x)
    if read_scale is not None:
        factor = factor * _number(read_scale, x)[block.sources]
    result = _sums(block, x[block.sources] * factor[:, None])
    if write_scale is not None:
        result = result * _number(write_scale, x)[:, None]
    if own_scale is not None:
        result = result + x[: block.num_dst] * _number(own_scale, x)[:, None]
    return result


def gather_max(block: MaskedBlock, x: Tensor) -> Tensor:
    """The largest masked message of each list and column; 0 where a list is empty."""
    messages = x[block.sources] * block.mask[:, None]
    where = block.targets[:, None].expand_as(messages)
    result = x.new_zeros(block.num_dst, x.shape[1])
    return result.scatter_reduce(0, where, messages, "amax", include_self=False)


def attend(
    block: MaskedBlock, scores: Tensor, values: Tensor, slope: float, kept: Tensor | None, direction: Tensor | None
) -> Tensor:
    """Masked values under the softmax over each list of the scores [edges, heads].

    With `direction` [heads, size] the scores are [edges, heads * size] and are reduced by it, as in GATv2.
    """
    scores = functional.leaky_relu(scores, slope)
    if direction is not None:
        scores = (scores.view(len(scores), *direction.shape) * direction).sum(-1)
    where = block.targets[:, None].expand_as(scores)
    highest = scores.new_zeros(block.num_dst, scores.shape[1])
    highest = highest.scatter_reduce(0, where, scores.detach(), "amax", include_self=False)
    powers = (scores - highest[block.targets]).exp()
    if block.weights is not None:
        powers = powers * _number(block.weights, powers)[:, None]
    shares = powers / _sums(block, powers)[block.targets] * block.mask[:, None]
    shares = shares if kept is None else shares * kept
    messages = values[block.sources].view(len(shares), shares.shape[1], -1) * shares[:, :, None]
    return _sums(block, messages.flatten(1))


def ends(block: MaskedBlock, of_sources: Tensor, of_destinations: Tensor) -> Tensor:
    """[edges, width]: each edge's row of its source plus that of its destination."""
    return of_sources[block.sources] + of_destinations[block.targets]


def _weighted(block: MaskedBlock, x: Tensor) -> Tensor:
    mask = block.mask.to(x.dtype)
    return mask if block.weights is None else mask * _number(block.weights, x)


def _sums(block: MaskedBlock, messages: Tensor) -> Tensor:
    return messages.new_zeros(block.num_dst, messages.shape[1]).index_add(0, block.targets, messages)


def _number(values: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(values)).to(like.dtype)
