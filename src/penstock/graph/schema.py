"""`graph.json`: what a graph folder says about itself."""

import json
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.errors import PenstockError

EdgeType = tuple[str, str, str]

FORMAT = "penstock-graph"
VERSION = 1
DOCUMENT = "graph.json"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FieldInfo(_Document):
    """One array with a row per vertex or edge."""

    dtype: str
    shape: list[int]
    categories: list[str] | None = Field(None, description="what the integer codes mean, where they came from words")


class NodeInfo(_Document):
    """A node type. A part of a cut graph holds the rows [first, first + count) of `total`."""

    count: int
    first: int = 0
    total: int
    ids: Literal["integer", "string"] | None = Field(None, description="kind of the user's ids; none: they are 0..n-1")
    fields: dict[str, FieldInfo] = {}
    splits: dict[str, int] = {}


class EdgeInfo(_Document):
    """An edge type: in-neighbour lists of its destination vertices."""

    source: str
    relation: str
    destination: str
    count: int
    index_dtype: str
    fields: dict[str, FieldInfo] = {}
    held_out: dict[str, int] = {}


class GraphDocument(_Document):
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
    path = folder / DOCUMENT
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise PenstockError(f"{folder} is no graph folder: it has no {DOCUMENT}.") from None
    except (OSError, ValueError) as error:
        raise PenstockError(f"{path} cannot be read ({error}): copy it again.") from None
    check_format(raw, path, FORMAT, VERSION)
    try:
        return GraphDocument.model_validate(raw)
    except ValidationError as error:
        raise PenstockError(f"{path} is not valid: {first_problem(error)}.") from None


def check_format(raw: Any, path: Path, name: str, version: int) -> None:
    """Refuse a document of another kind or of a version this release does not read."""
    if not isinstance(raw, dict) or raw.get("format") != name:
        raise PenstockError(f"{path} is not a {name} document.")
    if raw.get("version") != version:
        raise PenstockError(
            f"{path} has format version {raw.get('version')!r}; this release reads version {version}:"
            " make the folder again or use the release that wrote it."
        )


def first_problem(error: ValidationError) -> str:
    """The first complaint of a validation, with the place it concerns."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])
