"""`graph.json`: the document that describes a graph folder; and the tasks by name, with the properties of each that
other packages use.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, name_in, read_checked
from penstock.registry import Registry

EdgeType = tuple[str, str, str]

FORMAT = "penstock-graph"
VERSION = 1
DOCUMENT = "graph.json"
_SEGMENT = r"^[0-9]{1,9}$"
"""Names of segments are numbers: they are parts of paths."""
_LONGEST_NAME = 200
"""Bytes of a name in a path; file systems take 255, and files have a prefix and a suffix."""


class FieldInfo(StrictDocument):
    """One array with a row per vertex or edge."""

    dtype: str
    shape: list[int]
    categories: list[str] | None = Field(None, description="what the integer codes mean, where they came from words")


class NodeInfo(StrictDocument):
    """A node type. A part of a partitioned graph holds the rows [first, first + count) of `total`."""

    count: int = Field(ge=0)
    first: int = Field(0, ge=0)
    total: int = Field(ge=0)
    ids: Literal["integer", "string"] | None = Field(None, description="kind of the user's ids; none: they are 0..n-1")
    fields: dict[str, FieldInfo] = Field(default_factory=dict)
    splits: dict[str, int] = Field(default_factory=dict)


class EdgeInfo(StrictDocument):
    """An edge type: in-neighbour lists of its destination vertices."""

    source: str
    relation: str
    destination: str
    count: int = Field(ge=0)
    index_dtype: Literal["int32", "int64"]
    fields: dict[str, FieldInfo] = Field(default_factory=dict)
    held_out: dict[str, int] = Field(default_factory=dict)
    lists: str | None = Field(default=None, pattern=_SEGMENT, description="the segment that has the lists, if one has")


class SegmentInfo(StrictDocument):
    """Vertices and edges that were appended together."""

    name: str = Field(pattern=_SEGMENT)
    nodes: dict[str, list[int]] = Field(description="by node type, the first new vertex and the one behind the last")
    edges: dict[str, int] = Field(description="by edge type, how many edges are new")


class GraphDocument(StrictDocument):
    """The content of `graph.json`, validated."""

    format: str = FORMAT
    version: int = VERSION
    name: str
    node_types: dict[str, NodeInfo]
    edge_types: dict[str, EdgeInfo]
    origin: dict[str, Any] = Field({}, description="where the graph came from: recipe, seed, spec")
    segments: list[SegmentInfo] | None = Field(
        default=None,
        description="what was appended; with it, files of vertices may hold more rows than are counted",
    )

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
    """Check that a node type's or relation's name keeps `src__rel__dst` unambiguous and is a file name: `..` is the
    parent folder.
    """
    if not name or "__" in name or name.startswith("."):
        raise PenstockError(
            f"{what} {name!r} cannot be a name: use one without '__' that does not start with a dot.",
            code="invalid-value",
        )
    return check_field_name(name, what)


def relation_names(names: list[str]) -> list[str]:
    """Relations' names, or `r<number>` where a word cannot be the name of an edge type or is taken."""
    found, taken = list[str](), set(names)
    for number, name in enumerate(names):
        try:
            found.append(check_name(name, "Relation"))
        except PenstockError:
            other = f"r{number}"
            while other in taken:
                other += "-"
            taken.add(other)
            found.append(other)
    return found


def check_field_name(name: str, what: str) -> str:
    """A field, split or held-out set is part of a file name."""
    try:
        length = len(file_name(name))
    except UnicodeEncodeError:
        length = 0
    if not 0 < length <= _LONGEST_NAME:
        raise PenstockError(
            f"{what} {name[:40]!r} cannot be a name: use valid Unicode, of 1 to {_LONGEST_NAME} letters"
            " (others than ASCII letters and digits count several times).",
            code="invalid-value",
        )
    return name


def check_names(name: str, kind: Literal["Node type", "Relation"], fields: Iterable[str]) -> None:
    """Refuse a node type or a relation whose name, or one of whose fields, splits or held-out sets, is no safe file
    name.
    """
    check_name(name, kind)
    what = "Field or split" if kind == "Node type" else "Field or held-out set"
    for field in fields:
        check_field_name(field, f"{what} of {name!r}")


def read_document(folder: Path) -> GraphDocument:
    """`graph.json` of a folder, checked: names are file names, and edge types are between node types that exist."""
    path = folder / DOCUMENT
    document = read_checked(path, GraphDocument, FORMAT, VERSION)
    try:
        # Checked before any of them is used to open a file.
        for name, info in document.node_types.items():
            check_names(name, "Node type", (*info.fields, *info.splits))
        for lists in document.edge_types.values():
            check_names(lists.relation, "Relation", (*lists.fields, *lists.held_out))
    except PenstockError as error:
        raise PenstockError(f"{path}: {error}", code=error.code) from None
    for name, nodes in document.node_types.items():
        if nodes.first + nodes.count > nodes.total:
            last = nodes.first + nodes.count
            raise PenstockError(
                f"{path}: {name!r} holds rows {nodes.first} to {last} of {nodes.total}: correct it.",
                code="invalid-document",
            )
    for key, edges in document.edge_types.items():
        for end in (edges.source, edges.destination):
            if end not in document.node_types:
                raise PenstockError(
                    f"{path}: {key} names node type {end!r}, which does not exist.", code="invalid-document"
                )
        known = [each.name for each in document.segments or []]
        if edges.lists is not None and edges.lists not in known:
            raise PenstockError(
                f"{path}: {key} has its lists in segment {edges.lists}, which does not exist.", code="invalid-document"
            )
        if key != (stored := edge_key((edges.source, edges.relation, edges.destination))):
            raise PenstockError(
                f"{path}: edge type {key!r} is described as {stored!r}: give both the same name.",
                code="invalid-document",
            )
    return document


About = Literal["vertices", "edges", "triples"]
Learns = Literal["classes", "numbers", "links"]


@dataclass(frozen=True)
class TaskFacts:
    """The properties of a task that other packages use."""

    about: About
    """What a batch holds: vertices, edges of one relation, or triples of all relations."""
    learns: Learns
    """What is learned of them: classes, numbers, or which edges there are."""
    drawn_by_devices: bool = False
    """Whether a device may draw its batches by itself."""
    drawn_if_captured: bool = False
    """Whether a device may draw its batches at least for the captured steps of a run that one worker does."""
    explainable: bool = False
    """Whether a prediction can be explained, and sampler `explained` may use explanations."""
    predictable: bool = False
    """Whether the cost model knows all operators of its steps, and its profiles can be scaled to other clusters."""
    on_clusters: bool = False
    """Whether workers of a cluster can make it from a partitioned graph."""

    @property
    def drawn_in_captured_steps(self) -> bool:
        """Whether a device may draw its batches for captured steps."""
        return self.drawn_by_devices or self.drawn_if_captured


def _of_vertices(learns: Learns) -> TaskFacts:
    return TaskFacts("vertices", learns, drawn_by_devices=True, explainable=True, predictable=True, on_clusters=True)


def _of_edges(learns: Learns) -> TaskFacts:
    return TaskFacts("edges", learns, drawn_if_captured=True, on_clusters=True)


TASK_FACTS: Registry[TaskFacts] = Registry(
    "task",
    "penstock.tasks",
    {
        "node-classification": _of_vertices("classes"),
        "node-regression": _of_vertices("numbers"),
        "link-prediction": _of_edges("links"),
        "edge-classification": _of_edges("classes"),
        "edge-regression": _of_edges("numbers"),
        "knowledge-graph-completion": TaskFacts("triples", "links", on_clusters=True),
    },
    TaskFacts,
    part="facts",
)

if TYPE_CHECKING:
    TaskName = str
    TaskChoice = str
else:
    TaskName = name_in(TASK_FACTS)
    TaskChoice = name_in(TASK_FACTS, "auto")


def task_for(about: About, learns: Learns) -> str:
    """The name of Penstock's own task that learns `learns` about such examples."""
    return next(name for name, facts in TASK_FACTS.items() if (facts.about, facts.learns) == (about, learns))


def is_about(task: str, about: About) -> bool:
    """Whether a task is known by name and has such examples."""
    return task in TASK_FACTS and TASK_FACTS[task].about == about
