"""Layers on several node types and relations."""

from typing import Any

import torch
from torch import Tensor, nn

from penstock.train.export.plain.attention import Gat
from penstock.train.export.plain.edge_lists import Edges

Kind = tuple[str, str, str]
Rows = dict[str, Tensor]


def kind_of(names: list[str]) -> Kind:
    source, relation, target = names
    return source, relation, target


class _Typed(nn.Module):
    """What layers on several types share: which types they give, and which relations they have weights for."""

    def __init__(self, types: list[str], kinds: list[list[str]]) -> None:
        super().__init__()
        self.types, self.kinds = types, [kind_of(kind) for kind in kinds]

    def present(self, edges: dict[Kind, Edges]) -> list[tuple[int, Kind, Edges]]:
        """Those that have edges here, with their numbers."""
        return [(number, kind, edges[kind]) for number, kind in enumerate(self.kinds) if kind in edges]


class Rgcn(_Typed):
    """R-GCN: a weight for each relation, or mixtures of `bases`."""

    def __init__(
        self, width_in: int, width_out: int, types: list[str], kinds: list[list[str]], bases: int, reduce: str
    ) -> None:
        super().__init__(types, kinds)
        self.reduce = reduce
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types)
        self.weight = nn.Parameter(torch.zeros(bases or len(kinds), width_in, width_out))
        self.mixture = nn.Parameter(torch.zeros(len(kinds), bases)) if bases else None

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """Rows after the layer, by type."""
        result = {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}
        weights = self.weight if self.mixture is None else torch.einsum("rb,bio->rio", self.mixture, self.weight)
        for number, kind, some in self.present(edges):
            result[kind[2]] = result[kind[2]] + some.combine(x[kind[0]], self.reduce) @ weights[number]
        return result


class OneHotRgcn(_Typed):
    """R-GCN's first layer on vertices without features, whose rows of all weights are their embeddings."""

    def __init__(self, width: int, types: list[str], kinds: list[list[str]], bases: int, reduce: str) -> None:
        super().__init__(types, kinds)
        self.reduce, self.width, self.bases = reduce, width, bases
        self.own = nn.ModuleList(_Bias(width) for _ in types)
        self.mixture = nn.Parameter(torch.zeros(len(kinds), bases))

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """Rows after the layer, by type."""
        result = {
            name: own(x[name][:, : self.width]) for name, own in zip(self.types, self.own, strict=True) if name in x
        }
        for number, kind, some in self.present(edges):
            rows = x[kind[0]][:, self.width :].reshape(-1, self.bases, self.width)
            mixed = (rows * self.mixture[number][:, None]).sum(dim=1)
            result[kind[2]] = result[kind[2]] + some.combine(mixed, self.reduce)
        return result


class _Bias(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.bias


class TypedGat(_Typed):
    """Attention within each relation, summed over relations, beside the vertex itself."""

    def __init__(
        self, width_in: int, width_out: int, types: list[str], kinds: list[list[str]], attention: dict[str, Any]
    ) -> None:
        super().__init__(types, kinds)
        options = {name: value for name, value in attention.items() if name != "part"}
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types)
        self.relations = nn.ModuleList(Gat(**options) for _ in kinds)

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """Rows after the layer, by type."""
        result = {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}
        for number, kind, some in self.present(edges):
            result[kind[2]] = result[kind[2]] + self.relations[number](some, x[kind[0]], x[kind[2]])
        return result


class TypedDense(_Typed):
    """A layer that looks at no neighbour, for each type."""

    def __init__(self, width_in: int, width_out: int, types: list[str]) -> None:
        super().__init__(types, [])
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types)

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """Rows after the layer, by type."""
        return {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}
