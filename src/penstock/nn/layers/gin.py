"""GIN: a small network on the vertex plus the sum of its neighbours."""

import torch
from torch import Tensor, nn

from penstock.nn.aggregation import aggregate_beside
from penstock.sampling.block import Block


class GINLayer(nn.Module):
    """mlp((1 + eps) x + sum of neighbours); the default mlp has one hidden layer as wide as the output."""

    eps: Tensor

    def __init__(
        self, width_in: int, width_out: int, eps: float = 0.0, train_eps: bool = False, mlp: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.mlp = mlp or nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Linear(width_out, width_out))
        start = torch.tensor([float(eps)])
        if train_eps:
            self.eps = nn.Parameter(start)
        else:
            self.register_buffer("eps", start)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]; sums by the block's totals where it has them."""
        neighbours, own = aggregate_beside(block, x, "sum")
        result: Tensor = self.mlp(neighbours + (1 + self.eps) * own)
        return result
