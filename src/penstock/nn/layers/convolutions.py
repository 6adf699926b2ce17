"""Layers that sum or average neighbours: GraphSAGE, GCN, GIN and GINE; and the dense layer that reads none."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.nn.aggregation import (
    AggregatedRows,
    HostRows,
    Reduce,
    aggregate,
    aggregate_beside,
    aggregate_joined,
    edge_features,
    is_constant,
    normalised_joined,
    normalised_sum,
    of_sources,
    sum_of_edges,
)
from penstock.nn.device.drop import Rectified
from penstock.nn.device.gather import TableRows, compute_dtype
from penstock.nn.device.products import Ending, only_rectified, product, side_by_side
from penstock.nn.layers.rgcn import own_terms
from penstock.nn.operator_costs import Order
from penstock.nn.order import (
    Costs,
    aggregates_first,
    as_matrix,
    inputs_aggregated_first,
    transform_neighbours,
    transformed,
)
from penstock.sampling.block import Block

Given = Tensor | TableRows | Rectified | AggregatedRows | HostRows
"""What layers read."""

# GraphSAGE: the transformed aggregate of the neighbours plus the transformed vertex.


class SAGELayer(nn.Module):
    """neighbours(aggregate) + own(x). `order` is chosen by predicted time; a maximum is always taken first."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        aggregate: Reduce = "mean",
        bias: bool = True,
        order: Order = "auto",
        costs: Costs | None = None,
    ) -> None:
        super().__init__()
        self.reduce, self.order, self.costs = aggregate, order, costs
        self.neighbours = nn.Linear(width_in, width_out, bias)
        self.own = nn.Linear(width_in, width_out, bias=False)

    def forward(self, block: Block, x: Given, end: Ending | None = None) -> Any:
        """[num_dst, out] of x [num_src, in]. A device's block reads rows of a table in place, and may do `end` too."""
        weight, bias = self.neighbours.weight, self.neighbours.bias
        first = self.reduce == "max" or _reads_first(block, x, weight, self.order, self.costs)
        if block.on_device and first and self.reduce != "max" and not isinstance(x, HostRows):
            # One product rather than two, of which the second would read and write all results again. The bias is a
            # weight of a column of ones: computing its gradient separately would be one more pass over all results.
            joined = aggregate_joined(block, x, self.reduce, compute_dtype(weight))
            return product(joined, side_by_side(joined.shape[1], weight, self.own.weight, bias), end)
        given = as_matrix(x, weight)
        if first and not isinstance(given, HostRows):
            neighbours, own = aggregate_beside(block, given, self.reduce)
            result = functional.linear(neighbours, weight, bias)
        else:
            assert not isinstance(given, AggregatedRows)
            result = aggregate(block, transformed(given, weight), self.reduce)
            result = result if bias is None else result + bias
            if isinstance(given, HostRows):
                return result + transformed(given[: block.num_dst], self.own.weight)
            if is_constant(given):
                return result + transformed(given, self.own.weight)[: block.num_dst]
            own = given[: block.num_dst]
        if result.dtype == own.dtype == weight.dtype:
            return result.addmm_(own, self.own.weight.t())
        return result + functional.linear(own, self.own.weight)

    def aggregates_inputs(self, block: Block) -> bool:
        """Whether features of a batch are aggregated before they are transformed."""
        return self.reduce != "max" and inputs_aggregated_first(block, self.neighbours.weight, self.order, self.costs)


def _reads_first(block: Block, x: Any, weight: Tensor, order: Order, costs: Costs | None) -> bool:
    """Whether rows are aggregated before they are transformed, as those of neighbours without rows must be."""
    return (isinstance(x, TableRows) and x.direct) or aggregates_first(block, x, weight, order, costs)


def _joins(x: Any, block: Block) -> TypeGuard[Tensor | TableRows | Rectified]:
    """Whether a device writes the aggregate and a column of ones, whose weight is the bias, in one pass."""
    return block.on_device and not isinstance(x, AggregatedRows | HostRows)


# GCN: neighbours and the vertex itself, each divided by the root of both ends' degrees.


class GCNLayer(nn.Module):
    """sum over the list and v itself of W x_u / sqrt((d_u + 1)(d_v + 1)), d being whole lists' totals."""

    def __init__(
        self, width_in: int, width_out: int, bias: bool = True, order: Order = "auto", costs: Costs | None = None
    ) -> None:
        super().__init__()
        self.order, self.costs = order, costs
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(width_out)) if bias else None
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, block: Block, x: Given, end: Ending | None = None) -> Any:
        """[num_dst, out] of x [num_src, in]; the block needs the totals of its source rows."""
        weight = self.linear.weight
        if _joins(x, block) and _reads_first(block, x, weight, self.order, self.costs):
            joined = normalised_joined(block, x, compute_dtype(weight))
            return product(joined, side_by_side(joined.shape[1], weight, self.bias), end)
        given, combine = as_matrix(x, weight), partial(normalised_sum, block)
        result = transform_neighbours(block, given, weight, combine, self.order, self.costs)
        return result if self.bias is None else result + self.bias

    def aggregates_inputs(self, block: Block) -> bool:
        """Whether features of a batch are aggregated before they are transformed."""
        return inputs_aggregated_first(block, self.linear.weight, self.order, self.costs)


# GIN: an MLP on the vertex plus the sum of its neighbours.

_ONES = 8
"""Columns behind the hidden ones, the first of them ones, on a device: as many as keep rows of any type aligned."""


class GINLayer(nn.Module):
    """mlp((1 + eps) x + sum of neighbours); the default mlp has one hidden layer as wide as the output.

    Where the mlp begins with a linear layer, that may come before the sum (`order`).
    """

    eps: Tensor

    def __init__(
        self,
        width_in: int,
        width_out: int,
        eps: float = 0.0,
        train_eps: bool = False,
        mlp: nn.Module | None = None,
        order: Order = "auto",
        costs: Costs | None = None,
    ) -> None:
        super().__init__()
        self.order, self.costs = order, costs
        self.mlp = mlp or nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Linear(width_out, width_out))
        start = torch.tensor([float(eps)])
        if train_eps:
            self.eps = nn.Parameter(start)
        else:
            self.register_buffer("eps", start)

    def forward(self, block: Block, x: Given, end: Ending | None = None) -> Any:
        """[num_dst, out] of x [num_src, in]; sums use the block's totals where it has them."""
        first = self._first_linear()
        if first is not None and not _reads_first(block, x, first.weight, self.order, self.costs):
            assert not isinstance(x, AggregatedRows)
            rows = transformed(as_matrix(x, first.weight), first.weight)
            result = aggregate(block, rows, "sum") + (1 + self.eps) * rows[: block.num_dst]
            return self._rest(result if first.bias is None else result + first.bias)
        if first is not None and _joins(x, block):
            return self._joined(block, x, first, end)
        assert not isinstance(x, HostRows), "they are given where the mlp begins with a linear layer"
        neighbours, own = aggregate_beside(block, as_matrix(x, self.eps), "sum")
        made: Tensor = self.mlp(neighbours + (1 + self.eps) * own)
        return made

    def aggregates_inputs(self, block: Block) -> bool:
        """Whether features of a batch are aggregated before they are transformed."""
        first = self._first_linear()
        return first is None or inputs_aggregated_first(block, first.weight, self.order, self.costs)

    def _joined(self, block: Block, x: Tensor | TableRows | Rectified, first: nn.Linear, end: Ending | None) -> Any:
        """The layer by one product of sums, own rows and ones: the gradients of eps and of the bias are then parts of
        that of the weights. There are ones behind the rectified rows as well, for the second bias.
        """
        weight, modules = first.weight, cast(Sequence[Any], list(cast(nn.Sequential, self.mlp)))
        joined = aggregate_joined(block, x, "sum", compute_dtype(weight))
        weights = side_by_side(joined.shape[1], weight, (1 + self.eps) * weight, first.bias)
        if [type(module) for module in modules] != [nn.Linear, nn.ReLU, nn.Linear] or modules[2].bias is None:
            return self._rest(functional.linear(joined, weights))
        hidden = product(joined, weights, only_rectified, _ONES)
        return product(hidden, side_by_side(hidden.shape[1], modules[2].weight, modules[2].bias), end)

    def _rest(self, rows: Tensor) -> Tensor:
        """What the mlp makes of the rows behind its first module."""
        for module in list(cast(nn.Sequential, self.mlp))[1:]:
            rows = module(rows)
        return rows

    def _first_linear(self) -> nn.Linear | None:
        """The first module of the mlp, if it is a linear layer that may be called separately."""
        if not isinstance(self.mlp, nn.Sequential) or not len(self.mlp):
            return None
        first = self.mlp[0]
        return first if type(first) is nn.Linear else None


# GINE (Hu et al., ICLR 2020): GIN whose messages are rectified sums of a neighbour and its edge's features.


class GINELayer(nn.Module):
    """mlp((1 + eps) x + sum over the list of relu(x_u + edge(e_uv))); the mlp has one hidden layer."""

    def __init__(
        self, width_in: int, width_out: int, edge_width: int, eps: float = 0.0, mlp: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.mlp = mlp or nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Linear(width_out, width_out))
        self.edge = nn.Linear(edge_width, width_in)
        self.eps = nn.Parameter(torch.tensor([float(eps)]))

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]; sums use the block's totals where it has them."""
        carried = self.edge(edge_features(block, self.edge.in_features).to(x.dtype))
        messages = torch.relu(of_sources(block, x) + carried)
        own = (1 + self.eps) * x[: block.num_dst]
        result: Tensor = self.mlp(sum_of_edges(block, messages) + own)
        return result


# Layers that read no neighbours: the baseline.


class DenseLayer(nn.Module):
    """A linear map of the destination rows."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]."""
        result: Tensor = self.linear(x[: block.num_dst])
        return result


class TypedDenseLayer(nn.Module):
    """A linear map of each type's destination rows."""

    def __init__(self, width_in: int, width_out: int, node_types: Sequence[str]) -> None:
        super().__init__()
        self.node_types = list(node_types)
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in node_types)

    def forward(self, block: Block, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[dst_counts[t], out] of every type t that has rows to compute and weights here."""
        return own_terms(block, x, dict(zip(self.node_types, self.own, strict=True)))
