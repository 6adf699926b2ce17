"""GraphSAGE: a transformed aggregate of the neighbours beside the transformed vertex."""

from torch import Tensor, nn
from torch.nn import functional

from penstock.nn.aggregation import Reduce, aggregate, aggregate_beside
from penstock.nn.order import Order, aggregates_first
from penstock.sampling.block import Block


class SAGELayer(nn.Module):
    """neighbours(aggregate) + own(x). `order` is chosen by cost; a maximum is always taken first."""

    def __init__(
        self, width_in: int, width_out: int, aggregate: Reduce = "mean", bias: bool = True, order: Order = "auto"
    ) -> None:
        super().__init__()
        self.reduce, self.order = aggregate, order
        self.neighbours = nn.Linear(width_in, width_out, bias)
        self.own = nn.Linear(width_in, width_out, bias=False)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]."""
        weight, bias = self.neighbours.weight, self.neighbours.bias
        if self.reduce == "max" or aggregates_first(block, x, weight, self.order):
            neighbours, own = aggregate_beside(block, x, self.reduce)
            result = functional.linear(neighbours, weight, bias)
        else:
            result = aggregate(block, functional.linear(x, weight), self.reduce)
            result = result if bias is None else result + bias
            own = x[: block.num_dst]
        return result.addmm_(own, self.own.weight.t())
