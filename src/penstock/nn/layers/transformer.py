"""A transformer's attention over neighbours (Shi et al., IJCAI 2021), with what edges carry in keys and values."""

import math

import torch
from torch import Tensor, nn

from penstock.nn.attention import attend_by_scores
from penstock.nn.derived import edge_lists
from penstock.nn.drop import drop_edges
from penstock.nn.edge_messages import of_destinations, of_sources
from penstock.nn.time_encoding import TimeEncoding, edge_inputs
from penstock.sampling.block import Block


class TransformerLayer(nn.Module):
    """own(x) + `heads` softmax-weighted means of value(x_u) + edge(e_uv), side by side (`concat`) or averaged.

    Scores are query(x_v) . (key(x_u) + edge(e_uv)) / sqrt(size of a head). A vertex is no neighbour of itself. Without
    `edge_width` edges carry nothing; `time_width` numbers encode how old they are. `dropout` drops shares.
    """

    def __init__(
        self,
        width_in: int,
        out_per_head: int,
        heads: int = 1,
        concat: bool = True,
        edge_width: int = 0,
        dropout: float = 0.0,
        time_width: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.concat, self.dropout = heads, out_per_head, concat, dropout
        width = heads * out_per_head
        self.key, self.query, self.value = (nn.Linear(width_in, width) for _ in range(3))
        self.time, self.edge_width = TimeEncoding(time_width) if time_width else None, edge_width
        carried = edge_width + time_width
        self.edge = nn.Linear(carried, width, bias=False) if carried else None
        self.own = nn.Linear(width_in, width if concat else out_per_head)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]."""
        own = x[: block.num_dst]
        keys, values = of_sources(block, self.key(x)), of_sources(block, self.value(x))
        if self.edge is not None:
            carried = self.edge(edge_inputs(block, self.edge_width, self.time).to(x.dtype))
            keys, values = keys + carried, values + carried
        asked = of_destinations(block, self.query(own))
        scores = (asked * keys).view(-1, self.heads, self.size).sum(dim=2) / math.sqrt(self.size)
        kept = None
        if self.training and self.dropout > 0:
            kept = drop_edges(block, torch.ones(block.num_edges, self.heads, device=x.device), self.dropout)
        result = attend_by_scores(edge_lists(block), scores, values, kept)
        if not self.concat:
            result = result.view(-1, self.heads, self.size).mean(dim=1)
        mine: Tensor = self.own(own)
        return result + mine
