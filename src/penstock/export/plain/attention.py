"""Layers on one relation that weigh neighbours by attention."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.export.plain.edge_lists import Edges


class Gat(nn.Module):
    """GAT, or GATv2 with `v2`."""

    def __init__(
        self,
        width_in: int,
        size: int,
        heads: int,
        concat: bool,
        v2: bool,
        slope: float,
        self_loop: bool,
        two_sided: bool,
        bias: bool,
        edge_width: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.concat, self.slope, self.self_loop = heads, size, concat, slope, self_loop
        width = heads * size
        self.source = nn.Linear(width_in, width, bias=v2 and bias)
        self.target = nn.Linear(width_in, width, bias=v2 and bias) if two_sided else None
        self.score_source = nn.Parameter(torch.zeros(heads, size))
        self.score_target = None if v2 else nn.Parameter(torch.zeros(heads, size))
        self.edge = nn.Linear(edge_width, width, bias=False) if edge_width else None
        self.bias = nn.Parameter(torch.zeros(width if concat else size)) if bias else None

    def forward(self, edges: Edges, x: Tensor, own: Tensor | None = None) -> Tensor:
        """The layer's output rows; `own` are the destinations' input rows where these are of another type."""
        edges = edges.looped() if self.self_loop else edges
        values = self.source(x)
        targets = values if self.target is None else self.target(x if own is None else own)
        if self.score_target is None:
            sums = values[edges.source] + targets[edges.target]
            if self.edge is not None:
                sums = sums + self.edge(edges.attr)
            scores = self._scores(functional.leaky_relu(sums, self.slope), self.score_source)
        else:
            of_source, of_target = self._scores(values, self.score_source), self._scores(targets, self.score_target)
            scores = functional.leaky_relu(of_source[edges.source] + of_target[edges.target], self.slope)
        result = edges.attend(scores, values[edges.source])
        if not self.concat:
            result = result.view(-1, self.heads, self.size).mean(dim=1)
        return result if self.bias is None else result + self.bias

    def _scores(self, rows: Tensor, direction: Tensor) -> Tensor:
        return (rows.view(-1, self.heads, self.size) * direction).sum(dim=2)


class Transformer(nn.Module):
    """Attention over neighbours as in a transformer (TransformerConv)."""

    def __init__(self, width_in: int, size: int, heads: int, concat: bool, edge_width: int = 0) -> None:
        super().__init__()
        self.heads, self.size, self.concat = heads, size, concat
        self.key, self.query, self.value = (nn.Linear(width_in, heads * size) for _ in range(3))
        self.edge = nn.Linear(edge_width, heads * size, bias=False) if edge_width else None
        self.own = nn.Linear(width_in, heads * size if concat else size)

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        keys, values = self.key(x)[edges.source], self.value(x)[edges.source]
        if self.edge is not None:
            carried = self.edge(edges.attr)
            keys, values = keys + carried, values + carried
        asked = self.query(x)[edges.target]
        scores = (asked * keys).view(-1, self.heads, self.size).sum(dim=2) / math.sqrt(self.size)
        result = edges.attend(scores, values)
        if not self.concat:
            result = result.view(-1, self.heads, self.size).mean(dim=1)
        mine: Tensor = self.own(x)
        return result + mine
