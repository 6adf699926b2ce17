"""GraphSAGE: a transformed aggregate of the neighbours beside the transformed vertex."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.nn.aggregation import Reduce, aggregate, aggregate_beside, aggregate_joined
from penstock.nn.constant_input import is_constant
from penstock.nn.device.rectified import Rectified
from penstock.nn.device.rows import TableRows, compute_dtype
from penstock.nn.first_rows import AggregatedRows, HostRows
from penstock.nn.order import Costs, aggregates_first, inputs_aggregated_first, transformed
from penstock.nn.order_costs import Order
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock


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

    def forward(self, block: Block, x: Tensor | TableRows | Rectified | AggregatedRows | HostRows) -> Tensor:
        """[num_dst, out] of x [num_src, in]; a device's block reads rows of a table where they lie."""
        weight, bias = self.neighbours.weight, self.neighbours.bias
        in_table = isinstance(x, TableRows) and x.direct
        first = self.reduce == "max" or in_table or aggregates_first(block, x, weight, self.order, self.costs)
        if isinstance(block, DeviceBlock) and first and self.reduce != "max" and not isinstance(x, HostRows):
            # One product rather than two, of which the second would read and write all results again. The bias is a
            # weight of ones: its gradient by itself would be one more pass over all results.
            joined = aggregate_joined(block, x, self.reduce, compute_dtype(weight))
            return functional.linear(joined, self._joined_weights(joined.shape[1]))
        if isinstance(x, TableRows):
            x = x.materialise(compute_dtype(weight))
        if isinstance(x, Rectified):
            x = x.settled()
        if first and not isinstance(x, HostRows):
            neighbours, own = aggregate_beside(block, x, self.reduce)
            result = functional.linear(neighbours, weight, bias)
        else:
            assert not isinstance(x, AggregatedRows)
            result = aggregate(block, transformed(x, weight), self.reduce)
            result = result if bias is None else result + bias
            if isinstance(x, HostRows):
                return result + transformed(x[: block.num_dst], self.own.weight)
            if is_constant(x):
                return result + transformed(x, self.own.weight)[: block.num_dst]
            own = x[: block.num_dst]
        if result.dtype == own.dtype == weight.dtype:
            return result.addmm_(own, self.own.weight.t())
        return result + functional.linear(own, self.own.weight)

    def aggregates_inputs(self, block: Block) -> bool:
        """Whether features of a batch are aggregated before they are transformed."""
        return self.reduce != "max" and inputs_aggregated_first(block, self.neighbours.weight, self.order, self.costs)

    def _joined_weights(self, width: int) -> Tensor:
        weight, bias = self.neighbours.weight, self.neighbours.bias
        parts = [weight, self.own.weight, *([] if bias is None else [bias[:, None]])]
        empty = width - sum(part.shape[1] for part in parts)
        return torch.cat([*parts, weight.new_zeros(len(weight), empty)], dim=1)
