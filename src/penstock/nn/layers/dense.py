"""A layer that looks at no neighbour: the baseline."""

from torch import Tensor, nn

from penstock.sampling.block import Block


class DenseLayer(nn.Module):
    """A linear map of the destination rows."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]."""
        result: Tensor = self.linear(x[: block.num_dst])
        return result
