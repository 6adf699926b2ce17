"""The spec: which files are which node and edge types, and what their columns become."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from penstock.errors import PenstockError, nearest
from penstock.graph.addresses import Format
from penstock.graph.documents import StrictDocument, read_yaml, validated
from penstock.graph.schema import EdgeType, check_name, edge_key


def read_spec(path: Path, text: str | None = None) -> "Spec":
    """Read and validate a spec file, or its `text` as it was read. The files that it names are not opened yet."""
    return validated(Spec, read_yaml(path, "the spec that describes your tables", text), str(path))


class _Part(StrictDocument):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class FeatureSpec(_Part):
    """One column of the feature matrix x, or with `categorical: codes` a field of its own."""

    column: str
    standardise: bool = False
    categorical: Literal["one-hot", "codes"] | None = None
    categories: list[str] | None = Field(None, description="the words in their order; without: those met, sorted")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.categorical and self.standardise:
            raise ValueError("categorical and standardise exclude each other: keep one")
        if self.categories is not None and not self.categorical:
            raise ValueError("categories needs categorical: add 'categorical: one-hot' or 'categorical: codes'")
        return self


class FieldSpec(_Part):
    """One or several numeric columns kept as a field; with `categories` a column of words kept as codes."""

    column: str | None = None
    columns: list[str] | None = None
    name: str = ""
    dtype: str | None = None
    categories: list[str] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _one_of(self.column, self.columns)
        self.name = self.name or self.column or ""
        if not self.name:
            raise ValueError("a field of several columns needs a name: add 'name: ...'")
        if self.columns == [] and self.dtype is None:
            raise ValueError("a field of no columns needs a dtype")
        if self.dtype is not None:
            _check_dtype(self.dtype)
        return self


class LabelSpec(_Part):
    """What becomes the field y."""

    column: str | None = None
    columns: list[str] | None = None
    kind: Literal["class", "multi-label", "float"] = "class"
    classes: int | None = Field(None, gt=0)
    categories: list[str] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _one_of(self.column, self.columns)
        if self.columns is not None and self.kind != "multi-label":
            raise ValueError("columns needs 'kind: multi-label'; other labels are one column")
        if self.kind == "float" and (self.classes is not None or self.categories is not None):
            raise ValueError("a float label has no classes: remove classes and categories")
        return self


class SplitSpec(_Part):
    """The splits train, val and test: from a column, or drawn by ratios."""

    column: str | None = None
    ratios: tuple[float, float, float] | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.column is None) == (self.ratios is None):
            raise ValueError("a split takes either 'column: ...' or 'ratios: [train, val, test]'")
        if self.ratios is not None and not (min(self.ratios) >= 0 and sum(self.ratios) <= 1 + 1e-9):
            raise ValueError(f"ratios {list(self.ratios)} must be at least 0 and sum to at most 1")
        return self


def _column_of(raw: Any) -> Any:
    """Expand `age` to `{column: age}`."""
    return raw if isinstance(raw, dict) else {"column": raw}


def _list_of(raw: Any) -> Any:
    """Expand one file to a list of one."""
    return raw if isinstance(raw, list) else [raw]


class _Table(_Part):
    files: Annotated[list[str], BeforeValidator(_list_of)] = Field([])
    format: Format | None = None
    features: list[Annotated[FeatureSpec, BeforeValidator(_column_of)]] = Field([])
    fields: list[Annotated[FieldSpec, BeforeValidator(_column_of)]] = Field([])
    split: SplitSpec | None = None
    allow_empty: bool = False


class NodeSpec(_Table):
    """One node type. Without files, every id in an edge table becomes a vertex."""

    type: str
    id: str | None = None
    id_type: Literal["string", "integer"] | None = None
    label: Annotated[LabelSpec, BeforeValidator(_column_of)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _named(self.type, "Node type")
        if self.files and self.id is None:
            raise ValueError(f"node type {self.type} has files and no id: add 'id: <column>'")
        if not self.files and self.model_fields_set - {"type", "id_type", "files"}:
            raise ValueError(f"node type {self.type} has no files to take columns from: add 'files: ...'")
        return self


class EdgeSpec(_Table):
    """One edge type, and with `reverse` a second one the other way round."""

    type: EdgeType
    source: str
    destination: str
    relation: str | None = Field(None, description="a column: each of its words becomes an edge type of its own")
    weight: str | None = None
    time: str | None = None
    reverse: str | bool = False
    undirected: bool = False
    deduplicate: bool = False
    dangling: Literal["error", "drop", "create"] = "error"

    @property
    def reverse_type(self) -> EdgeType | None:
        """The edge type that `reverse` adds."""
        if not self.reverse:
            return None
        source, relation, destination = self.type
        return destination, self.reverse if isinstance(self.reverse, str) else f"rev-{relation}", source

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        key = edge_key(self.type)
        _named(self.type[1], "Relation")
        if not self.files:
            raise ValueError(f"edge type {key} has no files: add 'files: ...'")
        if self.undirected and self.type[0] != self.type[2]:
            raise ValueError(
                f"edge type {key} joins different node types and cannot be undirected: use 'reverse: true'"
            )
        if self.undirected and self.reverse:
            raise ValueError(f"edge type {key} is undirected and needs no reverse: remove one of the two")
        if self.relation is not None and (self.features or self.fields or self.weight or self.time or self.undirected):
            raise ValueError(
                f"edge type {key} has a relation column: features, fields, weight, time and undirected are for tables"
                " of one relation"
            )
        if self.relation is not None and isinstance(self.reverse, str):
            raise ValueError(
                f"edge type {key} has a relation column: write 'reverse: true', which names each rev-<word>"
            )
        if self.split and self.split.column is None:
            raise ValueError(f"edge type {key}: a split of edges is a column; ratios are for vertices")
        return self


class Spec(_Part):
    """The spec of an import: node tables, edge tables and options."""

    name: str = "graph"
    nodes: list[NodeSpec] = Field(min_length=1)
    edges: list[EdgeSpec] = Field([])

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        node_types = [nodes.type for nodes in self.nodes]
        _unique(node_types, "node type")
        for edges in self.edges:
            for end in (edges.type[0], edges.type[2]):
                if end not in node_types:
                    raise ValueError(
                        f"edge type {edge_key(edges.type)} names the unknown node type {end!r}"
                        f"{nearest(end, node_types)}"
                    )
        edge_types = [edges.type for edges in self.edges]
        edge_types += [edges.reverse_type for edges in self.edges if edges.reverse_type]
        _unique([edge_key(edge_type) for edge_type in edge_types], "edge type")
        return self


def _one_of(column: str | None, columns: list[str] | None) -> None:
    if (column is None) == (columns is None):
        raise ValueError("give either 'column: ...' or 'columns: [...]'")


def _check_dtype(name: str) -> None:
    try:
        numeric = np.dtype(name).kind in "biuf"
    except TypeError:
        numeric = False
    if not numeric:
        raise ValueError(f"dtype {name!r} is no numeric type: use one such as float32 or int64")


def _named(name: str, what: str) -> None:
    try:
        check_name(name, what)
    except PenstockError as error:
        raise ValueError(str(error)) from None


def _unique(names: list[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} {name} is given twice: give its tables in one entry, or rename one")
