"""Attention layers: GAT and GATv2, on blocks and typed blocks, and the transformer; and the encoding of times."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.nn.aggregation import aggregate, edge_features, gather, of_destinations, of_sources
from penstock.nn.attention import attend, attend_by_scores, attend_jointly
from penstock.nn.derived import edge_lists, looped_edges, with_self_loops
from penstock.nn.drop import drop_edges, skip_drop
from penstock.nn.layers.rgcn import own_terms, readable_relations
from penstock.sampling.block import Block
from penstock.traced import tensor_of

# An encoding of how long before its seed's time an edge was (Xu et al., ICLR 2020, TGAT).


class TimeEncoding(nn.Module):
    """cos(w * age + b), `width` values for each edge. Frequencies w are initialised between 1 and 1e-9, and learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.logspace(0, -9, width))
        self.phase = nn.Parameter(torch.zeros(width))

    def forward(self, block: Block) -> Tensor:
        """[edges, width]: the encoded ages."""
        if block.ages is None:
            raise PenstockError(
                "The layer encodes the ages of edges, and the block has none: sample by `time`, with ages.",
                code="mismatched-inputs",
            )
        ages: Any = block.ages
        given: Tensor = ages if isinstance(ages, Tensor) else tensor_of(ages)
        return torch.cos(given.to(self.frequency.dtype)[:, None] * self.frequency + self.phase)


def edge_inputs(block: Block, width: int, encoding: TimeEncoding | None) -> Tensor:
    """The inputs of each edge: `width` edge features, and its encoded age."""
    parts = [edge_features(block, width)] if width else []
    if encoding is not None:
        parts.append(encoding(block))
    return parts[0] if len(parts) == 1 else torch.cat([part.to(parts[-1].dtype) for part in parts], dim=1)


# Graph attention: GAT, and GATv2, whose scores combine both ends before the leaky ReLU.


class GATLayer(nn.Module):
    """`heads` weighted means of the transformed neighbours, side by side (`concat`) or averaged.

    With `self_loop` a vertex is one more neighbour of itself. `two_sided` gives destinations a transformation of their
    own, which v2 always has; `layer(block, x, x_dst)` then takes them from another matrix. `dropout` drops attention
    coefficients. With `edge_width`, v2 adds transformed edge features to both ends before the leaky ReLU; a self loop
    has the mean of its vertex's other edges, as in PyG.
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
        """The lists that are attended to, and each edge's term in the sum of both ends."""
        assert self.edge is not None
        rows = self.edge(edge_inputs(block, self.edge_width, self.time).to(dtype))
        if not self.self_loop:
            return block, rows
        looped = looped_edges(block)
        return looped.block, gather(looped.reads, torch.cat([rows, aggregate(looped.others, rows, "mean")]))

    def without_edges(self) -> None:
        """Replaces `forward` where the relation has no edges in this part of a batch."""
        skip_drop(self.dropout if self.training else 0.0)

    def _scores(self, rows: Tensor, direction: Tensor) -> Tensor:
        """[rows, heads]: the inner products of each head's columns with its direction."""
        return torch.einsum("rhc,hc->rh", rows.view(-1, self.heads, self.size), direction)


# Attention on typed blocks: within each relation, summed over relations, plus the vertex's own term.


class TypedGATLayer(nn.Module):
    """own[type](x) + the sum over relations of their own GAT; a vertex is not its own neighbour."""

    def __init__(
        self,
        width_in: int,
        out_per_head: int,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        heads: int = 1,
        concat: bool = True,
        v2: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.node_types = list(node_types)
        self._place = {kind: place for place, kind in enumerate(edge_types)}
        width_out = heads * out_per_head if concat else out_per_head
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in node_types)
        self.relations = nn.ModuleList(
            GATLayer(
                width_in,
                out_per_head,
                heads,
                concat,
                v2,
                self_loop=False,
                dropout=dropout,
                bias=False,
                two_sided=True,
            )
            for _ in edge_types
        )

    def forward(self, block: Block, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[dst_counts[t], out] of every type t that has rows to compute and weights here."""
        result = own_terms(block, x, dict(zip(self.node_types, self.own, strict=True)))
        parts = dict(readable_relations(block, x, self._place, result))
        for kind, place in self._place.items():
            source, _, target = kind
            attention = cast(GATLayer, self.relations[place])
            if kind not in parts:
                attention.without_edges()
                continue
            part = parts[kind]
            result[target] = result[target] + attention(part, x[source], x[target][: part.num_dst], kind)
        return result


# A transformer's attention over neighbours (Shi et al., IJCAI 2021), with edge features in keys and values.


class TransformerLayer(nn.Module):
    """own(x) + `heads` softmax-weighted means of value(x_u) + edge(e_uv), side by side (`concat`) or averaged.

    Scores are query(x_v) . (key(x_u) + edge(e_uv)) / sqrt(size of a head). A vertex is not its own neighbour. Without
    `edge_width` there are no edge features; `time_width` values encode ages of edges. `dropout` drops attention
    coefficients.
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
