"""GINE (Hu et al., ICLR 2020): GIN whose messages are rectified sums of a neighbour and what the edge carries."""

import torch
from torch import Tensor, nn

from penstock.nn.edge_messages import edge_features, of_sources, sum_of_edges
from penstock.sampling.block import Block


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
        """[num_dst, out] of x [num_src, in]; sums by the block's totals where it has them."""
        carried = self.edge(edge_features(block, self.edge.in_features).to(x.dtype))
        messages = torch.relu(of_sources(block, x) + carried)
        own = (1 + self.eps) * x[: block.num_dst]
        result: Tensor = self.mlp(sum_of_edges(block, messages) + own)
        return result
