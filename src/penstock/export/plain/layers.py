"""Layers on one relation that sum, average or take the largest: GraphSAGE, GCN, GIN, and one without neighbours."""

import torch
from torch import Tensor, nn

from penstock.export.plain.edge_lists import Edges


class Sage(nn.Module):
    """The GraphSAGE layer: the neighbours' rows, reduced by `reduce`, and the vertex's own."""

    def __init__(self, width_in: int, width_out: int, reduce: str) -> None:
        super().__init__()
        self.reduce = reduce
        self.neighbours, self.own = nn.Linear(width_in, width_out), nn.Linear(width_in, width_out, bias=False)

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        result: Tensor = self.neighbours(edges.combine(x, self.reduce)) + self.own(x)
        return result


class Gcn(nn.Module):
    """The GCN layer: a sum over neighbours and the vertex itself, divided by the roots of both ends' degrees."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        x = self.linear(x)
        root = (edges.totals(x) + 1).rsqrt()
        return root * edges.combine(root * x, "sum") + root * root * x + self.bias


class Gin(nn.Module):
    """GIN; with `edge_width` GINE, whose messages are the rectified sums of source rows and edge features."""

    def __init__(self, width_in: int, width_out: int, edge_width: int = 0) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Linear(width_out, width_out))
        self.eps = nn.Parameter(torch.zeros(1))
        self.edge = nn.Linear(edge_width, width_in) if edge_width else None

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        if self.edge is None:
            messages = edges.combine(x, "sum")
        else:
            messages = edges.add(edges.weighed(torch.relu(x[edges.source] + self.edge(edges.attr))))
        result: Tensor = self.mlp(messages + (1 + self.eps) * x)
        return result


class Dense(nn.Module):
    """A layer that reads no neighbours."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x)
        return result
