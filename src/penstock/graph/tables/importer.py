"""From a spec to a graph folder, or to what making it will take."""

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.graph.arrays import index_dtype
from penstock.graph.data import EdgeSet, GraphData, NodeSet
from penstock.graph.files import read_document
from penstock.graph.folder import Graph, describe_nodes, nodes_folder, open_nodes, write_document
from penstock.graph.journal import About, FolderJournal, Resumption, Sources, noted_folder
from penstock.graph.new_folders import check_target, lasting_name
from penstock.graph.schema import EdgeType, NodeInfo, SegmentInfo, edge_key
from penstock.graph.segments import Addition, growing
from penstock.graph.tables.bucket_files import READING_MB, MemoryBound
from penstock.graph.tables.columns import Field
from penstock.graph.tables.distributed import DividedImport
from penstock.graph.tables.edges import EdgeTable, Spool
from penstock.graph.tables.fields import standardise_as, standardised
from penstock.graph.tables.lists import ListTarget, known_lists, lists_step, refuse_repeated, write_spool
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.reader import Table, TableChunk, readable_columns
from penstock.graph.tables.shard_tasks import Map, Setting
from penstock.graph.tables.spec import Spec, read_spec
from penstock.memory import anonymous_mb
from penstock.progress import SILENT, Progress


def import_tables(
    spec_path: str | Path,
    out: str | Path,
    force: bool = False,
    progress: Progress = SILENT,
    memory_gb: float | None = None,
) -> Graph:
    """Build a graph folder from the tables a spec describes, and open it.

    Files are streamed: memory holds the ids, the lists of one edge type, and a few blocks of rows. With `memory_gb`
    ids and lists that would exceed it are sorted on disk; the graph is the same. Such an import goes on after it was
    killed, where neither the spec nor the tables have changed.
    """
    return run_import(spec_path, out, force, progress, memory_gb)[0]


TASK_GB = 2.0
"""The memory of a task where no other is given."""


def run_import(
    spec_path: str | Path,
    out: str | Path,
    force: bool = False,
    progress: Progress = SILENT,
    memory_gb: float | None = None,
    mapped: Map | None = None,
) -> tuple[Graph, Resumption | None]:
    """The same, and where an import that was stopped before went on.

    With `mapped` the work is divided into tasks that it runs, on other nodes perhaps; the bound is that of each task.
    """
    spec_path, out = Path(spec_path), Path(out)
    spec = read_spec(spec_path)
    if mapped is not None:
        memory_gb = TASK_GB if memory_gb is None else memory_gb
    bound = None if memory_gb is None else MemoryBound(memory_gb)
    check_target(out, force)
    work = lasting_name(out)
    with readable_columns(spec_path):
        import_ = _Import(spec, spec_path.parent, work / "new", work / "spool", bound)
        journal = FolderJournal() if bound is None else FolderJournal(work, import_.steps)
        sources = import_.sources(spec_path, mapped is not None)
        if mapped is not None and memory_gb is not None:
            setting = Setting(str(spec_path.resolve()), sources.spec, str(work), memory_gb, journal.owner)
            import_.divide(setting, mapped)

    with (
        noted_folder(out, force, journal, sources, _ABOUT, progress) as resumed,
        readable_columns(spec_path),
    ):
        import_.build(journal, progress)
    return Graph.open(out), resumed


_ABOUT = About("import", "an import with --memory-gb")


_VERTICES = "vertices"
"""The step after which no vertex is added any more."""


class _Import:
    """The tables of a spec, and the folders that they become a graph in."""

    def __init__(self, spec: Spec, tables: Path, folder: Path, work: Path, bound: MemoryBound | None) -> None:
        self._spec, self._folder, self._work, self._bound = spec, folder, work, bound
        self._nodes = {
            each.type: NodeTable(each, tables, nodes_folder(folder, each.type), nodes_folder(work, each.type), bound)
            for each in spec.nodes
        }
        self._edges = [
            EdgeTable(each, tables, self._nodes[each.type[0]], self._nodes[each.type[2]], bound) for each in spec.edges
        ]
        self._divided: tuple[Setting, Map] | None = None

    def divide(self, setting: Setting, mapped: Map) -> None:
        """Have the work be divided into tasks."""
        self._divided = setting, mapped

    @property
    def steps(self) -> list[str]:
        """The steps in their order."""
        of_nodes = [step for table in self._nodes.values() for step in table.steps]
        return [
            *(step for step in of_nodes if step.endswith("ids")),
            *(step for step in of_nodes if not step.endswith("ids")),
            *(table.step for table in self._edges),
            _VERTICES,
            *(lists_step(table.spec) for table in self._edges),
        ]

    def sources(self, spec_path: Path, divided: bool) -> Sources:
        """What the graph is made from, and whether by tasks."""
        tables = [each.table for each in self._nodes.values() if each.table is not None]
        tables += [each.table for each in self._edges]
        files = {str(file): [file.size, file.modified] for table in tables for file in table.files}
        return Sources(read_document(spec_path), files, cluster=divided)

    def build(self, journal: FolderJournal, progress: Progress) -> None:
        """Write the graph's folder; the document comes last."""
        target = ListTarget(self._folder, self._bound, journal, progress)
        if self._divided is None:
            node_sets, edge_sets = _read_all(self._nodes, self._edges, target, self._work)
        else:
            node_sets, edge_sets = DividedImport(self._nodes, self._edges, target, *self._divided).run()
        origin = _origin(self._spec, self._nodes, self._edges)
        self._folder.mkdir(exist_ok=True)
        write_document(Graph(node_sets, edge_sets, self._spec.name, self._folder, origin), self._folder)


def _read_all(
    nodes: dict[str, NodeTable], edges: list[EdgeTable], target: ListTarget, work: Path
) -> tuple[dict[str, NodeSet], dict[EdgeType, EdgeSet]]:
    """All tables as arrays in a folder."""
    journal = target.journal
    if (state := journal.state(_VERTICES)) is not None:
        node_sets, spools = _known_vertices(nodes, state, target), dict[int, Spool]()
    else:
        node_sets, spools = _read_vertices(nodes, edges, target, work)
    edge_sets: dict[EdgeType, EdgeSet] = {}
    for place, table in enumerate(edges):
        if (known := journal.state(lists_step(table.spec))) is not None:
            table.resume(journal)
            made = known_lists(known, target.folder, (table.source, table.destination))
        else:
            spool = spools.get(place) or table.spool(work / str(place), journal, target.progress)
            made = write_spool(spool, target)
        refuse_repeated(made, edge_sets)
        edge_sets |= made
    shutil.rmtree(work, ignore_errors=True)
    return node_sets, edge_sets


def _read_vertices(
    nodes: dict[str, NodeTable], edges: list[EdgeTable], target: ListTarget, work: Path
) -> tuple[dict[str, NodeSet], dict[int, Spool]]:
    """The vertices of all tables, those that only edges name too, and by table the edges in order of arrival."""
    journal, progress = target.journal, target.progress
    with ExitStack() as stack:
        for name, table in nodes.items():
            stack.callback(table.close)
            if name in journal.nodes:
                table.resume(journal.nodes[name])
            table.number(journal, progress)
        # Vertices that only edges name come last, so the field files stay open until all edges are read.
        writers = {name: table.write(stack, journal, progress) for name, table in nodes.items()}
        spools = {place: table.spool(work / str(place), journal, progress) for place, table in enumerate(edges)}
        gone = [path for table in nodes.values() for path in table.leftovers]
        node_sets = {name: table.finish(writers[name]) for name, table in nodes.items()}
    state = {name: describe_nodes(each).model_dump() for name, each in node_sets.items()}
    files = [path for path in sorted((target.folder / "nodes").glob("*/*.npy")) if path not in gone]
    journal.note(_VERTICES, state, files, gone)
    return node_sets, spools


def _known_vertices(nodes: dict[str, NodeTable], state: dict[str, Any], target: ListTarget) -> dict[str, NodeSet]:
    """The vertices that another process has noted."""
    node_sets = {}
    for name, table in nodes.items():
        node_sets[name] = open_nodes(nodes_folder(target.folder, name), NodeInfo.model_validate(state[name]))
        table.number(target.journal, target.progress)
        table.resume_finished(node_sets[name], target.journal.nodes.get(name, {}))
    return node_sets


# Tables that are appended to a graph as a segment.


def append_tables(graph: str | Path, spec_path: str | Path, progress: Progress = SILENT) -> SegmentInfo:
    """Add the vertices and edges of tables to a graph folder, as a segment; the spec is that of its import.

    Old vertices keep their numbers, and the graph is what it was until the segment is complete. Memory holds the ids of
    the node types in the spec, and the new edges.
    """
    spec_path = Path(spec_path)
    with growing(Path(graph)) as held, readable_columns(spec_path):
        known = held.graph
        spec = _as_imported(read_spec(spec_path), known)
        nodes = {
            each.type: NodeTable(
                each,
                spec_path.parent,
                nodes_folder(held.work, each.type),
                nodes_folder(held.work / "spool", each.type),
                None,
                known.nodes[each.type],
            )
            for each in spec.nodes
        }
        edges = [
            EdgeTable(each, spec_path.parent, nodes[each.type[0]], nodes[each.type[2]], None) for each in spec.edges
        ]
        _standardise_as_imported(nodes, edges, known)
        target = ListTarget(held.work, None, FolderJournal(), progress)
        node_sets, edge_sets = _read_all(nodes, edges, target, held.work / "spool")
        distinct = [kind for each in spec.edges if each.deduplicate for kind in (each.type, each.reverse_type) if kind]
        added = {name: each for name, each in node_sets.items() if each.count}
        return held.append(Addition(added, edge_sets, frozenset(distinct)), progress)


def _as_imported(spec: Spec, graph: GraphData) -> Spec:
    """The spec with the words and types that the graph's arrays have."""
    wanted: list[tuple[str, Any, Any]] = [(each.type, each, graph.nodes.get(each.type)) for each in spec.nodes]
    wanted += [(edge_key(each.type), each, graph.edges.get(each.type)) for each in spec.edges]
    for name, table, known in wanted:
        if known is None:
            raise PenstockError(
                f"The graph has no type {name}: segments add to types that there are; import the tables together.",
                code="unknown-name",
            )
        if getattr(table, "relation", None) is not None:
            raise PenstockError(
                f"{name} takes its relations from a column: import such tables together, they cannot be appended.",
                code="unsupported-combination",
            )
        for feature in table.features:
            if feature.categorical == "codes":
                feature.categories = known.categories.get(feature.column)
            elif feature.categorical and feature.categories is None:
                raise PenstockError(
                    f"Column {feature.column!r} of {name} is one-hot, and the graph does not say which word is which"
                    " column: give `categories` in the spec, sorted as in the import.",
                    code="option-missing",
                )
        for column in table.fields:
            if column.name in known.fields:
                column.dtype = column.dtype or str(known.fields[column.name].dtype)
                column.categories = known.categories.get(column.name)
        label = getattr(table, "label", None)
        if label is not None and "y" in known.fields:
            label.categories = known.categories.get("y")
            if label.kind == "multi-label" and label.columns is None:
                label.classes = known.fields["y"].shape[1]
    return spec


def _standardise_as_imported(nodes: dict[str, NodeTable], edges: list[EdgeTable], graph: GraphData) -> None:
    """Columns are standardised by the means and deviations of the import, which the graph's origin has."""
    moments = graph.origin.get("standardised", {})
    for name, table in (nodes | {each.key: each for each in edges}).items():
        if left := standardise_as(table.fields, moments.get(name, {})):
            raise PenstockError(
                f"Column {left[0]!r} of {name} is to be standardised, and the graph does not say with which mean:"
                " append with the spec of its import.",
                code="mismatched-inputs",
            )


def _origin(spec: Spec, nodes: dict[str, NodeTable], edges: list[EdgeTable]) -> dict[str, Any]:
    """The origin that the graph records; only what applies is included."""
    tables = nodes | {table.key: table for table in edges}
    happened: dict[str, dict[str, Any]] = {
        "standardised": {name: standardised(table.fields) for name, table in tables.items()},
        "created": {name: table.count - table.table_rows for name, table in nodes.items() if table.table},
        "dropped": {table.key: table.dropped for table in edges},
    }
    return {"spec": spec.name} | {
        what: {name: value for name, value in values.items() if value}
        for what, values in happened.items()
        if any(values.values())
    }


# What an import will take, before it starts: from the headers of Parquet files, and from the first rows of each table.

_LOOK_UP_S = {"string": 60e-9, "integer": 30e-9}
_ON_DISK_S, _SORT_S, _SORT_ON_DISK_S, _WRITE_S, _START_S = 300e-9, 60e-9, 150e-9, 2e-9, 1.0
"""Seconds for each id, edge and byte on two cores of 2024; the speed of reading is measured."""


@dataclass(frozen=True)
class TablePlan:
    """One table: `rows` are counted in Parquet, and estimated from the first rows of text."""

    table: str
    files: int
    bytes: int
    rows: int
    seconds: float = field(repr=False)
    """For reading all rows once."""
    field_bytes: float = field(repr=False)
    """Of a row's fields."""


@dataclass(frozen=True)
class ImportPlan:
    """What an import is expected to take; `disk_bytes` is the most that it needs at one time, the graph included."""

    seconds: float
    memory_bytes: int
    disk_bytes: int
    graph_bytes: int
    free_disk_bytes: int
    vertices: dict[str, int]
    edges: dict[str, int]
    ids_on_disk: list[str]
    """Node types whose ids do not fit into the memory."""
    tables: list[TablePlan]


def plan_import(spec_path: str | Path, out: str | Path, memory_gb: float | None = None) -> ImportPlan:
    """What an import would take; nothing is written."""
    spec_path, place = Path(spec_path), Path(out).resolve()
    spec = read_spec(spec_path)
    # Before any row is read: what the samples take is no part of the import.
    base = int((anonymous_mb() + READING_MB) * (1 << 20))
    bound = None if memory_gb is None else MemoryBound(memory_gb)
    nodes = {each.type: NodeTable(each, spec_path.parent, place, place, None) for each in spec.nodes}
    edges = [EdgeTable(each, spec_path.parent, nodes[each.type[0]], nodes[each.type[2]], None) for each in spec.edges]
    while not place.exists():
        place = place.parent
    return _Forecast(nodes, edges, base, bound).plan(shutil.disk_usage(place).free)


class _EdgeCost(NamedTuple):
    """What an edge table takes: seconds, and bytes of memory, of its spool, its lists and what is divided on disk."""

    seconds: float
    memory: int
    spool: int
    lists: int
    divided: int


class _Forecast:
    """Adds up what the steps of an import take."""

    def __init__(
        self, nodes: dict[str, NodeTable], edges: list[EdgeTable], base: int, bound: MemoryBound | None
    ) -> None:
        self._nodes, self._bound = nodes, bound
        self._base = base
        self._ids: dict[str, _IdSample] = {name: _IdSample() for name in nodes}
        self._of_nodes = {name: self._node_plan(name, each) for name, each in nodes.items() if each.table}
        self._edges = [(each, self._edge_plan(each)) for each in edges]
        self._vertices = {
            name: self._of_nodes[name].rows if name in self._of_nodes else self._ids[name].distinct() for name in nodes
        }
        sizes = {name: self._vertices[name] * self._ids[name].index_bytes() for name in nodes}
        self._index_bytes = sizes
        self._on_disk = [] if bound is None else [name for name, size in sizes.items() if not bound.holds(name, size)]

    def plan(self, free: int) -> ImportPlan:
        """The plan of the whole import, with so many bytes of disk free."""
        costs = [self._edge_cost(*each) for each in self._edges]
        node_bytes = sum(map(self._node_bytes, self._nodes))
        spools, lists = sum(each.spool for each in costs), sum(each.lists for each in costs)
        seconds = _START_S + sum(each.seconds for each in costs) + (node_bytes + spools + lists) * _WRITE_S
        for plan in self._of_nodes.values():
            seconds += 2 * plan.seconds + plan.rows * _LOOK_UP_S[self._kind(plan.table)]
        most = max(int(1.5 * sum(self._index_bytes.values())), *(each.memory for each in costs), 0)
        known = sum(int(self._vertices[kind] * (12 + self._ids[kind].bytes())) for kind in self._on_disk)
        divided = max((each.divided for each in costs), default=0)
        return ImportPlan(
            seconds=round(seconds, 1),
            memory_bytes=self._base + (most if self._bound is None else min(most, self._bound.total)),
            disk_bytes=node_bytes + spools + max(lists, known) + divided,
            graph_bytes=node_bytes + lists,
            free_disk_bytes=free,
            vertices=self._vertices,
            edges={each.key: plan.rows * (1 + each.spec.undirected) for each, plan in self._edges},
            ids_on_disk=self._on_disk,
            tables=[*self._of_nodes.values(), *(plan for _, plan in self._edges)],
        )

    def _edge_cost(self, each: EdgeTable, plan: TablePlan) -> "_EdgeCost":
        kinds = each.spec.type[0], each.spec.type[2]
        count, times = plan.rows * (1 + each.spec.undirected), 1 + bool(each.spec.reverse)
        width = index_dtype(max(self._vertices[kind] for kind in kinds)).itemsize
        spool = count * (2 * width + plan.field_bytes + 8 * (each.spec.undirected and bool(each.fields)))
        vertices = sum(self._vertices[kind] for kind in kinds)
        memory = count * (2 * width + plan.field_bytes + 16 * bool(each.fields)) + 16 * vertices
        on_disk = [kind for kind in kinds if kind in self._on_disk]
        asked = sum(plan.rows * (20 + self._ids[kind].bytes()) for kind in on_disk)
        sorts = self._bound is not None and memory > self._bound.list_bytes
        seconds = plan.seconds * (1 + bool(on_disk) + any(field.learns for field in each.fields))
        seconds += sum(plan.rows * (_ON_DISK_S if kind in on_disk else _LOOK_UP_S[self._kind(kind)]) for kind in kinds)
        seconds += times * count * (_SORT_ON_DISK_S if sorts else _SORT_S)
        lists = times * (count * (width + plan.field_bytes) + 4 * vertices)
        return _EdgeCost(seconds, int(memory), int(spool), int(lists), int(max(spool * sorts, asked)))

    def _kind(self, node_type: str) -> str:
        return self._nodes[node_type].kind or "string"

    def _node_bytes(self, name: str) -> int:
        plan = self._of_nodes.get(name)
        splits = 8 * (self._nodes[name].spec.split is not None)
        ids = self._ids[name].bytes() + (8 if self._kind(name) == "string" else 0)
        return int(self._vertices[name] * ((plan.field_bytes if plan else 0) + splits + ids))

    def _node_plan(self, name: str, each: NodeTable) -> TablePlan:
        assert each.table is not None, "only types with a table have rows"
        chunk, seconds = _first_rows(each.table)
        self._ids[name].add(each.ids_of(chunk, str(each.spec.id)), 0)
        return _table_plan(name, each.table, chunk, seconds, each.fields)

    def _edge_plan(self, each: EdgeTable) -> TablePlan:
        each.table.roles = each.roles()
        chunk, seconds = _first_rows(each.table)
        plan = _table_plan(each.key, each.table, chunk, seconds, each.fields)
        for column, nodes in each.ends():
            if nodes.table is None:
                self._ids[nodes.spec.type].add(nodes.ids_of(chunk, column), plan.rows)
        return plan


class _IdSample:
    """Ids from the first rows of tables: how many different ones all rows have, if they are spread alike."""

    def __init__(self) -> None:
        self._ids: list[pa.Array] = []
        self._rows = 0

    def add(self, ids: pa.Array, rows: int) -> None:
        """Ids of one end of a table that has so many rows."""
        self._ids.append(ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids)
        self._rows += rows

    def distinct(self) -> int:
        """The number of different ids in all rows."""
        seen = sum(map(len, self._ids))
        different = pc.count_distinct(pa.chunked_array(self._ids)).as_py() if seen else 0
        if different == seen:
            return self._rows
        low, high = float(different), 1e4 * self._rows
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if _expected(middle, seen) < different else (low, middle)
        return min(self._rows, round(_expected(low, self._rows)))

    def bytes(self) -> float:
        """The bytes of an id; none where they are 0, 1, 2, ..."""
        if not self._ids or not sum(map(len, self._ids)):
            return 0.0
        if not pa.types.is_integer(self._ids[0].type):
            return sum(pc.sum(pc.binary_length(ids)).as_py() or 0 for ids in self._ids) / sum(map(len, self._ids))
        first = self._ids[0].to_numpy(zero_copy_only=False)
        return 0.0 if self._rows == 0 and np.array_equal(first, np.arange(len(first))) else 8.0

    def index_bytes(self) -> int:
        """What an id takes in memory."""
        size = self.bytes()
        return int(32 + size) if size else 0


def _expected(ids: float, draws: int) -> float:
    """How many different ones so many draws of ids have."""
    return -ids * float(np.expm1(-draws / ids))


def _first_rows(table: Table) -> tuple[TableChunk, float]:
    """The first rows of a table, and the seconds that each took to read."""
    start, stream = time.perf_counter(), table.chunks(set(table.roles))
    chunk = next(stream)
    seconds = time.perf_counter() - start
    stream.close()
    return chunk, seconds / max(1, len(chunk))


def _table_plan(name: str, table: Table, chunk: TableChunk, seconds: float, fields: list[Field]) -> TablePlan:
    size = 0
    for each in fields:
        if each.learns:
            each.learn(chunk)
        size += each.rows(chunk).nbytes
    rows = table.expected_rows()
    files = table.files
    total = sum(file.size for file in files)
    return TablePlan(name, len(files), total, rows, rows * seconds, size / max(1, len(chunk)))
