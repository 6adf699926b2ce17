"""Layers on several node types and relations."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.export.plain.attention import Gat
from penstock.export.plain.edge_lists import Edges

Kind = tuple[str, str, str]
Rows = dict[str, Tensor]


def kind_of(names: list[str]) -> Kind:
    source, relation, target = names
    return source, relation, target


class _Typed(nn.Module):
    """The base of layers on several types: the output types, and the relations that have weights."""

    def __init__(self, types: list[str], kinds: list[list[str]]) -> None:
        super().__init__()
        self.types, self.kinds = types, [kind_of(kind) for kind in kinds]

    def present(self, edges: dict[Kind, Edges]) -> list[tuple[int, Kind, Edges]]:
        """The relations that have edges here, with their numbers."""
        return [(number, kind, edges[kind]) for number, kind in enumerate(self.kinds) if kind in edges]


class Rgcn(_Typed):
    """R-GCN: one weight for each relation, mixtures of `bases`, or block-diagonal weights of `blocks` blocks."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        types: list[str],
        kinds: list[list[str]],
        bases: int,
        reduce: str,
        blocks: int = 0,
    ) -> None:
        super().__init__(types, kinds)
        self.reduce, self.blocks = reduce, blocks
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types)
        shape = (blocks, width_in // blocks, width_out // blocks) if blocks else (width_in, width_out)
        self.weight = nn.Parameter(torch.zeros(bases or len(kinds), *shape))
        self.mixture = nn.Parameter(torch.zeros(len(kinds), bases)) if bases else None

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """The layer's output rows by type."""
        result = {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}
        weights = self.weight if self.mixture is None else torch.einsum("rb,bio->rio", self.mixture, self.weight)
        for number, kind, some in self.present(edges):
            result[kind[2]] = result[kind[2]] + self._moved(some.combine(x[kind[0]], self.reduce), weights[number])
        return result

    def _moved(self, rows: Tensor, weight: Tensor) -> Tensor:
        if not self.blocks:
            return rows @ weight
        parts = rows.view(rows.shape[0], self.blocks, -1)
        return torch.einsum("nbi,bio->nbo", parts, weight).reshape(rows.shape[0], -1)


class OneHotRgcn(_Typed):
    """R-GCN's first layer on vertices without features: the rows of the weights serve as embeddings."""

    def __init__(self, width: int, types: list[str], kinds: list[list[str]], bases: int, reduce: str) -> None:
        super().__init__(types, kinds)
        self.reduce, self.width, self.bases = reduce, width, bases
        self.own = nn.ModuleList(_Bias(width) for _ in types)
        self.mixture = nn.Parameter(torch.zeros(len(kinds), bases))

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """The layer's output rows by type."""
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
        """The layer's output rows by type."""
        result = {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}
        for number, kind, some in self.present(edges):
            result[kind[2]] = result[kind[2]] + self.relations[number](some, x[kind[0]], x[kind[2]])
        return result


class TypedDense(_Typed):
    """A layer that reads no neighbours, with weights for each type."""

    def __init__(self, width_in: int, width_out: int, types: list[str]) -> None:
        super().__init__(types, [])
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types)

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """The layer's output rows by type."""
        return {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}


class Hgt(_Typed):
    """HGT: attention over the neighbours of all relations at once, with matrices for each relation."""

    def __init__(
        self, width_in: int, width: int, types: list[str], kinds: list[list[str]], heads: int, answer: int
    ) -> None:
        super().__init__(types, kinds)
        self.heads, self.size = heads, width // heads
        self.sources = list(dict.fromkeys(source for source, _, _ in self.kinds))
        self.query = nn.ModuleList(nn.Linear(width_in, width) for _ in types)
        self.key = nn.ModuleList(nn.Linear(width_in, width) for _ in self.sources)
        self.value = nn.ModuleList(nn.Linear(width_in, width) for _ in self.sources)
        self.own = nn.ModuleList(_HgtOutput(width_in, width, answer) for _ in types)
        shape = len(kinds), heads, self.size, self.size
        self.relation_key = nn.Parameter(torch.zeros(shape))
        self.relation_value = nn.Parameter(torch.zeros(shape))
        self.relation_scale = nn.Parameter(torch.ones(len(kinds), heads))

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """The layer's output rows by type."""
        named = zip(self.sources, self.key, self.value, strict=True)
        rows = {name: (key(x[name]), value(x[name])) for name, key, value in named if name in x}
        result = {}
        for name, query, own in zip(self.types, self.query, self.own, strict=True):
            if name in x:
                found = [(number, kind, some) for number, kind, some in self.present(edges) if kind[2] == name]
                result[name] = own(x[name], self._attended(found, rows, query(x[name])) if found else None)
        return result

    def _attended(
        self, found: list[tuple[int, Kind, Edges]], rows: dict[str, tuple[Tensor, Tensor]], queries: Tensor
    ) -> Tensor:
        keys, values = [], []
        for number, (source, _, _), some in found:
            key, value = rows[source]
            scale = (self.relation_scale[number] / math.sqrt(self.size))[:, None, None]
            keys.append(self._by_head(key, self.relation_key[number] * scale)[some.source])
            values.append(self._by_head(value, self.relation_value[number])[some.source])
        joined = _joined([some for _, _, some in found])
        scores = (queries[joined.target] * torch.cat(keys)).view(-1, self.heads, self.size).sum(dim=2)
        return joined.attend(scores, torch.cat(values))

    def _by_head(self, rows: Tensor, weight: Tensor) -> Tensor:
        parts = rows.view(rows.shape[0], self.heads, self.size)
        return torch.einsum("nhi,hio->nho", parts, weight).reshape(rows.shape)


def _joined(edges: list[Edges]) -> Edges:
    """The edges of several relations with the same destination type, concatenated."""
    source, target = (torch.cat([getattr(each, name) for each in edges]) for name in ("source", "target"))
    weight = None
    if any(each.weight is not None for each in edges):
        ones = [torch.ones_like(each.source, dtype=torch.float32) for each in edges]
        known = zip(edges, ones, strict=True)
        weight = torch.cat([one if each.weight is None else each.weight for each, one in known])
    return Edges(source, target, edges[0].rows, weight)


class _HgtOutput(nn.Module):
    """The output of one type, from what its vertices attended to and their own rows."""

    def __init__(self, width_in: int, width: int, answer: int) -> None:
        super().__init__()
        self.width = width
        self.out = nn.Linear(width, width)
        self.skip = nn.Parameter(torch.ones(1)) if width == width_in else None
        self.answer = nn.Linear(width, answer) if answer else None

    def forward(self, x: Tensor, attended: Tensor | None) -> Tensor:
        given = x.new_zeros((x.shape[0], self.width)) if attended is None else attended
        result: Tensor = self.out(functional.gelu(given))
        if self.skip is not None:
            share = self.skip.sigmoid()
            result = share * result + (1 - share) * x
        return result if self.answer is None else self.answer(result)
