"""Edge types from tables to a spool on disk: endpoints resolved, rows kept, held out or dropped."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, index_dtype, open_array
from penstock.graph.data import SPLITS
from penstock.graph.journal import FolderJournal, piece_of
from penstock.graph.schema import edge_key
from penstock.graph.tables.bucket_files import MemoryBound
from penstock.graph.tables.columns import Field, as_text
from penstock.graph.tables.disk_index import FoundNumbers, IdFile
from penstock.graph.tables.fields import FieldWriters, edge_fields, fold_codes, learn_fields, roles_of
from penstock.graph.tables.nodes import IndexFullError, NodeTable
from penstock.graph.tables.reader import Position, Role, Table, TableChunk
from penstock.graph.tables.spec import EdgeSpec
from penstock.processes import ranges
from penstock.progress import SILENT, Progress

# Edges on disk in order of arrival, until all vertices are known and they can be sorted.


class Spool(ExitStack):
    """Sources, destinations and fields of the edges of one type, and the pairs held out; leaving it closes files.

    The files of one with `words` were completed by another process.
    """

    def __init__(
        self,
        spec: EdgeSpec,
        fields: list[Field],
        ends: tuple[NodeTable, NodeTable],
        folder: Path,
        words: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.ends, self.folder, self._known = spec, ends, folder, words is not None
        self._dtype = index_dtype(max(nodes.count for nodes in ends))
        self.sources, self.destinations = self._writer("sources"), self._writer("destinations")
        self._dtype = self.sources.dtype
        # Where an undirected edge is stored twice, both need the row of its fields.
        self.rows = self._writer("rows", np.int64) if spec.undirected and fields else None
        self.fields = self.enter_context(FieldWriters(fields, folder, self._known))
        held_out = SPLITS[1:] if spec.split else ()
        self.held_out = {name: self._writer(f"held_out.{name}", np.int64, (2,)) for name in held_out}
        self.words = {word: place for place, word in enumerate(words or [])}
        """The relations seen so far, where a column names them, in order of first appearance."""
        named = ("train", *held_out) if spec.relation is not None else ()
        self.relations = {name: self._writer(f"relations.{name}", np.int64) for name in named}
        """By split, the relation of each row."""
        self.kept = 0
        """Rows that are edges; those of undirected edges count once."""

    def reopen(self, kept: int) -> None:
        """Add rows behind those that another process has written, of which so many are edges."""
        self.kept = kept
        self.fields.reopen()
        for writer in self.files:
            if writer not in self.fields.files:
                self.enter_context(writer.reopen())

    def append(self, chunk: TableChunk, sources: Array, destinations: Array, keep: Array | None) -> None:
        """Write the rows of a chunk that are marked in `keep` (None: all)."""
        self._check_width()
        codes = None if self.spec.relation is None else self._codes(chunk, self.spec.relation)
        if self.spec.split:
            keep = self._hold_out(chunk, sources, destinations, keep, codes)
        self.fields.append(chunk, keep)
        if codes is not None:
            self.relations["train"].append(codes if keep is None else codes[keep])
        if keep is not None:
            sources, destinations = sources[keep], destinations[keep]
        rows = len(sources)
        if self.spec.undirected:
            sources, destinations, order = _both_ways(sources, destinations)
            if self.rows is not None:
                self.rows.append(self.kept + order)
        self.sources.append(sources)
        self.destinations.append(destinations)
        self.kept += rows

    @property
    def files(self) -> list[ArrayWriter]:
        """All files that it is written to."""
        rows = [] if self.rows is None else [self.rows]
        apart = [*self.held_out.values(), *self.relations.values()]
        return [self.sources, self.destinations, *rows, *self.fields.files, *apart]

    def _codes(self, chunk: TableChunk, column: str) -> Array:
        """The relation of each row, as a number."""
        encoded = pc.dictionary_encode(as_text(chunk.column(column)))
        if encoded.null_count:
            row = pc.index(pc.is_null(encoded), True).as_py()
            raise chunk.wrong(row, column, "the relation is missing: fill it in, or remove the row", "missing-data")
        codes = [self.words.setdefault(word, len(self.words)) for word in encoded.dictionary.to_pylist()]
        found: Array = np.array(codes, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
        return found

    def _hold_out(
        self, chunk: TableChunk, sources: Array, destinations: Array, keep: Array | None, codes: Array | None
    ) -> Array:
        folds = fold_codes(chunk, str(self.spec.split and self.spec.split.column))
        keep = np.ones(len(chunk), np.bool_) if keep is None else keep
        for code, name in enumerate(SPLITS):
            if name in self.held_out:
                out = keep & (folds == code)
                self.held_out[name].append(np.stack([sources[out], destinations[out]], axis=1))
                if codes is not None:
                    self.relations[name].append(codes[out])
        kept: Array = keep & (folds <= 0)
        return kept

    def _check_width(self) -> None:
        """Vertices that edges create may outgrow the numbers chosen when the table was opened."""
        for nodes in self.ends:
            if index_dtype(nodes.count).itemsize > self._dtype.itemsize:
                raise PenstockError(
                    f"{edge_key(self.spec.type)} creates more than 2,147,483,647 vertices of type {nodes.spec.type}:"
                    " give them a node table.",
                    code="too-large",
                )

    def _writer(self, name: str, dtype: Any = None, row_shape: tuple[int, ...] = ()) -> ArrayWriter:
        path = self.folder / f"{name}.npy"
        if self._known:
            return ArrayWriter.existing(path)
        return self.enter_context(ArrayWriter(path, dtype or self._dtype, row_shape))


def _both_ways(sources: Array, destinations: Array) -> tuple[Array, Array, Array]:
    """Each edge followed by its opposite, loops once; and the row each came from."""
    starts, ends = np.empty(2 * len(sources), np.int64), np.empty(2 * len(sources), np.int64)
    starts[0::2], starts[1::2] = sources, destinations
    ends[0::2], ends[1::2] = destinations, sources
    rows = np.arange(len(starts)) // 2
    loops = sources == destinations
    if not loops.any():
        return starts, ends, rows
    keep = np.ones(len(starts), np.bool_)
    keep[1::2] = ~loops
    return starts[keep], ends[keep], rows[keep]


LOST = "lost.npy"
_NAMED = 5
_LOST_ROWS = 1 << 18
_NOTED_ROWS = 1 << 22
"""Rows of a table that are read before that is noted."""


class EdgeTable:
    """An edge type: its table and the node types at its ends."""

    def __init__(
        self, spec: EdgeSpec, folder: Path, source: NodeTable, destination: NodeTable, bound: MemoryBound | None
    ) -> None:
        self.spec, self.source, self.destination = spec, source, destination
        self.key = edge_key(spec.type)
        self.fields = edge_fields(spec)
        self.dropped = self.rows = 0
        self._bound = bound
        self._named: list[str] = []
        self._answers: dict[str, FoundNumbers] = {}
        self.table = Table(spec, folder, f"edge type {self.key}", self.roles())

    @property
    def step(self) -> str:
        """The step that `spool` notes."""
        return f"{self.key}: edges"

    def resume(self, journal: FolderJournal) -> None:
        """Use what another process has noted of all rows."""
        self._learn(journal, SILENT)
        self.dropped = journal.state(self.step)["dropped"]

    def spool(self, folder: Path, journal: FolderJournal, progress: Progress) -> Spool:
        """All rows resolved and written to `folder` in order of arrival."""
        if (state := journal.state(self.step)) is not None:
            self.resume(journal)
            return Spool(
                self.spec, self.fields, (self.source, self.destination), folder / state["folder"], state["words"]
            )
        # By now the node tables are read and the kinds of their ids are known.
        self.table.roles = self.roles()
        if self.source is self.destination and self.source.kind is None:
            self._read_ends_alike()
        self._learn(journal, progress)
        while True:
            try:
                spool = self._spool(folder, journal, progress)
                break
            except IndexFullError as full:
                # Ids met so far keep their numbers, so the table can be read again from its beginning.
                known = full.nodes.known_folder
                full.nodes.move_to_disk()
                state, files = full.nodes.noted(journal)
                name = full.nodes.spec.type
                journal.note(f"{self.key}: {name} to disk", True, files, [folder, known], {name: state})
        self.check_lost()
        state = {"dropped": self.dropped, "words": list(spool.words), "folder": spool.folder.name}
        nodes, files = self._noted_ends(journal)
        journal.note(self.step, state, [*spool.files, *files], [folder / "asked"], nodes)
        return spool

    def _learn(self, journal: FolderJournal, progress: Progress) -> None:
        """What the fields need to see of all rows beforehand."""
        learning, step = [field for field in self.fields if field.learns], f"{self.key}: columns"
        if (learned := journal.state(step)) is not None:
            for field, each in zip(learning, learned, strict=True):
                field.use_learned(each)
        elif learning:
            with progress.step(step, self.table.rows, "rows"):
                for _ in learn_fields(self.fields, self.table, set(), progress):
                    pass
            journal.note(step, [field.learned() for field in learning])

    def _noted_ends(self, journal: FolderJournal) -> tuple[dict[str, Any], list[ArrayWriter]]:
        """What a journal is to note of the ids of both ends."""
        states, files = dict[str, Any](), list[ArrayWriter]()
        for nodes in dict.fromkeys((self.source, self.destination)):
            states[nodes.spec.type], some = nodes.noted(journal)
            files += some
        return states, files

    def _spool(self, folder: Path, journal: FolderJournal, progress: Progress) -> Spool:
        """The rows are noted in pieces, for each set of ends on disk apart: the table may have to be read again."""
        self._answers = self._ask(folder / "asked", journal, progress)
        ends, kind = (self.source, self.destination), f"rows.{len(self._answers)}.{self._ends_on_disk()}"
        count, state = journal.pieces(f"{self.step}, {kind}")
        self.dropped, self._named = (state["dropped"], state["named"]) if state else (0, [])
        with (
            Spool(self.spec, self.fields, ends, folder / kind, state and state["words"]) as spool,
            progress.step(self.step, self.table.rows, "rows"),
        ):
            rows = noted = self._go_on(spool, state, progress) if state else 0
            for chunk in self._chunks(tuple(state["position"]) if state else (0, 0)):
                self._take(chunk, spool)
                rows += len(chunk)
                progress.advance(len(chunk))
                if journal.is_kept and rows - noted >= _NOTED_ROWS:
                    step = piece_of(f"{self.step}, {kind}", count)
                    self._note_rows(step, spool, {"rows": rows, "position": self.table.position(chunk)}, journal)
                    count, noted = count + 1, rows
        return spool

    def _go_on(self, spool: Spool, state: dict[str, Any], progress: Progress) -> int:
        """Have a spool go on behind rows that another process has noted; returns their number."""
        spool.reopen(state["kept"])
        if self.fields:
            # The first rows decide types and widths.
            spool.fields.try_on_first(self.table)
        for found in self._answers.values():
            found.again(state["rows"] * (2 if self.source is self.destination else 1))
        progress.advance(state["rows"])
        return int(state["rows"])

    def _note_rows(self, step: str, spool: Spool, read: dict[str, Any], journal: FolderJournal) -> None:
        nodes, files = self._noted_ends(journal)
        found = {"dropped": self.dropped, "named": self._named, "words": list(spool.words), "kept": spool.kept}
        journal.note(step, {**read, **found}, [*spool.files, *files], nodes=nodes)

    def _ends_on_disk(self) -> str:
        """Which ends have their ids on disk, as part of a name."""
        return "".join(str(place) for place, (_, nodes) in enumerate(self.ends()) if nodes.looked_up_at_once)

    # Shards of the rows, each of which one process resolves.

    def ask_shard(self, folder: Path, progress: Progress) -> dict[str, IdFile]:
        """The ids of the table's shard at the ends that are looked up at once, divided."""
        assert self._bound is not None, "only a bound brings ids to disk"
        return self._divide_ids(self._asked_ends(), folder, self._bound, ("", FolderJournal()), progress)

    def spool_shard(self, answers: dict[str, FoundNumbers], folder: Path, progress: Progress) -> Spool:
        """The rows of the table's shard, with the numbers that were found for its ends."""
        self._answers = answers
        with Spool(self.spec, self.fields, (self.source, self.destination), folder) as spool:
            if self.fields:
                spool.fields.try_on_first(self.table)
            for chunk in self._chunks((0, 0)):
                self._take(chunk, spool)
                self.rows += len(chunk)
                progress.advance(len(chunk))
        return spool

    def decide_kinds(self) -> None:
        """Have the first rows decide the kinds of ids that are not known yet."""
        self.table.roles = self.roles()
        if self.source.kind and self.destination.kind:
            return
        if self.source is self.destination:
            self._read_ends_alike()
        with closing(self.table.chunks({column for column, _ in self.ends()})) as chunks:
            first = next(chunks)
        for column, nodes in self.ends():
            nodes.ids_of(first, column)

    @property
    def named(self) -> list[str]:
        """The first vertices that are missing, and where they are named."""
        return self._named

    def add_lost(self, dropped: int, named: list[str]) -> None:
        """Count rows of a shard that name a vertex which does not exist."""
        self.dropped += dropped
        self._named += named[: _NAMED - len(self._named)]

    def check_lost(self) -> None:
        """Refuse rows that name a vertex which does not exist, where they may not be dropped."""
        if self.dropped and self.spec.dangling == "error":
            raise PenstockError(self._dangling_sentence(), code="id-out-of-range")

    # Ends whose ids are on disk are looked up before the table is read for the rest.

    def _ask(self, work: Path, journal: FolderJournal, progress: Progress) -> dict[str, FoundNumbers]:
        """The numbers of the ends whose ids are on disk, by column; where both are of one type, of both in turn."""
        ends = self._asked_ends()
        if not ends or self._bound is None:
            return {}
        # More ends may be on disk when the table is read again.
        work = work / self._ends_on_disk()
        step = f"{self.key}: ids of {' and '.join(column for column, nodes in self.ends() if nodes.on_disk)}"
        lost_path = work / LOST
        if journal.state(step) is not None:
            asked = {
                column: IdFile(work / str(place), nodes.kind or "string", self._bound, known=True)
                for place, (column, nodes) in enumerate(ends.items())
            }
        else:
            asked = self._divide_ids(ends, work, self._bound, (step, journal), progress)
            files = [file for each in asked.values() for file in each.file.files]
            journal.note(step, True, [*files, *([lost_path] if lost_path.exists() else [])])
        lost = open_array(lost_path) if lost_path.exists() else None
        return self._answer(asked, ends, work, lost, (step, journal))

    def _asked_ends(self) -> dict[str, NodeTable]:
        """The ends that are looked up at once; the first stands for both where they are of one type."""
        ends = {column: nodes for column, nodes in self.ends() if nodes.looked_up_at_once}
        if self.source is self.destination:
            ends.pop(self.spec.destination, None)
        return ends

    def _divide_ids(
        self,
        ends: dict[str, NodeTable],
        work: Path,
        bound: MemoryBound,
        noted: tuple[str, FolderJournal],
        progress: Progress,
    ) -> dict[str, IdFile]:
        """The ids of ends, in files that are divided; and which rows the other end loses."""
        (step, journal), lost = noted, None
        count, state = journal.pieces(step)
        with progress.step(f"{self.key}: ids", self.table.rows, "rows"), ExitStack() as stack:
            asked = {
                column: IdFile(work / str(place), nodes.kind or "string", bound, known=state is not None)
                for place, (column, nodes) in enumerate(ends.items())
            }
            for each in asked.values():
                stack.callback(each.file.release)
                if state:
                    each.reopen()
            if any(not nodes.looked_up_at_once and not self.creates(nodes) for _, nodes in self.ends()):
                path = work / LOST
                lost = stack.enter_context(
                    ArrayWriter.existing(path).reopen() if state else ArrayWriter(path, np.bool_)
                )
            rows = before = state["rows"] if state else 0
            progress.advance(rows)
            columns = {column for column, _ in self.ends()}
            for chunk in self.table.chunks(columns, tuple(state["position"]) if state else (0, 0)):
                self._divide_chunk(chunk, ends, asked, lost)
                rows += len(chunk)
                progress.advance(len(chunk))
                if journal.is_kept and rows - before >= _NOTED_ROWS:
                    for each in asked.values():
                        each.close()
                    files = [file for each in asked.values() for file in each.file.files]
                    read = {"rows": rows, "position": self.table.position(chunk)}
                    journal.note(piece_of(step, count), read, [*files, *([lost] if lost else [])])
                    for each in asked.values():
                        each.reopen()
                    count, before = count + 1, rows
            for each in asked.values():
                each.close()
        return asked

    def _divide_chunk(
        self, chunk: TableChunk, ends: dict[str, NodeTable], asked: dict[str, IdFile], lost: ArrayWriter | None
    ) -> None:
        for column, nodes in ends.items():
            ids = nodes.ids_of(chunk, column)
            if self.source is self.destination:
                ids = _in_turn(ids, nodes.ids_of(chunk, self.spec.destination))
            asked[column].append(ids)
        for column, nodes in self.ends():
            if lost is not None and not nodes.looked_up_at_once:
                lost.append(nodes.find(chunk, column)[1] < 0)

    def _answer(
        self,
        asked: dict[str, IdFile],
        ends: dict[str, NodeTable],
        work: Path,
        lost: Array | None,
        noted: tuple[str, FolderJournal],
    ) -> dict[str, FoundNumbers]:
        """Ends that may not create vertices first: rows that they lose create none at the other end."""
        answers: dict[str, FoundNumbers] = {}
        for column in sorted(asked, key=lambda column: self.creates(ends[column])):
            nodes = ends[column]
            if nodes.on_disk is None:
                continue
            place, creates = work / f"answers.{len(answers)}", self.creates(nodes)
            step = f"{noted[0]}: numbers of {column}"
            answers[column] = self._answer_end(asked[column], nodes, place, lost if creates else None, step, noted[1])
            if not creates and self.source is not self.destination:
                lost = write_lost(answers[column], work / "lost_first.npy")
        return answers

    def _answer_end(
        self, asked: IdFile, nodes: NodeTable, place: Path, lost: Array | None, step: str, journal: FolderJournal
    ) -> FoundNumbers:
        """The numbers of the ids of one end."""
        assert nodes.on_disk is not None, "ids in memory are looked up row by row"
        if (state := journal.state(step)) is not None:
            return FoundNumbers(asked.file, open_array(place / "numbers.npy"), state["unknown"], state["created"])
        found = nodes.on_disk.answer(asked, place, self.creates(nodes), lost)
        noted, files = nodes.noted(journal)
        state = {"unknown": found.unknown, "created": found.created}
        journal.note(step, state, [place / "numbers.npy", *files], nodes={nodes.spec.type: noted})
        return found

    def _chunks(self, after: Position) -> Iterator[TableChunk]:
        """The rows of the table with the columns that are still needed: not the ids of ends that are all known."""
        answered = set(self._answers)
        if answered and self.source is self.destination:
            answered = {self.spec.source, self.spec.destination}
        if any(each.created or each.unknown for each in self._answers.values()):
            answered = set()
        columns = (set(self.table.roles) - answered) | set(roles_of(self.fields))
        if columns:
            yield from self.table.chunks(columns, after)
            return
        rows = next(iter(self._answers.values())).rows // (2 if self.source is self.destination else 1)
        for start, stop in list(ranges(rows, _LOST_ROWS)) or [(0, 0)]:
            # Where no column is read, all rows count as those of the first file.
            first = max(start, after[1])
            if first < stop or rows == 0:
                yield TableChunk(pa.record_batch([pa.nulls(stop - first)], [""]), self.table.files[0], first)

    def ends(self) -> list[tuple[str, NodeTable]]:
        """The columns of the ends and their node types."""
        return [(self.spec.source, self.source), (self.spec.destination, self.destination)]

    def roles(self) -> dict[str, Role]:
        """The roles of the columns, by what is known of the ids."""
        roles = roles_of(self.fields)
        if self.spec.relation is not None:
            roles[self.spec.relation] = "text"
        if self.spec.split:
            roles[str(self.spec.split.column)] = "text"
        for column, nodes in ((self.spec.source, self.source), (self.spec.destination, self.destination)):
            roles[column] = f"{nodes.kind} id" if nodes.kind else "id"
        return roles

    def _read_ends_alike(self) -> None:
        """Where only edges name the vertices, both ends must be read as one kind: 007 is not 7."""
        ends = (self.spec.source, self.spec.destination)
        looks = self.table.csv_looks(ends)
        if looks and not all(pa.types.is_integer(kind) or pa.types.is_null(kind) for kind in looks.values()):
            self.table.roles |= dict.fromkeys(ends, "string id")

    def _take(self, chunk: TableChunk, spool: Spool) -> None:
        if self._answers and self.source is self.destination:
            both = self._answers[self.spec.source].take(2 * len(chunk))
            sources, destinations = both[0::2].copy(), both[1::2].copy()
            source_ids, destination_ids = (self._ids(chunk, column, nodes) for column, nodes in self.ends())
        else:
            source_ids, sources = self._find(chunk, self.spec.source, self.source)
            destination_ids, destinations = self._find(chunk, self.spec.destination, self.destination)
        lost = self._lost(chunk, sources, destinations)
        self._create(sources, destinations, source_ids, destination_ids, lost)
        spool.append(chunk, sources, destinations, ~lost if lost.any() else None)

    def _find(self, chunk: TableChunk, column: str, nodes: NodeTable) -> tuple[pa.Array | None, Array]:
        if column in self._answers:
            return self._ids(chunk, column, nodes), self._answers[column].take(len(chunk))
        return nodes.find(chunk, column)

    def _ids(self, chunk: TableChunk, column: str, nodes: NodeTable) -> pa.Array | None:
        """The ids of an end on disk, where this table creates some."""
        some = self._answers.get(column) or self._answers.get(self.spec.source)
        return nodes.ids_of(chunk, column) if some and some.created else None

    def _lost(self, chunk: TableChunk, sources: Array, destinations: Array) -> Array:
        """Rows that name a vertex which neither exists nor may be created; the first few are recorded."""
        lost = np.zeros(len(chunk), np.bool_)
        ends = ((self.source, sources, self.spec.source), (self.destination, destinations, self.spec.destination))
        for nodes, numbers, _ in ends:
            if not self.creates(nodes):
                lost |= numbers < 0
        self.dropped += int(np.count_nonzero(lost))
        for row in np.flatnonzero(lost)[: _NAMED - len(self._named)].tolist():
            nodes, _, column = next(end for end in ends if end[1][row] < 0 and not self.creates(end[0]))
            value = chunk.column(column)[row].as_py()
            self._named.append(f"{nodes.spec.type} {value!r} in {chunk.place(row)}")
        return lost

    def creates(self, nodes: NodeTable) -> bool:
        """Whether an edge of this table may add a vertex of that type."""
        return nodes.grows_by_edges or (self.spec.dangling == "create" and nodes.table is not None)

    def _create(
        self,
        sources: Array,
        destinations: Array,
        source_ids: pa.Array | None,
        destination_ids: pa.Array | None,
        lost: Array,
    ) -> None:
        """Number ids that are new, row by row and source before destination."""
        self._keep_created(sources, destinations, source_ids, destination_ids)
        new_sources = np.flatnonzero((sources < 0) & ~lost)
        new_destinations = np.flatnonzero((destinations < 0) & ~lost)
        if len(new_sources) + len(new_destinations) == 0:
            return
        if self.source is not self.destination:
            if source_ids is not None and len(new_sources):
                sources[new_sources] = self.source.add(source_ids.take(pa.array(new_sources)))
            if destination_ids is not None and len(new_destinations):
                destinations[new_destinations] = self.destination.add(destination_ids.take(pa.array(new_destinations)))
            return
        assert source_ids is not None and destination_ids is not None, "ids on disk are numbered before"
        ids = _joined(source_ids.take(pa.array(new_sources)), destination_ids.take(pa.array(new_destinations)))
        order = np.argsort(np.concatenate([2 * new_sources, 2 * new_destinations + 1]))
        numbers = np.empty(len(ids), np.int64)
        numbers[order] = self.source.add(ids.take(pa.array(order)))
        sources[new_sources] = numbers[: len(new_sources)]
        destinations[new_destinations] = numbers[len(new_sources) :]

    def _keep_created(
        self, sources: Array, destinations: Array, source_ids: pa.Array | None, destination_ids: pa.Array | None
    ) -> None:
        """Add the ids that were created and numbered before the table was read for the rest."""
        if self.source is not self.destination:
            for nodes, ids, numbers in (
                (self.source, source_ids, sources),
                (self.destination, destination_ids, destinations),
            ):
                if nodes.on_disk and ids is not None:
                    nodes.on_disk.append_created(ids, numbers)
        elif self.source.on_disk and source_ids is not None and destination_ids is not None:
            self.source.on_disk.append_created(
                _in_turn(source_ids, destination_ids), np.stack([sources, destinations], axis=1).reshape(-1)
            )

    def _dangling_sentence(self) -> str:
        what = "1 edge of {} names a vertex" if self.dropped == 1 else f"{self.dropped:,} edges of {{}} name vertices"
        more = "; ..." if self.dropped > len(self._named) else ""
        return (
            f"{what.format(self.key)} that no node table has ({'; '.join(self._named)}{more}):"
            " add them to it, or set 'dangling: drop' or 'dangling: create'."
        )


def write_lost(found: FoundNumbers, path: Path) -> Array:
    """Which ids were not found; mapped."""
    with ArrayWriter(path, np.bool_) as writer:
        for start, stop in ranges(found.rows, _LOST_ROWS):
            writer.append(found.take(stop - start) < 0)
    found.again()
    return open_array(path)


def _joined(first: pa.Array, second: pa.Array) -> pa.Array:
    """Two arrays of ids as one, whatever their encoding."""
    if pa.types.is_integer(first.type):
        return pa.concat_arrays([first, second])
    return pa.concat_arrays([ids.cast(pa.large_string()) for ids in (first, second)])


def _in_turn(sources: pa.Array, destinations: pa.Array) -> pa.Array:
    """The ids of each row, source before destination."""
    return _joined(sources, destinations).take(pa.array(np.arange(2 * len(sources)).reshape(2, -1).T.reshape(-1)))
