"""Whole models: their inputs, layers and outputs."""

from typing import Any

import torch
from torch import Tensor, nn

from penstock.export.plain.edge_lists import Edges, not_zero
from penstock.export.plain.parts import build
from penstock.export.plain.typed_layers import kind_of


class _Model(nn.Module):
    """The base of whole models: embeddings of vertices without features, and the head."""

    def __init__(
        self, embedded: dict[str, list[int]], head: dict[str, Any] | None, scaled: bool, weighted: bool
    ) -> None:
        super().__init__()
        self.embedded, self.scaled, self.weighted = list(embedded), scaled, weighted
        self.embeddings = nn.ParameterList(torch.zeros(shape) for shape in embedded.values())
        self.head = None if head is None else build(head)

    def rows_of(self, name: str, x: Tensor | None) -> Tensor:
        """The input rows of a type: its features, or its embeddings."""
        if name in self.embedded:
            rows: Tensor = self.embeddings[self.embedded.index(name)]
            return rows
        if x is None:
            whose = f" of type {name!r}" if name else ""
            raise ValueError(f"The model needs x, the features of vertices{whose}.")
        return x / not_zero(x.sum(1, keepdim=True)) if self.scaled else x

    def edges_of(self, index: Tensor, rows: Any, weight: Tensor | None, attr: Tensor | None) -> Edges:
        """The edges of a relation; `rows` is the number of destinations."""
        if self.weighted and weight is None:
            raise ValueError("The model was trained with weights of edges: give edge_weight.")
        return Edges(index[0], index[1], rows, weight if self.weighted else None, attr)


class PlainModel(_Model):
    """A graph with one node type and one relation: tensors in, a tensor out."""

    def __init__(
        self, layers: list[dict[str, Any]], ends: list[dict[str, Any]], joined: dict[str, Any], **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.convolutions, self.ends = nn.ModuleList(map(build, layers)), nn.ModuleList(map(build, ends))
        self.joined = build(joined)

    def forward(
        self,
        x: Tensor | None,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """[vertices, width]: the output rows."""
        x = self.rows_of("", x)
        edges, outputs = self.edges_of(edge_index, x.shape[0], edge_weight, edge_attr), []
        for convolution, end in zip(self.convolutions, self.ends, strict=True):
            x = end(convolution(edges, x), x)
            outputs.append(x)
        result: Tensor = self.joined(outputs)
        return result


class TypedModel(_Model):
    """A graph with several types: dictionaries in and out. `alone`: it has one relation, and also takes tensors."""

    def __init__(
        self,
        types: list[str],
        projections: list[list[int]],
        layers: list[dict[str, Any]],
        ends: list[list[dict[str, Any]]],
        followed: list[list[list[str]]],
        joined: dict[str, Any],
        alone: list[str] | None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.types, self.alone = types, None if alone is None else kind_of(alone)
        self.followed = [[kind_of(kind) for kind in kinds] for kinds in followed]
        self.projections = nn.ModuleList(nn.Linear(width_in, width_out) for width_in, width_out in projections)
        self.convolutions = nn.ModuleList(map(build, layers))
        self.ends = nn.ModuleList(nn.ModuleList(map(build, some)) for some in ends)
        self.joined = build(joined)

    def forward(self, x: Any = None, edge_index: Any = None, edge_weight: Any = None, edge_attr: Any = None) -> Any:
        """The output rows [vertices, width] by type; a tensor where tensors were given."""
        if self.alone is not None and not isinstance(edge_index, dict):
            weight = None if edge_weight is None else {self.alone: edge_weight}
            (found,) = self.forward({self.types[0]: x}, {self.alone: edge_index}, weight, None).values()
            return found
        given, weights = x or {}, edge_weight or {}
        rows = {name: self.rows_of(name, given.get(name)) for name in self.types}
        counts = {name: some.shape[0] for name, some in rows.items()}
        edges = {
            kind: self.edges_of(index, counts[kind[2]], weights.get(kind), None) for kind, index in edge_index.items()
        }
        if self.projections:
            rows = {name: project(rows[name]) for name, project in zip(self.types, self.projections, strict=True)}
        outputs = []
        every: list[Any] = list(self.ends)
        for convolution, ends, kinds in zip(self.convolutions, every, self.followed, strict=True):
            found = convolution({kind: edges[kind] for kind in kinds if kind in edges}, rows)
            rows = {name: end(y, rows[name]) for (name, y), end in zip(found.items(), ends, strict=True)}
            outputs.append(rows)
        return {name: self.joined([some[name] for some in outputs]) for name in outputs[-1]}


class EmbeddingModel(_Model):
    """A model without layers: its rows are the embeddings, or the features as they are."""

    def __init__(self, types: list[str], **shared: Any) -> None:
        super().__init__(**shared)
        self.types = types

    def forward(self, x: Any = None, *_: Any) -> Any:
        """The rows [vertices, width] by type; a tensor where there is a single unnamed type."""
        if self.types == [""]:
            return self.rows_of("", x)
        return {name: self.rows_of(name, (x or {}).get(name)) for name in self.types}
