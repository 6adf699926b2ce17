"""Edge types from tables to lists: endpoints resolved, spooled to disk, and sorted."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, open_array, release_pages, write_array
from penstock.graph.csr import build_lists, deduplicate_lists, index_dtype
from penstock.graph.data import SPLITS, EdgeSet
from penstock.graph.folder import edges_folder, write_held_out
from penstock.graph.schema import EdgeType, edge_key, relation_names
from penstock.graph.tables.columns import FieldWriters, edge_fields, fold_codes, learn_fields, roles_of
from penstock.graph.tables.fields import Field, as_text
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.reader import Role, Table, TableChunk
from penstock.graph.tables.spec import EdgeSpec
from penstock.progress import Progress

# Edges on disk in order of arrival, until all vertices are known and they can be sorted.


class Spool(ExitStack):
    """Sources, destinations and fields of the edges of one type, and the pairs held out; leaving it closes files."""

    def __init__(self, spec: EdgeSpec, fields: list[Field], ends: tuple[NodeTable, NodeTable], folder: Path) -> None:
        super().__init__()
        self.spec, self.ends, self.folder = spec, ends, folder
        self._dtype = index_dtype(max(nodes.count for nodes in ends))
        self.sources, self.destinations = self._writer("sources"), self._writer("destinations")
        # Where an undirected edge is stored twice, both need the row of its fields.
        self.rows = self._writer("rows", np.int64) if spec.undirected and fields else None
        self.fields = self.enter_context(FieldWriters(fields, folder))
        held_out = SPLITS[1:] if spec.split else ()
        self.held_out = {name: self._writer(f"held_out.{name}", np.int64, (2,)) for name in held_out}
        self.words = dict[str, int]()
        """The relations seen so far, where a column names them, in order of first appearance."""
        named = ("train", *held_out) if spec.relation is not None else ()
        self.relations = {name: self._writer(f"relations.{name}", np.int64) for name in named}
        """By split, the relation of each row."""
        self._kept = 0

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
                self.rows.append(self._kept + order)
        self.sources.append(sources)
        self.destinations.append(destinations)
        self._kept += rows

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
        return self.enter_context(ArrayWriter(self.folder / f"{name}.npy", dtype or self._dtype, row_shape))


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


# One edge type from tables to a spool: endpoints resolved, rows kept, held out or dropped.

_NAMED = 5


class EdgeTable:
    """An edge type: its table and the node types at its ends."""

    def __init__(self, spec: EdgeSpec, folder: Path, source: NodeTable, destination: NodeTable) -> None:
        self.spec, self.source, self.destination = spec, source, destination
        self.key = edge_key(spec.type)
        self.fields = edge_fields(spec)
        self.dropped = 0
        self._named: list[str] = []
        self.table = Table(spec, folder, f"edge type {self.key}", self._roles())

    def spool(self, folder: Path, progress: Progress) -> Spool:
        """All rows resolved and written to `folder` in order of arrival."""
        # By now the node tables are read and the kinds of their ids are known.
        self.table.roles = self._roles()
        if self.source is self.destination and self.source.kind is None:
            self._read_ends_alike()
        if any(field.learns for field in self.fields):
            with progress.step(f"{self.key}: columns", self.table.rows, "rows"):
                for _ in learn_fields(self.fields, self.table, set(), progress):
                    pass
        ends = (self.source, self.destination)
        with (
            Spool(self.spec, self.fields, ends, folder) as spool,
            progress.step(f"{self.key}: edges", self.table.rows, "rows"),
        ):
            for chunk in self.table.chunks(self.table.roles):
                self._take(chunk, spool)
                progress.advance(len(chunk))
        if self.dropped and self.spec.dangling == "error":
            raise PenstockError(self._dangling_sentence(), code="id-out-of-range")
        return spool

    def _roles(self) -> dict[str, Role]:
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
        source_ids, sources = self.source.find(chunk, self.spec.source)
        destination_ids, destinations = self.destination.find(chunk, self.spec.destination)
        lost = self._lost(chunk, sources, destinations)
        self._create(sources, destinations, source_ids, destination_ids, lost)
        spool.append(chunk, sources, destinations, ~lost if lost.any() else None)

    def _lost(self, chunk: TableChunk, sources: Array, destinations: Array) -> Array:
        """Rows that name a vertex which neither exists nor may be created; the first few are recorded."""
        lost = np.zeros(len(chunk), np.bool_)
        ends = ((self.source, sources, self.spec.source), (self.destination, destinations, self.spec.destination))
        for nodes, numbers, _ in ends:
            if not self._creates(nodes):
                lost |= numbers < 0
        self.dropped += int(np.count_nonzero(lost))
        for row in np.flatnonzero(lost)[: _NAMED - len(self._named)].tolist():
            nodes, _, column = next(end for end in ends if end[1][row] < 0 and not self._creates(end[0]))
            value = chunk.column(column)[row].as_py()
            self._named.append(f"{nodes.spec.type} {value!r} in {chunk.place(row)}")
        return lost

    def _creates(self, nodes: NodeTable) -> bool:
        return nodes.table is None or self.spec.dangling == "create"

    def _create(
        self, sources: Array, destinations: Array, source_ids: pa.Array, destination_ids: pa.Array, lost: Array
    ) -> None:
        """Number ids that are new, row by row and source before destination."""
        new_sources = np.flatnonzero((sources < 0) & ~lost)
        new_destinations = np.flatnonzero((destinations < 0) & ~lost)
        if len(new_sources) + len(new_destinations) == 0:
            return
        new_source_ids = source_ids.take(pa.array(new_sources))
        new_destination_ids = destination_ids.take(pa.array(new_destinations))
        if self.source is not self.destination:
            sources[new_sources] = self.source.add(new_source_ids)
            destinations[new_destinations] = self.destination.add(new_destination_ids)
            return
        ids = _joined(new_source_ids, new_destination_ids)
        order = np.argsort(np.concatenate([2 * new_sources, 2 * new_destinations + 1]))
        numbers = np.empty(len(ids), np.int64)
        numbers[order] = self.source.add(ids.take(pa.array(order)))
        sources[new_sources] = numbers[: len(new_sources)]
        destinations[new_destinations] = numbers[len(new_sources) :]

    def _dangling_sentence(self) -> str:
        what = "1 edge of {} names a vertex" if self.dropped == 1 else f"{self.dropped:,} edges of {{}} name vertices"
        more = "; ..." if self.dropped > len(self._named) else ""
        return (
            f"{what.format(self.key)} that no node table has ({'; '.join(self._named)}{more}):"
            " add them to it, or set 'dangling: drop' or 'dangling: create'."
        )


def _joined(first: pa.Array, second: pa.Array) -> pa.Array:
    """Two arrays of ids as one, whatever their encoding."""
    if pa.types.is_integer(first.type):
        return pa.concat_arrays([first, second])
    return pa.concat_arrays([ids.cast(pa.large_string()) for ids in (first, second)])


# Tables whose rows have a relation each: from one spool to an edge type for every relation.


def write_relations(spool: Spool, folder: Path, progress: Progress) -> dict[EdgeType, EdgeSet]:
    """The lists of every relation that the table names, with its held-out pairs, and of its reverse if wanted."""
    spec, count = spool.spec, len(spool.words)
    sources, destinations = open_array(spool.sources.path), open_array(spool.destinations.path)
    places = _by_relation(open_array(spool.relations["train"].path), count)
    apart = {
        name: (open_array(writer.path), _by_relation(open_array(spool.relations[name].path), count))
        for name, writer in spool.held_out.items()
    }
    made: dict[EdgeType, EdgeSet] = {}
    with progress.step(f"{edge_key(spec.type)}: lists", len(sources), "edges"):
        for number, name in enumerate(relation_names(list(spool.words))):
            some = places[number]
            held_out = {split: np.asarray(pairs[rows[number]]) for split, (pairs, rows) in apart.items()}
            ends = spool.ends[0].count, spool.ends[1].count
            kind = spec.type[0], name, spec.type[2]
            lists = np.ascontiguousarray(sources[some]), np.ascontiguousarray(destinations[some])
            made[kind], _ = write_lists(lists, ends, spec.deduplicate, held_out, edges_folder(folder, kind))
            if spec.reverse:
                reverse = kind[2], f"rev-{name}", kind[0]
                target = edges_folder(folder, reverse)
                made[reverse], _ = write_lists(lists[::-1], ends[::-1], spec.deduplicate, {}, target)
            progress.advance(len(some))
    shutil.rmtree(spool.folder, ignore_errors=True)
    return made


def _by_relation(codes: Array, count: int) -> list[Array]:
    """The rows of each relation, in their order."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, max(count, 1))))


def write_lists(
    ends: tuple[Array, Array],
    counts: tuple[int, int],
    deduplicate: bool,
    held_out: dict[str, Array],
    target: Path,
    want_order: bool = False,
) -> tuple[EdgeSet, Array | None]:
    """Edges sorted into lists, written and mapped; and the row that each came from, where that is wanted."""
    indptr, indices, order = build_lists(*ends, *counts, want_order)
    for each in ends:
        release_pages(each)
    if deduplicate:
        indptr, indices, kept = deduplicate_lists(indptr, indices)
        order = None if order is None else order[kept]
    write_array(target / "indptr.npy", indptr)
    write_array(target / "indices.npy", indices)
    write_held_out(held_out, target)
    mapped = {name: open_array(target / f"held_out.{name}.npy") for name in held_out}
    return EdgeSet(open_array(target / "indptr.npy"), open_array(target / "indices.npy"), {}, mapped), order
