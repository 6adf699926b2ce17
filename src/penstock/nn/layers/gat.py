"""Graph attention, in its first form and the second (GATv2), where scores mix both ends before the leaky step."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.nn.aggregation import aggregate, gather
from penstock.nn.attention import attend, attend_by_scores, attend_jointly
from penstock.nn.derived import looped_edges, with_self_loops
from penstock.nn.drop import drop_edges, skip_drop
from penstock.nn.edge_messages import of_destinations, of_sources
from penstock.nn.time_encoding import TimeEncoding, edge_inputs
from penstock.sampling.block import Block


class GATLayer(nn.Module):
    """`heads` weighted means of the transformed neighbours, side by side (`concat`) or averaged.

    With `self_loop` a vertex is one more neighbour of itself. `two_sided` gives destinations a transformation of their
    own, which v2 always has; `layer(block, x, x_dst)` then takes them from another matrix. `dropout` drops shares. With
    `edge_width`, v2 adds what edges carry, transformed, to both ends before the leaky step; a self loop carries the
    mean of its vertex's other edges, as in PyG.
    """

    def __init__(
        self,
        width_in: int,
        out_per_head: int,
        heads: int = 1,
        concat: bool = True,
        v2: bool = False,
        negative_slope: float = 0.2,
        self_loop: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        two_sided: bool = False,
        edge_width: int = 0,
        time_width: int = 0,
    ) -> None:
        super().__init__()
        if (edge_width or time_width) and not v2:
            raise PenstockError("GAT reads no edge features: use v2 (gatv2).", code="unsupported-combination")
        self.heads, self.size, self.concat, self.v2 = heads, out_per_head, concat, v2
        self.slope, self.self_loop, self.dropout = negative_slope, self_loop, dropout
        self.source = nn.Linear(width_in, heads * out_per_head, bias=v2 and bias)
        two_sided = two_sided or v2
        self.target = nn.Linear(width_in, heads * out_per_head, bias=v2 and bias) if two_sided else None
        self.score_source = nn.Parameter(torch.empty(heads, out_per_head))
        self.score_target = None if v2 else nn.Parameter(torch.empty(heads, out_per_head))
        self.time, self.edge_width = TimeEncoding(time_width) if time_width else None, edge_width
        carried = edge_width + time_width
        self.edge = nn.Linear(carried, heads * out_per_head, bias=False) if carried else None
        self.bias = nn.Parameter(torch.zeros(heads * out_per_head if concat else out_per_head)) if bias else None
        for weight in (self.source.weight, self.score_source, self.score_target):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.target is not None:
            nn.init.xavier_uniform_(self.target.weight)
        if self.edge is not None:
            nn.init.xavier_uniform_(self.edge.weight)

    def forward(self, block: Block, x: Tensor, x_dst: Tensor | None = None, kind: EdgeType | None = None) -> Tensor:
        """[num_dst, out] of x [num_src, in]; `x_dst` [num_dst, in] where destinations are not the first rows of x.

        `kind` is the block's relation in a batch of several, for its dropout.
        """
        if x_dst is not None and (self.target is None or self.self_loop):
            raise PenstockError(
                "Attention between two matrices needs GATLayer(two_sided=True, self_loop=False).",
                code="unsupported-combination",
            )
        lists, carried = (block, None) if self.edge is None else self._edges(block, x.dtype)
        if self.self_loop and carried is None:
            lists = with_self_loops(block)
        values = self.source(x)
        own = x[: block.num_dst] if x_dst is None else x_dst
        targets = values[: block.num_dst] if self.target is None else self.target(own)
        kept = None
        if self.training and self.dropout > 0:
            kept = drop_edges(lists, torch.ones(lists.num_edges, self.heads, device=x.device), self.dropout, kind)
        if carried is not None:
            sums = of_sources(lists, values) + of_destinations(lists, targets) + carried
            leaked = functional.leaky_relu(sums, self.slope)
            result = attend_by_scores(lists, self._scores(leaked, self.score_source), values, kept)
        elif self.score_target is None:
            result = attend_jointly(lists, values, targets, self.score_source, self.slope, kept)
        else:
            of_src, of_dst = self._scores(values, self.score_source), self._scores(targets, self.score_target)
            result = attend(lists, of_src, of_dst, values, self.slope, kept)
        if not self.concat:
            result = result.view(-1, self.heads, self.size).mean(dim=1)
        return result if self.bias is None else result + self.bias

    def _edges(self, block: Block, dtype: torch.dtype) -> tuple[Block, Tensor]:
        """The lists that are attended to, and what each of their edges adds to the sum of both ends."""
        assert self.edge is not None
        rows = self.edge(edge_inputs(block, self.edge_width, self.time).to(dtype))
        if not self.self_loop:
            return block, rows
        looped = looped_edges(block)
        return looped.block, gather(looped.reads, torch.cat([rows, aggregate(looped.others, rows, "mean")]))

    def without_edges(self) -> None:
        """What stands for `forward` where the relation has no edges in this part of a batch."""
        skip_drop(self.dropout if self.training else 0.0)

    def _scores(self, rows: Tensor, direction: Tensor) -> Tensor:
        """[rows, heads]: each head's columns times its direction."""
        return torch.einsum("rhc,hc->rh", rows.view(-1, self.heads, self.size), direction)
