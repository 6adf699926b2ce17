"""`graph.json`: what a graph folder says about itself."""

from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, read_checked

EdgeType = tuple[str, str, str]

FORMAT = "penstock-graph"
VERSION = 1
DOCUMENT = "graph.json"


class FieldInfo(StrictDocument):
    """One array with a row per vertex or edge."""

    dtype: str
    shape: list[int]
    categories: list[str] | None = Field(None, description="what the integer codes mean, where they came from words")


class NodeInfo(StrictDocument):
    """A node type. A part of a cut graph holds the rows [first, first + count) of `total`."""

    count: int
    first: int = 0
    total: int
    ids: Literal["integer", "string"] | None = Field(None, description="kind of the user's ids; none: they are 0..n-1")
    fields: dict[str, FieldInfo] = Field(default_factory=dict)
    splits: dict[str, int] = Field(default_factory=dict)


class EdgeInfo(StrictDocument):
    """An edge type: in-neighbour lists of its destination vertices."""

    source: str
    relation: str
    destination: str
    count: int
    index_dtype: str
    fields: dict[str, FieldInfo] = Field(default_factory=dict)
    held_out: dict[str, int] = Field(default_factory=dict)


class GraphDocument(StrictDocument):
    """The whole of `graph.json`."""

    format: str = FORMAT
    version: int = VERSION
    name: str
    node_types: dict[str, NodeInfo]
    edge_types: dict[str, EdgeInfo]
    origin: dict[str, Any] = Field({}, description="where the graph came from: recipe, seed, spec")

    @property
    def is_part(self) -> bool:
        """Whether the folder holds a slice of a larger graph."""
        return any(info.count != info.total for info in self.node_types.values())


def edge_key(edge_type: EdgeType) -> str:
    """The name of an edge type in documents: `src__rel__dst`."""
    return "__".join(edge_type)


def file_name(name: str) -> str:
    """A type's or field's name as one path component."""
    return quote(name, safe=" +,@=")


def check_name(name: str, what: str) -> str:
    """A node type or relation must not confuse `src__rel__dst`."""
    if not name or "__" in name or name.startswith("."):
        raise PenstockError(f"{what} {name!r} cannot be a name: use one without '__' that does not start with a dot.")
    return name


def read_document(folder: Path) -> GraphDocument:
    """`graph.json` of a folder, checked."""
    return read_checked(folder / DOCUMENT, GraphDocument, FORMAT, VERSION)
