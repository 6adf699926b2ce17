"""GraphSAGE: a transformed aggregate of the neighbours beside the transformed vertex."""

from torch import Tensor, nn

from penstock.nn.aggregate import Reduce, aggregate
from penstock.nn.order import Order, transform_neighbours
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
        order: Order = "aggregate" if self.reduce == "max" else self.order
        result = transform_neighbours(
            block, x, self.neighbours.weight, lambda rows: aggregate(block, rows, self.reduce), order
        )
        if self.neighbours.bias is not None:
            result = result + self.neighbours.bias
        own: Tensor = self.own(x[: block.num_dst])
        return result + own
