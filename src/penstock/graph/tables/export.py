"""A graph as tables with its original ids, and the spec that imports them again."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS, EdgeSet, NodeSet
from penstock.graph.documents import yaml_text
from penstock.graph.files import open_bytes, write_new
from penstock.graph.folder import Graph
from penstock.graph.ids import Ids, StringIds, take_ids
from penstock.graph.integrity import check_graph
from penstock.graph.new_folders import new_folder
from penstock.graph.schema import EdgeType, edge_key, file_name
from penstock.processes import ranges
from penstock.progress import SILENT, Progress

# Fields as columns of a table, each with the line of the spec that reads it back.

_SCAN_ROWS = 1 << 20


class OutColumns:
    """The fields of one node or edge type to be exported."""

    def __init__(self, what: str, reserved: set[str], lists: bool) -> None:
        self._what, self._taken, self._lists = what, set(reserved), lists
        self._columns: list[_Column] = []

    def add(self, name: str, values: Array, categories: list[str] | None, is_label: bool) -> None:
        """Add a field. A class label is written as words; empty where there is none."""
        if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8 or values.ndim > 2:
            raise PenstockError(
                f"Field {name!r} of {self._what} is {values.dtype} of {values.ndim} dimensions:"
                " tables take numbers of one or two.",
                code="wrong-type",
            )
        if values.ndim == 2:
            self._columns.append(self._matrix(name, values, categories))
        elif categories is not None:
            self._columns.append(self._words(name, values, categories, is_label))
        elif is_label and values.dtype == np.int64 and _lowest(values) >= -1:
            column = self._free(name)
            self._columns.append(_Column(values, lambda rows: {column: _or_null(rows)}, label={"column": column}))
        else:
            column = self._free(name)
            entry = self._entry(name, values, column=column)
            self._columns.append(_Column(values, lambda rows: {column: self._plain(rows)}, entry))

    def arrays(self, start: int, stop: int) -> dict[str, pa.Array]:
        """The columns of a range of rows."""
        return self._made([column.values[start:stop] for column in self._columns])

    def blank(self, rows: int) -> dict[str, pa.Array]:
        """The columns of rows that have no fields."""
        blanks = [
            np.full((rows, *column.values.shape[1:]), column.fill, column.values.dtype) for column in self._columns
        ]
        return self._made(blanks)

    def spec(self) -> dict[str, Any]:
        """The keys of the spec that read these columns."""
        entries = [column.entry for column in self._columns if column.entry is not None]
        labels = [column.label for column in self._columns if column.label is not None]
        return ({"fields": entries} if entries else {}) | ({"label": labels[0]} if labels else {})

    def _made(self, blocks: list[Array]) -> dict[str, pa.Array]:
        made: dict[str, pa.Array] = {}
        for column, block in zip(self._columns, blocks, strict=True):
            made |= column.make(np.ascontiguousarray(block))
        return made

    def _words(self, name: str, values: Array, categories: list[str], is_label: bool) -> "_Column":
        if len(set(categories)) < len(categories) or _lowest(values) < -1 or _highest(values) >= len(categories):
            raise PenstockError(
                f"Field {name!r} of {self._what} has codes that do not match its categories one to one.",
                code="value-out-of-range",
            )
        column, words = self._free(name), pa.array(categories, pa.string())

        def make(rows: Array) -> dict[str, pa.Array]:
            return {column: words.take(_or_null(rows))}

        if is_label and values.dtype == np.int64:
            return _Column(values, make, label={"column": column, "categories": categories}, fill=-1)
        entry = {"name": name, "column": column, "dtype": str(values.dtype), "categories": categories}
        return _Column(values, make, entry, fill=-1)

    def _matrix(self, name: str, values: Array, categories: list[str] | None) -> "_Column":
        width = values.shape[1]
        named = {} if categories is None else {"categories": categories}
        if width == 0 or not self._lists:
            columns = [self._free(f"{name}_{k}") for k in range(width)]
            entry = {"name": name, "columns": columns, "dtype": str(values.dtype)} | named
            return _Column(values, lambda rows: {c: self._plain(rows[:, k]) for k, c in enumerate(columns)}, entry)
        column = self._free(name)

        def make(rows: Array) -> dict[str, pa.Array]:
            return {column: pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), width)}

        plain = self._entry(name, values, column=column)
        return _Column(values, make, {"name": name, "column": column} | named if named else plain)

    def _plain(self, rows: Array) -> pa.Array:
        # Text formats have no half floats; they are exact as float32.
        return pa.array(rows.astype(np.float32) if rows.dtype == np.float16 and not self._lists else rows)

    def _entry(self, name: str, values: Array, column: str) -> dict[str, Any] | str:
        """The shortest spec entry that restores the field: a table of lists keeps the dtype by itself."""
        if self._lists:
            return name if name == column else {"name": name, "column": column}
        return {"name": name, "column": column, "dtype": str(values.dtype)}

    def _free(self, name: str) -> str:
        """A column name not taken yet."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


@dataclass
class _Column:
    values: Array
    make: Callable[[Array], dict[str, pa.Array]]
    entry: dict[str, Any] | str | None = None
    label: dict[str, Any] | None = None
    fill: int = 0


def _or_null(rows: Array) -> pa.Array:
    """The column with -1 replaced by null."""
    return pa.array(rows, mask=rows < 0)


def _lowest(values: Array) -> float:
    return min((float(values[a:b].min()) for a, b in ranges(len(values), _SCAN_ROWS)), default=0)


def _highest(values: Array) -> float:
    return max((float(values[a:b].max()) for a, b in ranges(len(values), _SCAN_ROWS)), default=-1)


TableFormat = Literal["parquet", "csv"]

_BLOCK_BYTES = 32 << 20
_BLOCK_ROWS = 1 << 17


def export_tables(
    graph: Graph,
    folder: str | Path,
    format: TableFormat = "parquet",
    force: bool = False,
    progress: Progress = SILENT,
) -> list[str]:
    """Write every node and edge type as a table, streaming; returns the names of the files, relative to the folder.

    `spec.yaml` beside them imports the same graph again.
    """
    if graph.is_part:
        raise PenstockError(
            f"Graph {graph.name!r} is one part of a cut graph: export the whole graph instead.",
            code="whole-graph-needed",
        )
    check_graph(graph)
    spec: dict[str, Any] = {"name": graph.name, "nodes": [], "edges": []}
    with new_folder(Path(folder), force) as target:
        for name in graph.nodes:
            spec["nodes"].append(_export_nodes(name, graph.nodes[name], target, format, progress))
        for edge_type in graph.edges:
            spec["edges"].append(_export_edges(graph, edge_type, target, format, progress))
        # Escaped: some characters (U+0085) do not survive PyYAML unescaped.
        write_new(target / "spec.yaml", yaml_text(spec))
        files = [entry["files"] for entry in spec["nodes"] + spec["edges"]] + ["spec.yaml"]
        document = {"format": "penstock-export", "version": 1, "graph": graph.name, "files": files}
        write_new(target / "export.json", json.dumps(document, indent=1) + "\n")
    return files


def _export_nodes(name: str, nodes: NodeSet, target: Path, form: TableFormat, progress: Progress) -> dict[str, Any]:
    """The table of a node type, and its entry in the spec."""
    file = f"nodes/{file_name(name)}.{form}"
    columns = _columns_of(nodes, f"node type {name}", {"id", "split"}, form)
    folds = _folds(nodes, name)
    with _writing(target / file, form) as write, progress.step(f"{name}: table", nodes.count, "rows"):
        for start, stop in _blocks(nodes.count, nodes.fields):
            arrays = {"id": _id_array(nodes.ids, np.arange(start, stop)), **columns.arrays(start, stop)}
            if folds is not None:
                arrays["split"] = pa.array([*SPLITS, None]).take(pa.array(folds[start:stop]))
            write(pa.record_batch(arrays))
            progress.advance(stop - start)
    kind = "string" if isinstance(nodes.ids, StringIds) else "integer"
    entry = {"type": name, "files": file, "id": "id", "id_type": kind, **columns.spec()}
    return entry | _split_and_size(folds is not None, nodes.count)


def _export_edges(
    graph: Graph, edge_type: EdgeType, target: Path, form: TableFormat, progress: Progress
) -> dict[str, Any]:
    """The table of an edge type, held-out pairs last, and its entry in the spec."""
    key, edges = edge_key(edge_type), graph.edges[edge_type]
    file = f"edges/{file_name(key)}.{form}"
    columns = _columns_of(edges, f"edge type {key}", {"source", "destination", "split"}, form)
    unknown = set(edges.held_out) - set(SPLITS[1:])
    if unknown:
        raise PenstockError(
            f"Edge type {key} holds out {min(unknown)!r}: tables know only val and test.",
            code="unsupported-combination",
        )

    def batch(sources: Array, destinations: Array, fields: dict[str, pa.Array], fold: str | None) -> pa.RecordBatch:
        source_ids, destination_ids = graph.nodes[edge_type[0]].ids, graph.nodes[edge_type[2]].ids
        arrays = {
            "source": _id_array(source_ids, sources),
            "destination": _id_array(destination_ids, destinations),
        }
        if edges.held_out:
            arrays["split"] = pa.repeat(pa.scalar(fold, pa.string()), len(sources))
        return pa.record_batch(arrays | fields)

    with _writing(target / file, form) as write, progress.step(f"{key}: table", edges.count, "rows"):
        for start, stop in _blocks(edges.count, edges.fields):
            sources, destinations = (
                np.asarray(edges.indices[start:stop]),
                _destinations(edges.indptr, start, stop),
            )
            write(batch(sources, destinations, columns.arrays(start, stop), None))
            progress.advance(stop - start)
        for fold, pairs in edges.held_out.items():
            for start, stop in ranges(len(pairs), _BLOCK_ROWS):
                rows = np.asarray(pairs[start:stop])
                write(batch(rows[:, 0], rows[:, 1], columns.blank(stop - start), fold))
    entry = {
        "type": list(edge_type),
        "files": file,
        "source": "source",
        "destination": "destination",
        **columns.spec(),
    }
    return entry | _split_and_size(bool(edges.held_out), edges.count + sum(map(len, edges.held_out.values())))


def _columns_of(rows: NodeSet | EdgeSet, what: str, reserved: set[str], form: TableFormat) -> OutColumns:
    columns = OutColumns(what, reserved, lists=form == "parquet")
    for name, values in rows.fields.items():
        columns.add(name, values, rows.categories.get(name), is_label=name == "y" and isinstance(rows, NodeSet))
    return columns


def _folds(nodes: NodeSet, name: str) -> Array | None:
    """The split of every vertex by its place in train, val, test; 3 for none."""
    if not nodes.splits:
        return None
    folds = np.full(nodes.count, len(SPLITS), np.int8)
    for split, rows in nodes.splits.items():
        if split not in SPLITS or (folds[rows] != len(SPLITS)).any():
            raise PenstockError(
                f"Split {split!r} of node type {name} is not train, val or test, or shares vertices with another"
                " split: a table has one split column; change the splits first.",
                code="unsupported-combination",
            )
        folds[rows] = SPLITS.index(split)
    return folds


def _split_and_size(has_split: bool, rows: int) -> dict[str, Any]:
    return ({"split": {"column": "split"}} if has_split else {}) | ({} if rows else {"allow_empty": True})


def _id_array(ids: Ids | None, rows: Array) -> pa.Array:
    """The ids of some vertices; their numbers where they have no others."""
    if ids is None:
        return pa.array(rows.astype(np.int64, copy=False))
    taken = take_ids(ids, rows)
    return taken.to_arrow().cast(pa.string()) if isinstance(taken, StringIds) else pa.array(taken)


def _destinations(indptr: Array, start: int, stop: int) -> Array:
    """The destination of every edge of a range."""
    first, last = np.searchsorted(indptr, [start, stop], side="right") - 1
    # The list after the last whole one has edges of the range if it begins inside.
    offsets = np.clip(indptr[first : last + 2], start, stop)
    return np.repeat(np.arange(first, first + len(offsets) - 1), np.diff(offsets))


def _blocks(rows: int, fields: dict[str, Array]) -> Iterator[tuple[int, int]]:
    """Row groups of a few megabytes; an empty table is one empty group."""
    row_bytes = sum(values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)) for values in fields.values())
    size = max(256, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
    return ranges(rows, size) if rows else iter([(0, 0)])


_IDS = {"id", "source", "destination"}


def _parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How each column is written. Floats hardly repeat and hardly shrink: looking for what repeats, compressing and
    statistics would take most of the time. Ids that are numbers are written as differences.
    """
    numbers = [each.name for each in schema if each.name in _IDS and pa.types.is_integer(each.type)]
    floats = [each.name for each in schema if pa.types.is_floating(_values_of(each.type))]
    others = [_leaf(each) for each in schema if each.name not in {*numbers, *floats}]
    return {
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "use_dictionary": others,
        "write_statistics": [*numbers, *others],
        "compression": {_leaf(each): "none" if each.name in floats else "snappy" for each in schema},
    }


def _values_of(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_fixed_size_list(kind) else kind


def _leaf(column: pa.Field) -> str:
    """The name of a column's values in a Parquet file."""
    return f"{column.name}.list.element" if pa.types.is_fixed_size_list(column.type) else str(column.name)


@contextmanager
def _writing(path: Path, form: TableFormat) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """A function that appends batches to a new file; the first one decides the columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        writers: list[Any] = []

        def write(batch: pa.RecordBatch) -> None:
            if not writers:
                file = stack.enter_context(open_bytes(path, "xb"))
                if form == "parquet":
                    writer = pq.ParquetWriter(file, batch.schema, **_parquet_options(batch.schema))
                else:
                    writer = pacsv.CSVWriter(file, batch.schema)
                writers.append(stack.enter_context(writer))
            writers[0].write_batch(batch)

        yield write
