"""The edges of one relation, and what a layer computes over all of them at once."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Edges(NamedTuple):
    """The edges of one relation; `rows` is the number of destinations."""

    source: Tensor
    target: Tensor
    rows: Any
    weight: Tensor | None = None
    attr: Tensor | None = None

    def add(self, values: Tensor) -> Tensor:
        """[rows, ...]: sums of the edges' values at their destinations."""
        return values.new_zeros((self.rows, *values.shape[1:])).scatter_add(0, self._places(values), values)

    def largest(self, values: Tensor) -> Tensor:
        """[rows, ...]: the largest of the edges' values at their destinations; minus infinity without edges."""
        lowest = values.new_full((self.rows, *values.shape[1:]), -math.inf)
        return lowest.scatter_reduce(0, self._places(values), values, "amax")

    def weighed(self, values: Tensor) -> Tensor:
        """The values multiplied by the edges' weights, if they have any."""
        if self.weight is None:
            return values
        return values * self.weight.to(values.dtype).view(-1, *[1] * (values.dim() - 1))

    def combine(self, x: Tensor, reduce: str) -> Tensor:
        """[rows, width]: mean, sum or maximum of the neighbours' rows; zeros without neighbours."""
        if reduce == "max":
            found = self.largest(x[self.source])
            return torch.where(torch.isinf(found), 0.0, found)
        total = self.add(self.weighed(x[self.source]))
        return total / not_zero(self.totals(x)) if reduce == "mean" else total

    def totals(self, like: Tensor) -> Tensor:
        """[rows, 1]: numbers of neighbours, or the sums of their weights."""
        return self.add(self.weighed(like.new_ones((self.source.shape[0], 1))))

    def attend(self, scores: Tensor, values: Tensor) -> Tensor:
        """[rows, heads * size] of values [edges, heads * size]: means by the softmax of scores [edges, heads]."""
        if self.weight is not None:
            scores = scores.masked_fill((self.weight == 0)[:, None], -math.inf)
        most = self.largest(scores)
        parts = self.weighed(torch.exp(scores - torch.where(torch.isinf(most), 0.0, most)[self.target]))
        shares = parts / not_zero(self.add(parts))[self.target]
        heads = values.view(values.shape[0], scores.shape[1], -1)
        return self.add((shares[:, :, None] * heads).reshape(values.shape))

    def looped(self) -> "Edges":
        """The edges with one self loop at each destination, replacing those that there are.

        A self loop carries the mean of what its vertex's other edges carry.
        """
        own = torch.arange(self.rows, device=self.source.device)
        others = (self.source != self.target).to(torch.float32)
        weight = others if self.weight is None else others * self.weight
        attr = None
        if self.attr is not None:
            counted = self._replace(weight=weight)
            mean = counted.add(counted.weighed(self.attr)) / not_zero(counted.totals(self.attr))
            attr = torch.cat([self.attr, mean])
        source, target = torch.cat([self.source, own]), torch.cat([self.target, own])
        return Edges(source, target, self.rows, torch.cat([weight, torch.ones_like(own, dtype=weight.dtype)]), attr)

    def _places(self, values: Tensor) -> Tensor:
        return self.target.view(-1, *[1] * (values.dim() - 1)).expand_as(values)


def not_zero(values: Tensor) -> Tensor:
    return torch.where(values == 0, 1.0, values)
