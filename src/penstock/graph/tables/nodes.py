"""One node type from tables to arrays: numbered in one pass, its fields written in a second."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from penstock.errors import PenstockError
from penstock.graph.addresses import DataFile
from penstock.graph.arrays import Array, ArrayWriter, open_array
from penstock.graph.data import SPLITS, DrawnSplit, NodeSet
from penstock.graph.folder import write_ids
from penstock.graph.ids import StringIds
from penstock.graph.journal import FolderJournal
from penstock.graph.tables.bucket_files import MemoryBound
from penstock.graph.tables.columns import LabelField
from penstock.graph.tables.disk_index import DiskIndex
from penstock.graph.tables.fields import FieldWriters, fold_codes, learn_fields, node_fields, roles_of
from penstock.graph.tables.index import IdIndex, IdKind, counted_index, new_index
from penstock.graph.tables.reader import Table, TableChunk
from penstock.graph.tables.spec import NodeSpec
from penstock.processes import ranges
from penstock.progress import Progress

MARKS = "marks.npy"
_SPLIT_ROWS = 1 << 20
_SAVED_IDS = 1 << 18


class IndexFullError(Exception):
    """The ids of a node type outgrow the memory that they may take: they have to go to disk."""

    def __init__(self, nodes: "NodeTable") -> None:
        super().__init__()
        self.nodes = nodes


class NodeTable:
    """A node type: its table, if it has one, and the index of its ids, in memory or on disk.

    `target` is the folder of its arrays, `work` one for files that are not kept. The table may add to `known` vertices:
    they keep their numbers, and the arrays are those of new ones alone.
    """

    def __init__(
        self,
        spec: NodeSpec,
        folder: Path,
        target: Path,
        work: Path,
        bound: MemoryBound | None,
        known: NodeSet | None = None,
    ) -> None:
        self.spec, self._before = spec, known
        self.first = 0 if known is None else known.count
        """The number of the first vertex that the table may add."""
        self.on_disk: DiskIndex | None = None
        self._target, self._work, self._bound = target, work, bound
        self.fields = node_fields(spec)
        self.table_rows = self.first
        self._index: IdIndex | None = new_index(spec.id_type) if spec.id_type else None
        if known is not None:
            self._index = _index_of(known)
        self._final_count = 0
        self._elsewhere: int | None = None
        self._label = next((field for field in self.fields if isinstance(field, LabelField)), None)
        self._marks: ArrayWriter | None = None
        self._places: list[tuple[int, DataFile, int]] = []
        self._saved: list[ArrayWriter] = []
        """The ids of the index in memory, as far as they were noted in a journal."""
        self.table = self._open(folder) if spec.files else None

    @property
    def grows_by_edges(self) -> bool:
        """Whether every id in an edge table becomes a vertex: the type has no table, here or before."""
        return self.table is None and (self._before is None or not self._before.fields)

    @property
    def count(self) -> int:
        """The number of vertices read so far."""
        if self._elsewhere is not None:
            return self._elsewhere
        if self.on_disk:
            return self.on_disk.count
        return self._index.count if self._index else self._final_count

    @property
    def kind(self) -> IdKind | None:
        """The kind of the ids, once it is known."""
        known = self.on_disk or self._index
        return known.kind if known else None

    def find(self, chunk: TableChunk, column: str) -> tuple[pa.Array, Array]:
        """A chunk's ids of this type and their numbers, -1 for unknown ones."""
        ids = self.ids_of(chunk, column)
        return ids, self._known.find(ids)

    def add(self, ids: pa.Array) -> Array:
        """The numbers of ids; new ones are added at the end."""
        if not self._fits(ids):
            raise IndexFullError(self)
        return self._known.add(ids)

    def move_to_disk(self) -> DiskIndex:
        """From now on the ids are on disk: they are looked up all at once, by `DiskIndex.answer`."""
        assert self._bound is not None, "without a bound every index fits"
        self.on_disk = DiskIndex(self._known.kind, self._work / "ids", self._target, self._bound)
        self.on_disk.take(self._known)
        self._index, self._saved = None, []
        self._bound.holds(self.spec.type, 0)
        return self.on_disk

    @property
    def looked_up_at_once(self) -> bool:
        """Whether the ids are on disk, here or in files of other processes."""
        return self.on_disk is not None or self._elsewhere is not None

    # Shards of a type's ids, each of which one process numbers.

    def know(self, kind: IdKind, count: int, elsewhere: bool = False) -> None:
        """There are so many vertices: with the ids 0, 1, 2, ..., or with those in files of other processes."""
        self._index = new_index(kind) if elsewhere else counted_index(count)
        self._elsewhere = count if elsewhere else None

    def begin_shard(self, kind: IdKind, first: int) -> DiskIndex:
        """From now on new ids are those of a shard, from number `first` on; they go to disk."""
        assert self._bound is not None, "only a bound brings ids to disk"
        self.on_disk = DiskIndex(kind, self._work / "ids", self._target, self._bound, first=first)
        return self.on_disk

    def number_shard(self, progress: Progress) -> list[tuple[int, int, int]]:
        """Number the rows of the table's shard; the first row in it of every file, with the file's number and row."""
        assert self.table is not None, "only a table has shards"
        for chunk in learn_fields([], self.table, {str(self.spec.id)}, progress):
            self._add_rows(chunk)
        places = [(first, self.table.files.index(file), start) for first, file, start in self._places]
        return [place for n, place in enumerate(places) if n == 0 or places[n - 1][1] != place[1]]

    def place_shards(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Where the rows of all shards lie: the number of the first, and its file and row."""
        assert self.table is not None, "only a table has shards"
        self._places = [(first, self.table.files[file], start) for first, file, start in places]

    def write_shard(self, progress: Progress) -> FieldWriters:
        """Write the fields of the table's shard, and the marks of its rows."""
        assert self.table is not None, "only a table has shards"
        with FieldWriters(self.fields, self._target) as writers:
            if self.fields:
                writers.try_on_first(self.table)
            self._write_rows(self.table, writers, progress)
        return writers

    def write_rest(self, marks: Iterable[Path], rows: int, created: int) -> list[str]:
        """The fields of so many vertices that edges have created, and the splits; their names."""
        with FieldWriters(self.fields, self._target) as writers:
            if self.table is not None and self.fields:
                writers.try_on_first(self.table, begin=True)
                writers.append_blank(created)
        paths = list(marks)
        if paths:
            with ArrayWriter(self._marks_path, np.int8) as self._marks:
                for path in paths:
                    self._marks.append(open_array(path))
        self.table_rows = rows
        return list(self._splits())

    def _fits(self, ids: pa.Array) -> bool:
        return self._bound is None or self._bound.holds(self.spec.type, self._known.size_with(ids))

    @property
    def steps(self) -> list[str]:
        """The steps that `number` and `write` note."""
        return [self._step("ids"), self._step("fields")] if self.table else []

    def _step(self, what: str) -> str:
        return f"{self.spec.type}: {what}"

    def number(self, journal: FolderJournal, progress: Progress) -> None:
        """The first pass: a number for every id, and what the fields need beforehand."""
        if self.table is None:
            return
        if (learned := journal.state(self._step("ids"))) is not None:
            for field, each in zip(self.fields, learned, strict=True):
                if field.learns:
                    field.use_learned(each)
            return
        with progress.step(f"{self.spec.type}: ids", self.table.rows, "rows"):
            for chunk in learn_fields(self.fields, self.table, {str(self.spec.id)}, progress):
                self._add_rows(chunk)
        self.table_rows = self.count
        if self.on_disk and (repeated := self.on_disk.repeated()):
            raise self.twice(repeated[0], repeated[1], self.on_disk.id_of(repeated[0]))
        state, files = self.noted(journal)
        learned = [field.learned() if field.learns else None for field in self.fields]
        journal.note(self._step("ids"), learned, files, nodes={self.spec.type: state})

    def write(self, stack: ExitStack, journal: FolderJournal, progress: Progress) -> FieldWriters:
        """The second pass: the fields of all rows. The files stay open for vertices that edges will add."""
        known = journal.state(self._step("fields")) is not None
        writers = stack.enter_context(FieldWriters(self.fields, self._target, known))
        if known:
            writers.reopen()
            self._marks = ArrayWriter.existing(self._marks_path) if self._marks_path.exists() else None
        elif self.table is not None:
            self._write_rows(self.table, writers, progress)
            marks = [] if self._marks is None else [self._marks]
            journal.note(self._step("fields"), True, [*writers.files, *marks])
        return writers

    def _write_rows(self, table: Table, writers: FieldWriters, progress: Progress) -> None:
        columns = set(roles_of(self.fields))
        if self.spec.split and self.spec.split.column:
            columns.add(self.spec.split.column)
        if not (columns or self.fields):
            return
        # A field without columns (of width 0) still needs its number of rows.
        columns = columns or {str(self.spec.id)}
        with progress.step(f"{self.spec.type}: fields", table.rows, "rows"):
            for chunk in table.chunks(columns):
                writers.append(chunk)
                self._mark(chunk)
                progress.advance(len(chunk))
        if self._marks is not None:
            self._marks.close()

    # What a journal notes of the ids, so that another process goes on with them.

    def noted(self, journal: FolderJournal) -> tuple[dict[str, Any], list[ArrayWriter]]:
        """What a journal is to note of the ids that are known: a state, and the files."""
        if not journal.is_kept:
            return {}, []
        state: dict[str, Any] = {"kind": self.kind, "table_rows": self.table_rows, "on_disk": None, "counted": None}
        if self.on_disk is not None:
            state["on_disk"], files = self.on_disk.noted()
            return state, files
        if self._index is None:
            return state, []
        if self._index.is_counting:
            return {**state, "counted": self._index.count}, []
        self._save(self._index)
        return state, self._saved

    def _save(self, index: IdIndex) -> None:
        """Write the ids of an index in memory that have come since this was done before."""
        texts = index.kind == "string"
        if not self._saved:
            types = {"lengths": np.uint32, "bytes": np.uint8} if texts else {"ids": np.int64}
            self._saved = [ArrayWriter(self.known_folder / f"{name}.npy", each) for name, each in types.items()]
        else:
            for writer in self._saved:
                writer.reopen()
        before = self._saved[0].rows
        for start, stop in ranges(index.count - before, _SAVED_IDS):
            some = index.some(before + start, before + stop)
            if not texts:
                self._saved[0].append(some.to_numpy(zero_copy_only=False))
                continue
            strings = StringIds.from_arrow(some)
            self._saved[0].append(np.diff(strings.offsets))
            self._saved[1].append(strings.data)
        for writer in self._saved:
            writer.close()

    def resume(self, state: dict[str, Any]) -> None:
        """Go on with the ids that another process has noted."""
        self.table_rows = state["table_rows"]
        if state["kind"] is None:
            return
        if state["on_disk"] is not None:
            assert self._bound is not None, "only a bound brings ids to disk"
            work = self._work / "ids"
            self.on_disk, self._index = (
                DiskIndex(state["kind"], work, self._target, self._bound, state["on_disk"]),
                None,
            )
            return
        if state["counted"] is not None:
            self._index = counted_index(state["counted"])
            return
        self._index = new_index(state["kind"])
        names = ("lengths", "bytes") if state["kind"] == "string" else ("ids",)
        paths = [self.known_folder / f"{name}.npy" for name in names]
        # Beyond a bound that is smaller now, they go to disk as ids do that are read.
        for ids in _saved_ids([open_array(path) for path in paths]):
            self._add_new(ids)
        if self.on_disk is None:
            self._saved = [ArrayWriter.existing(path) for path in paths]

    def resume_finished(self, nodes: NodeSet, state: dict[str, Any]) -> None:
        """The same once the type is finished: only its sizes are needed any more."""
        self.table_rows, self._final_count, self._index = state.get("table_rows", 0), nodes.count, None

    @property
    def leftovers(self) -> list[Path]:
        """What is needed no more once the type is finished."""
        return [self._work, *(self.on_disk.leftovers() if self.on_disk else [])]

    @property
    def known_folder(self) -> Path:
        """Where the ids of an index in memory are saved."""
        return self._work / "known"

    @property
    def _marks_path(self) -> Path:
        return self._work / MARKS

    def finish(self, writers: FieldWriters) -> NodeSet:
        """Write everything to disk, now that no vertex will be added. The index is freed."""
        count = self.count
        writers.append_blank(count - self.table_rows)
        fields, splits = writers.finish(), self._splits()
        if self.on_disk:
            ids = self.on_disk.ids()
        else:
            ids = self._index.ids() if self._index else None
            if self._before is not None and self._index is not None and ids is not None:
                new = self._index.some(self.first, count)
                ids = StringIds.from_arrow(new) if self.kind == "string" else new.to_numpy(zero_copy_only=False)
            write_ids(ids, self._target)
        self._final_count, self._index, self.on_disk = count, None, None
        return NodeSet(count - self.first, fields, splits, ids, writers.categories())

    def close(self) -> None:
        """Close the files that are still open, after an error too."""
        if self._marks is not None:
            self._marks.close()
        if self.on_disk is not None:
            self.on_disk.release()

    def _open(self, folder: Path) -> Table:
        roles = roles_of(self.fields)
        if self.spec.split and self.spec.split.column:
            roles[self.spec.split.column] = "text"
        kind = self.kind or ("string" if roles.get(str(self.spec.id)) == "text" else None)
        roles[str(self.spec.id)] = f"{kind} id" if kind else "id"
        return Table(self.spec, folder, f"node type {self.spec.type}", roles)

    @property
    def _known(self) -> IdIndex:
        assert self._index is not None, "an id was met before"
        return self._index

    def ids_of(self, chunk: TableChunk, column: str) -> pa.Array:
        """The ids of a chunk; the first ids decide whether all are strings or integers."""
        kind = self.kind
        if kind is None:
            self._index = new_index(id_kind(chunk, column))
            kind = self._index.kind
        return id_values(chunk, column, kind)

    def _add_rows(self, chunk: TableChunk) -> None:
        column, first = str(self.spec.id), self.count
        self._places.append((first, chunk.file, chunk.start))
        ids = self.ids_of(chunk, column)
        numbers = self._add_new(ids)
        if numbers is None:
            return
        repeated = np.flatnonzero(numbers != np.arange(first, first + len(ids)))
        if len(repeated):
            row = int(repeated[0])
            raise self.twice(first + row, int(numbers[row]), ids[row].as_py())

    def _add_new(self, ids: pa.Array) -> Array | None:
        """Number ids; None where they are on disk, which must not know them."""
        if self.on_disk is None and not self._fits(ids):
            self.move_to_disk()
        if self.on_disk:
            self.on_disk.append(ids)
            return None
        return self._known.add(ids)

    def twice(self, row: int, earlier: int, value: object) -> PenstockError:
        """The error about an id that two rows have."""
        what = f"column {self.spec.id!r}: id {value!r} occurs already in {self._place(earlier)}"
        return PenstockError(
            f"{self._place(row)}, {what}: ids must be unique; remove one of the two.", code="duplicate"
        )

    def _place(self, number: int) -> str:
        if number < self.first:
            return "the graph"
        begins, file, start = self._places[bisect_right(self._places, number, key=lambda place: place[0]) - 1]
        return f"{file}, row {start + number - begins + 1}"

    def _mark(self, chunk: TableChunk) -> None:
        """A byte per row for the splits: the split itself, or whether the row may be drawn."""
        split = self.spec.split
        if split is None or not (split.column or self._label):
            return
        if self._marks is None:
            self._marks = ArrayWriter(self._marks_path, np.int8)
        if split.column:
            self._marks.append(fold_codes(chunk, split.column))
        elif self._label:
            self._marks.append(self._label.known(chunk))

    def _splits(self) -> dict[str, Array]:
        """The splits, written block by block and mapped."""
        split = self.spec.split
        if split is None:
            return {}
        if self._marks is not None:
            self._marks.close()
        marks = open_array(self._marks_path) if self._marks else None
        with ExitStack() as stack:
            paths = {name: self._target / f"split.{name}.npy" for name in SPLITS}
            writers = [stack.enter_context(ArrayWriter(path, np.int64)) for path in paths.values()]
            rows = self.table_rows - self.first
            drawn = DrawnSplit(rows, marks, split.ratios, split.seed) if split.ratios else None
            for start, stop in ranges(rows, _SPLIT_ROWS):
                codes = drawn.codes(start, stop) if drawn else np.asarray(marks)[start:stop]
                for code, writer in enumerate(writers):
                    writer.append(self.first + start + np.flatnonzero(codes == code))
        return {name: open_array(path) for name, path in paths.items()}


def _saved_ids(columns: list[Array]) -> Iterator[pa.Array]:
    """Ids that were saved, block by block: integers, or the lengths and bytes of strings."""
    begin = 0
    for start, stop in ranges(len(columns[0]), _SAVED_IDS):
        if len(columns) == 1:
            yield pa.array(np.array(columns[0][start:stop]))
            continue
        offsets = np.concatenate([[0], np.cumsum(columns[0][start:stop], dtype=np.int64)])
        yield StringIds(offsets, np.array(columns[1][begin : begin + int(offsets[-1])])).to_arrow()
        begin += int(offsets[-1])


_ADDED_IDS = 1 << 20


def _index_of(known: NodeSet) -> IdIndex:
    """An index of the ids that vertices have."""
    index = new_index("string" if isinstance(known.ids, StringIds) else "integer")
    for start, stop in ranges(known.count, _ADDED_IDS):
        rows = np.arange(start, stop)
        some = rows if known.ids is None else known.ids.take(rows)
        index.add(some.to_arrow() if isinstance(some, StringIds) else pa.array(some, pa.int64()))
    return index


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
