"""What an inspection finds."""

from dataclasses import dataclass, field
from pathlib import Path

from penstock.graph.inspect.scans import ColumnScan
from penstock.graph.schema import EdgeType


@dataclass
class FieldReport:
    """One field; `columns` is there for numeric fields of vertices."""

    dtype: str
    shape: list[int]
    columns: ColumnScan | None = None


@dataclass
class NodeReport:
    """One node type. `no_in_edges` counts vertices that receive nothing, isolated ones included."""

    count: int
    fields: dict[str, FieldReport]
    splits: dict[str, int]
    isolated: int
    no_in_edges: int


@dataclass
class EdgeReport:
    """One edge type. `reciprocal` is None where the question makes no sense or cannot be answered."""

    count: int
    self_loops: int
    duplicates: int
    reciprocal: int | None

    @property
    def symmetric(self) -> bool | None:
        """Whether every edge has its reverse; checked edge by edge, not sampled."""
        return None if self.reciprocal is None else self.reciprocal == self.count


@dataclass
class DegreeReport:
    """In-degrees over all edge types. `histogram[k]` counts the degrees of k bits: 0, 1, 2-3, 4-7, ..."""

    mean: float
    max: int
    percentiles: dict[int, int]
    histogram: list[int]


@dataclass
class Inspection:
    """Everything an inspection says of a graph."""

    name: str
    path: Path | None
    nodes: dict[str, NodeReport]
    edges: dict[EdgeType, EdgeReport]
    degree: DegreeReport
    nbytes: int
    bytes_on_disk: int | None
    warnings: list[str] = field(default_factory=list)

    @property
    def isolated(self) -> int:
        """Vertices without any edge."""
        return sum(nodes.isolated for nodes in self.nodes.values())
