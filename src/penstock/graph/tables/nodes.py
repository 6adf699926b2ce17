"""One node type from tables to arrays: numbered in one pass, its fields written in a second."""

from bisect import bisect_right
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS, NodeSet, splits_by_ratio
from penstock.graph.folder import write_ids, write_splits
from penstock.graph.tables.columns import FieldWriters, fold_codes, learn_fields, node_fields, roles_of
from penstock.graph.tables.fields import LabelField
from penstock.graph.tables.index import IdIndex, IdKind, new_index
from penstock.graph.tables.reader import Table, TableChunk
from penstock.graph.tables.spec import NodeSpec
from penstock.progress import Progress


class NodeTable:
    """A node type: its table, if it has one, and the index of its ids."""

    def __init__(self, spec: NodeSpec, folder: Path) -> None:
        self.spec = spec
        self.fields = node_fields(spec)
        self.table_rows = 0
        self._index: IdIndex | None = new_index(spec.id_type) if spec.id_type else None
        self._final_count = 0
        self._label = next((field for field in self.fields if isinstance(field, LabelField)), None)
        self._marks: list[Array] = []
        self._places: list[tuple[int, Path, int]] = []
        self.table = self._open(folder) if spec.files else None

    @property
    def count(self) -> int:
        """The number of vertices read so far."""
        return self._index.count if self._index else self._final_count

    @property
    def kind(self) -> IdKind | None:
        """The kind of the ids, once it is known."""
        return self._index.kind if self._index else None

    def find(self, chunk: TableChunk, column: str) -> tuple[pa.Array, Array]:
        """A chunk's ids of this type and their numbers, -1 for unknown ones."""
        ids = self._ids_of(chunk, column)
        return ids, self._known.find(ids)

    def add(self, ids: pa.Array) -> Array:
        """The numbers of ids; new ones are added at the end."""
        return self._known.add(ids)

    def number(self, progress: Progress) -> None:
        """The first pass: a number for every id, and what the fields need beforehand."""
        if self.table is None:
            return
        with progress.step(f"{self.spec.type}: ids", self.table.rows, "rows"):
            for chunk in learn_fields(self.fields, self.table, {str(self.spec.id)}, progress):
                self._add_rows(chunk)
        self.table_rows = self.count

    def write(self, target: Path, stack: ExitStack, progress: Progress) -> FieldWriters:
        """The second pass: the fields of all rows. The files stay open for vertices that edges will add."""
        writers = stack.enter_context(FieldWriters(self.fields, target))
        columns = set(roles_of(self.fields))
        if self.spec.split and self.spec.split.column:
            columns.add(self.spec.split.column)
        if self.table is None or not (columns or self.fields):
            return writers
        # A field without columns (of width 0) still needs its number of rows.
        columns = columns or {str(self.spec.id)}
        with progress.step(f"{self.spec.type}: fields", self.table.rows, "rows"):
            for chunk in self.table.chunks(columns):
                writers.append(chunk)
                self._mark(chunk)
                progress.advance(len(chunk))
        return writers

    def finish(self, writers: FieldWriters, target: Path) -> NodeSet:
        """Write everything to disk, now that no vertex will be added. The index is freed."""
        writers.append_blank(self.count - self.table_rows)
        fields, splits = writers.finish(), self._splits()
        ids = self._index.ids() if self._index else None
        self._final_count, self._index = self.count, None
        write_ids(ids, target)
        write_splits(splits, target)
        return NodeSet(self.count, fields, splits, ids, writers.categories())

    def _open(self, folder: Path) -> Table:
        roles = roles_of(self.fields)
        if self.spec.split and self.spec.split.column:
            roles[self.spec.split.column] = "text"
        kind = self.spec.id_type or ("string" if roles.get(str(self.spec.id)) == "text" else None)
        roles[str(self.spec.id)] = f"{kind} id" if kind else "id"
        return Table(self.spec, folder, f"node type {self.spec.type}", roles)

    @property
    def _known(self) -> IdIndex:
        assert self._index is not None, "an id was met before"
        return self._index

    def _ids_of(self, chunk: TableChunk, column: str) -> pa.Array:
        """The ids of a chunk; the first ids decide whether all are strings or integers."""
        if self._index is None:
            self._index = new_index(id_kind(chunk, column))
        return id_values(chunk, column, self._index.kind)

    def _add_rows(self, chunk: TableChunk) -> None:
        column, first = str(self.spec.id), self.count
        self._places.append((first, chunk.file, chunk.start))
        ids = self._ids_of(chunk, column)
        numbers = self.add(ids)
        repeated = np.flatnonzero(numbers != np.arange(first, first + len(ids)))
        if len(repeated):
            row, earlier = int(repeated[0]), int(numbers[repeated[0]])
            begins, file, start = self._places[bisect_right(self._places, earlier, key=lambda place: place[0]) - 1]
            what = f"id {ids[row].as_py()!r} occurs already in {file}, row {start + earlier - begins + 1}"
            raise chunk.wrong(row, column, f"{what}: ids must be unique; remove one of the two", "duplicate")

    def _mark(self, chunk: TableChunk) -> None:
        """A byte per row for the splits: the split itself, or whether the row may be drawn."""
        split = self.spec.split
        if split is None:
            return
        if split.column:
            self._marks.append(fold_codes(chunk, split.column))
        elif self._label:
            self._marks.append(self._label.known(chunk))

    def _splits(self) -> dict[str, Array]:
        split = self.spec.split
        if split is None:
            return {}
        if split.ratios is None:
            marks = np.concatenate(self._marks)
            return {name: np.flatnonzero(marks == code) for code, name in enumerate(SPLITS)}
        eligible = np.flatnonzero(np.concatenate(self._marks)) if self._label else np.arange(self.table_rows)
        return splits_by_ratio(eligible, split.ratios, split.seed)


def id_kind(chunk: TableChunk, column: str) -> IdKind:
    """Whether a column holds strings or integers."""
    kind = chunk.batch.column(column).type
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_integer(kind):
        return "integer"
    if _is_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return "string"
    raise PenstockError(
        f"Column {column!r} of {chunk.file} is {kind}: ids must be strings or integers, convert it.", code="wrong-type"
    )


def id_values(chunk: TableChunk, column: str, kind: IdKind) -> pa.Array:
    """The ids of a chunk, cast to `kind` where they are of the other. Strings may stay dictionary-encoded."""
    values = chunk.batch.column(column)
    if kinds.is_dictionary(values.type) and (kind != "string" or values.dictionary.null_count):
        values = values.dictionary_decode()
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise chunk.wrong(row, column, "the id is missing: fill it in or remove the row", "missing-data")
    id_kind(chunk, column)
    plain = values.type.value_type if kinds.is_dictionary(values.type) else values.type
    if kind == "string" and _is_string(plain):
        return values
    wanted = pa.string() if kind == "string" else pa.int64()
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:
        row = next(row for row, value in enumerate(values) if not _casts(value, wanted))
        raise PenstockError(
            f"{chunk.place(row, column)}: {values[row].as_py()!r} is not a {_NAMES[kind]}, as the ids of this node"
            " type are: correct it, or set 'id_type: string' for the node type.",
            code="wrong-type",
        ) from None


_NAMES = {"string": "UTF-8 string", "integer": "64-bit integer"}


def _is_string(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _casts(value: pa.Scalar, wanted: pa.DataType) -> bool:
    try:
        value.cast(wanted)
    except pa.ArrowInvalid:
        return False
    return True
