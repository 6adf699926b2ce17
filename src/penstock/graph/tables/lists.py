"""From a spool of edges to neighbour lists: sorted in memory, or on disk where they do not fit."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, index_dtype, open_array, release_pages, write_array
from penstock.graph.csr import build_lists, deduplicate_lists
from penstock.graph.data import EdgeSet
from penstock.graph.folder import describe_edges, edges_folder, open_edges, write_held_out
from penstock.graph.journal import FolderJournal, piece_of
from penstock.graph.schema import EdgeInfo, EdgeType, edge_key, file_name, relation_names
from penstock.graph.tables.bucket_files import BucketFile, MemoryBound, groups_of
from penstock.graph.tables.edges import Spool
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.spec import EdgeSpec
from penstock.kernels import njit
from penstock.processes import map_blocks, ranges
from penstock.progress import SILENT, Progress

_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 1 << 20


class ListTarget(NamedTuple):
    """Where lists are written, and how."""

    folder: Path
    """The graph's."""
    bound: MemoryBound | None
    journal: FolderJournal
    progress: Progress


def lists_step(spec: EdgeSpec) -> str:
    """The step that `write_spool` notes."""
    return f"{edge_key(spec.type)}: lists"


def write_spool(spool: Spool, target: ListTarget) -> dict[EdgeType, EdgeSet]:
    """The lists of the edge types of a table and of their reverses where those are wanted; the spool is removed."""
    write = _write_relations if spool.spec.relation is not None else _write_type
    made = write(spool, target)
    state = [describe_edges(kind, edges).model_dump() for kind, edges in made.items()]
    target.journal.note(lists_step(spool.spec), state, gone=[spool.folder])
    return made


def known_lists(
    state: list[dict[str, Any]], folder: Path, ends: tuple[NodeTable, NodeTable]
) -> dict[EdgeType, EdgeSet]:
    """The lists of a table that another process has noted."""
    made: dict[EdgeType, EdgeSet] = {}
    for each in state:
        info = EdgeInfo.model_validate(each)
        kind = (info.source, info.relation, info.destination)
        rows = next(nodes.count for nodes in ends if nodes.spec.type == info.destination)
        made[kind] = open_edges(edges_folder(folder, kind), info, rows)
    return made


def _write_type(spool: Spool, target: ListTarget) -> dict[EdgeType, EdgeSet]:
    spec, key = spool.spec, edge_key(spool.spec.type)
    edges = ArrivedEdges(
        open_array(spool.sources.path),
        open_array(spool.destinations.path),
        spool.ends[0].count,
        spool.ends[1].count,
        spool.fields.finish(),
        None if spool.rows is None else open_array(spool.rows.path),
    )
    held_out = {name: open_array(writer.path) for name, writer in spool.held_out.items()}
    made: dict[EdgeType, EdgeSet] = {}
    with target.progress.step(f"{key}: lists", edges.count, "edges"):
        lists = write_lists(edges, spec.type, spec, spool.folder, held_out, target)
        made[spec.type] = replace(lists, categories=spool.fields.categories())
    if spec.reverse_type:
        with target.progress.step(f"{key}: reverse lists", edges.count, "edges"):
            lists = write_lists(edges.reversed(), spec.reverse_type, spec, spool.folder, {}, target)
            made[spec.reverse_type] = replace(lists, categories=spool.fields.categories())
    return made


def _write_relations(spool: Spool, target: ListTarget) -> dict[EdgeType, EdgeSet]:
    """Tables whose rows have a relation each: an edge type for every relation, with its held-out pairs."""
    spec = spool.spec
    names = relation_names(list(spool.words))
    ends = {name: open_array(writer.path) for name, writer in spool.held_out.items()}
    sources, destinations = open_array(spool.sources.path), open_array(spool.destinations.path)
    kept = _by_relation(spool, "train", {"sources": sources, "destinations": destinations}, target.journal)
    apart = {split: _by_relation(spool, split, {"pairs": pairs}, target.journal) for split, pairs in ends.items()}
    made: dict[EdgeType, EdgeSet] = {}
    with target.progress.step(f"{edge_key(spec.type)}: lists", len(sources), "edges"):
        for number, name in enumerate(names):
            columns = one_relation([kept], number, spool.folder / "relation")
            held_out = {s: one_relation([file], number, spool.folder / s)["pairs"] for s, file in apart.items()}
            edges = ArrivedEdges(columns["sources"], columns["destinations"], spool.ends[0].count, spool.ends[1].count)
            kind = spec.type[0], name, spec.type[2]
            made[kind] = write_lists(edges, kind, spec, spool.folder, held_out, target)
            if spec.reverse:
                back, silent = reverse_of(kind), target._replace(progress=SILENT)
                made[back] = write_lists(edges.reversed(), back, spec, spool.folder, {}, silent)
    return made


def reverse_of(kind: EdgeType) -> EdgeType:
    """The edge type that `reverse` adds to that of a relation."""
    return kind[2], f"rev-{kind[1]}", kind[0]


def refuse_repeated(made: Iterable[EdgeType], known: Iterable[EdgeType]) -> None:
    """Refuse edge types that two tables have, which the words of a column may name."""
    if twice := sorted(map(edge_key, set(made) & set(known))):
        raise PenstockError(
            f"Edge type {twice[0]} comes from two tables: give its edges in one, or rename a relation.",
            code="duplicate",
        )


def _by_relation(spool: Spool, split: str, columns: dict[str, Array], journal: FolderJournal) -> BucketFile:
    """Rows divided by their relations."""
    step = f"{edge_key(spool.spec.type)}: by relation, {split}"
    folder, relations = spool.folder / f"by_relation.{split}", len(spool.words)
    if journal.state(step) is not None:
        return relation_file(folder, relations, columns, known=True)
    file = relation_file(folder, relations, columns)
    divide_relations(file, open_array(spool.relations[split].path), columns)
    journal.note(step, True, file.files)
    return file


def relation_file(folder: Path, relations: int, columns: Mapping[str, Array], known: bool = False) -> BucketFile:
    """A file for columns that are divided by relation."""
    kinds = {name: (values.dtype, values.shape[1:]) for name, values in columns.items()}
    return BucketFile(folder, max(1, relations), kinds, known=known)


def divide_relations(
    file: BucketFile, codes: Array, columns: Mapping[str, Array], number_of: Array | None = None
) -> None:
    """Write columns to such a file; `codes` are the relations of the rows, which `number_of` may number otherwise."""
    for start, stop in ranges(len(codes), _BLOCK_ROWS):
        some = codes[start:stop] if number_of is None else number_of[codes[start:stop]]
        file.append(some, {name: values[start:stop] for name, values in columns.items()})
    file.close()


def one_relation(files: Iterable[BucketFile], number: int, work: Path) -> dict[str, Array]:
    """The columns of one relation from such files, mapped; those of another in the folder are replaced."""
    shutil.rmtree(work, ignore_errors=True)
    writers: dict[str, ArrayWriter] = {}
    with ExitStack() as stack:
        for file in files:
            for name, values in file.columns().items():
                if name not in writers:
                    writer = ArrayWriter(work / f"{name}.npy", values.dtype, values.shape[1:])
                    writers[name] = stack.enter_context(writer)
            for piece in file.pieces(number, number + 1):
                for name, writer in writers.items():
                    writer.append(piece.columns[name])
    return {name: open_array(writer.path) for name, writer in writers.items()}


@dataclass(frozen=True)
class ArrivedEdges:
    """Edges in order of arrival, on disk, and their fields; with `rows`, the row of the fields of each edge."""

    sources: Array
    destinations: Array
    num_sources: int
    num_destinations: int
    fields: dict[str, Array] | None = None
    rows: Array | None = None

    @property
    def count(self) -> int:
        """The number of edges, before any is left out."""
        return len(self.sources)

    def reversed(self) -> "ArrivedEdges":
        """Each edge the other way round."""
        return replace(
            self,
            sources=self.destinations,
            destinations=self.sources,
            num_sources=self.num_destinations,
            num_destinations=self.num_sources,
        )

    def field_bytes(self) -> int:
        """The bytes of an edge's fields."""
        fields = (self.fields or {}).values()
        return sum(values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)) for values in fields)

    def blocks(self) -> Iterator[tuple[Array, Array, dict[str, Array]]]:
        """Sources, destinations and fields, block by block."""
        rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (self.field_bytes() + 8)))
        for start, stop in ranges(self.count, rows):
            of_fields = slice(start, stop) if self.rows is None else self.rows[start:stop]
            fields = {name: values[of_fields] for name, values in (self.fields or {}).items()}
            yield self.sources[start:stop], self.destinations[start:stop], fields


def write_lists(
    edges: ArrivedEdges, kind: EdgeType, spec: EdgeSpec, spool: Path, held_out: dict[str, Array], target: ListTarget
) -> EdgeSet:
    """Edges of a spool as lists, written and mapped. Lists ascend by source; parallel edges keep their order."""
    bound, journal, progress = target.bound, target.journal, target.progress
    folder, step, deduplicate = edges_folder(target.folder, kind), f"{edge_key(kind)}: sorted", spec.deduplicate
    if (state := journal.state(step)) is not None:
        progress.advance(edges.count)
        return open_edges(folder, EdgeInfo.model_validate(state), edges.num_destinations)
    work = spool / "sorted" / folder.name
    divided = journal.state(f"{step}, divided") is not None
    if bound is None or (_memory_of(edges, deduplicate) <= bound.list_bytes and not divided):
        made = _write_in_memory(edges, deduplicate, folder)
        progress.advance(edges.count)
    else:
        made = ListSorter(edges, deduplicate, ListTarget(folder, bound, journal, progress), work, bound).write(step)
    write_held_out(held_out, folder)
    mapped = {name: open_array(folder / f"held_out.{name}.npy") for name in held_out}
    made = replace(made, held_out=mapped)
    journal.note(step, describe_edges(kind, made).model_dump(), sorted(folder.glob("*.npy")), gone=[work])
    return made


# In memory.


def _memory_of(edges: ArrivedEdges, deduplicate: bool) -> int:
    """The bytes that lists take while they are sorted in memory, and the field rows that are gathered at random."""
    order = 16 if edges.fields else 0
    numbers = edges.sources.itemsize + index_dtype(edges.num_sources).itemsize
    vertices = 16 * (edges.num_sources + edges.num_destinations)
    return edges.count * (numbers + order + 17 * deduplicate + edges.field_bytes()) + vertices


def _write_in_memory(edges: ArrivedEdges, deduplicate: bool, target: Path) -> EdgeSet:
    ends = edges.sources, edges.destinations
    indptr, indices, order = build_lists(*ends, edges.num_sources, edges.num_destinations, bool(edges.fields))
    for each in ends:
        release_pages(each)
    if deduplicate:
        indptr, indices, kept = deduplicate_lists(indptr, indices)
        order = None if order is None else order[kept]
    write_array(target / "indptr.npy", indptr)
    write_array(target / "indices.npy", indices)
    fields = {}
    if order is not None:
        if edges.rows is not None:
            order = edges.rows[order]
        fields = {name: _reordered(name, values, order, target) for name, values in (edges.fields or {}).items()}
    return EdgeSet(open_array(target / "indptr.npy"), open_array(target / "indices.npy"), fields)


def _reordered(name: str, values: Array, order: Array, target: Path) -> Array:
    """A field's rows in the order of the lists, gathered block by block."""
    path = target / f"field.{file_name(name)}.npy"
    block_rows = max(1, _BLOCK_BYTES // max(1, values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))))

    def gather(start: int, stop: int) -> Array:
        rows: Array = np.take(values, order[start:stop], axis=0)
        return rows

    with ArrayWriter(path, values.dtype, values.shape[1:]) as writer:
        for block in map_blocks(gather, len(order), block_rows):
            writer.append(block)
    release_pages(values)
    return open_array(path)


# On disk. Edges are divided by ranges of destinations until those of one range fit into memory; the edges of a
# destination that has too many are divided by ranges of sources.

_CELLS = 1 << 12
"""Ranges of equal length whose edges are counted to find ranges of equally many edges."""
_ROW_BYTES = 16
"""What a destination takes while its edges are sorted."""


@dataclass(frozen=True)
class _Run:
    """Edges in order of arrival that lie in ranges of destinations and of sources."""

    count: int
    blocks: Callable[[], Iterator[tuple[Array, Array, dict[str, Array]]]]
    rows: tuple[int, int]
    sources: tuple[int, int]


class ListDivision(NamedTuple):
    """Ranges of `1 << shift` vertices each, in groups of consecutive ones: from the first to before the last."""

    groups: list[tuple[int, int]]
    shift: int


class ListSorter:
    """Sorts edges on disk, in the memory of a bound."""

    def __init__(
        self, edges: ArrivedEdges, deduplicate: bool, target: ListTarget, work: Path, bound: MemoryBound
    ) -> None:
        self._edges, self._deduplicate, self._work, self._target = edges, deduplicate, work, target
        self._fields = edges.fields or {}
        # Keys; with fields an order, its work space, the keys and the fields in that order.
        self._edge_bytes = 8 + (edges.field_bytes() + 20 if self._fields else 0) + 17 * deduplicate
        self._most, self._block_bytes = bound.list_bytes, bound.block_bytes
        self._divided = 0

    def write(self, step: str) -> EdgeSet:
        """Write the lists range by range, and map them. What is done of the step is noted after each range."""
        known = self._target.journal.state(piece_of(step, 0)) is not None
        with self._files(known):
            self._sort_all(self._all_edges(), step)
        fields = {name: open_array(writer.path) for name, writer in self._writers.items()}
        return EdgeSet(open_array(self._path("indptr")), open_array(self._path("indices")), fields)

    @contextmanager
    def _files(self, known: bool = False) -> Iterator[None]:
        """The files of the lists, open; those that are `known` are gone on with."""
        with ExitStack() as stack:

            def writer(name: str, dtype: Any, row_shape: tuple[int, ...] = ()) -> ArrayWriter:
                path = self._path(name)
                made = ArrayWriter.existing(path).reopen() if known else ArrayWriter(path, dtype, row_shape)
                return stack.enter_context(made)

            self._indptr = writer("indptr", np.int64)
            self._indices = writer("indices", index_dtype(self._edges.num_sources))
            self._writers = {
                name: writer(f"field.{file_name(name)}", values.dtype, values.shape[1:])
                for name, values in self._fields.items()
            }
            if not known:
                self._indptr.append(np.zeros(1, np.int64))
            yield

    def _all_edges(self) -> "_Run":
        edges = self._edges
        return _Run(edges.count, edges.blocks, (0, edges.num_destinations), (0, edges.num_sources))

    def _path(self, name: str) -> Path:
        return self._target.folder / f"{name}.npy"

    # Edges that lie in shards: each is counted and divided by one process, and each range of lists sorted by one.

    def counts(self) -> Array:
        """How many of the edges end in each range of destinations."""
        return self._counts(self._all_edges(), by_row=True)[0]

    def division(self, counts: Array, least: int) -> ListDivision:
        """Groups of ranges that fit into memory, and at least so many where that is possible."""
        cells = counts * self._edge_bytes + (_ROW_BYTES << (shift := self._shift(self._edges.num_destinations)))
        return ListDivision(groups_of(cells, min(self._most, int(cells.sum()) // least)), shift)

    def divide(self, division: ListDivision) -> None:
        """Write the edges to the work folder, divided."""
        self._written(self._all_edges(), division, by_row=True)

    def write_range(self, folders: Sequence[Path], division: ListDivision, number: int) -> None:
        """Write the lists of one group of ranges; the work folders of all shards have its edges."""
        shards = [self._known_file(folder / "1", len(division.groups)) for folder in folders]

        def blocks() -> Iterator[tuple[Array, Array, dict[str, Array]]]:
            for shard in shards:
                yield from _blocks_of(shard(), number)()

        first, last = (each << division.shift for each in division.groups[number])
        rows = first, min(last, self._edges.num_destinations)
        count = sum(int(shard().counts()[number]) for shard in shards)
        with self._files():
            self._sort(_Run(count, blocks, rows, (0, self._edges.num_sources)))

    def _known_file(self, folder: Path, buckets: int) -> Callable[[], BucketFile]:
        """Opens a file of divided edges: no more than one of them is open at a time."""
        return lambda: BucketFile(folder, buckets, self._columns(), known=True)

    def _sort_all(self, run: _Run, step: str) -> None:
        """Write all lists; where their edges are divided first, what is done is noted after every range."""
        journal, state = self._target.journal, self._target.journal.state(f"{step}, divided")
        if state is None and (self._fits(run) or run.rows[1] - run.rows[0] <= 1):
            self._sort(run)
            return
        if state is not None:
            division = ListDivision(state["groups"], state["shift"])
            self._divided += 1
            file = self._file(len(division.groups), known=True)
        else:
            division = self._division(run, by_row=True)
            file = self._written(run, division, by_row=True)
            journal.note(f"{step}, divided", division._asdict(), file.files)
        for number, part in enumerate(self._parts(run, division, file, by_row=True)):
            if journal.state(piece_of(step, number)) is not None:
                self._advance(part.count)
                continue
            self._sort(part)
            files = [self._indptr, self._indices, *self._writers.values()]
            journal.note(piece_of(step, number), True, files)
        # With the last note about these lists the folder is gone.

    def _sort(self, run: _Run) -> None:
        """Write the lists of a range of destinations."""
        low, high = run.rows
        if self._fits(run):
            before = self._indices.rows
            degrees = self._write(run)
            self._indptr.append(before + np.cumsum(degrees))
        elif high - low > 1:
            for part in self._divide(run, by_row=True):
                self._sort(part)
        else:
            self._sort_row(run)
            self._indptr.append(np.array([self._indices.rows]))

    def _sort_row(self, run: _Run) -> None:
        """Write the list of one destination."""
        if self._fits(run):
            self._write(run)
        elif run.sources[1] - run.sources[0] > 1:
            for part in self._divide(run, by_row=False):
                self._sort_row(part)
        else:
            self._copy(run)

    def _fits(self, run: _Run) -> bool:
        return run.count * self._edge_bytes + _ROW_BYTES * (run.rows[1] - run.rows[0]) <= self._most

    def _divide(self, run: _Run, by_row: bool) -> Iterator[_Run]:
        """The edges of consecutive ranges, of destinations or of sources, each of which fits where that is possible."""
        division = self._division(run, by_row)
        file = self._written(run, division, by_row)
        yield from self._parts(run, division, file, by_row)
        file.remove()

    def _division(self, run: _Run, by_row: bool) -> ListDivision:
        """Ranges of about equally many edges."""
        counts, shift = self._counts(run, by_row)
        most = self._most - _ROW_BYTES * (not by_row)
        return ListDivision(groups_of(counts * self._edge_bytes + (_ROW_BYTES << shift) * by_row, most), shift)

    def _counts(self, run: _Run, by_row: bool) -> tuple[Array, int]:
        """The edges of ranges of `1 << shift` vertices each, and the shift."""
        low, high = run.rows if by_row else run.sources
        shift = self._shift(high - low)
        counts = np.zeros(((high - low - 1) >> shift) + 1, np.int64)
        for sources, destinations, _ in run.blocks():
            _count_cells(destinations if by_row else sources, low, shift, counts)
        return counts, shift

    def _shift(self, vertices: int) -> int:
        return max(0, (vertices - 1).bit_length() - _CELLS.bit_length() + 1)

    def _parts(self, run: _Run, division: ListDivision, file: BucketFile, by_row: bool) -> Iterator[_Run]:
        """The edges of each range, from the file they were divided into."""
        low, high = run.rows if by_row else run.sources
        sizes = file.counts()
        for number, (first, last) in enumerate(division.groups):
            part = low + (first << division.shift), min(high, low + (last << division.shift))
            yield _Run(
                int(sizes[number]),
                _blocks_of(file, number),
                part if by_row else run.rows,
                run.sources if by_row else part,
            )

    def _file(self, buckets: int, known: bool = False) -> BucketFile:
        """A file for edges that are divided."""
        return BucketFile(self._work / str(self._divided), buckets, self._columns(), known=known)

    def _columns(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        dtype = self._edges.sources.dtype
        kinds = {name: (values.dtype, values.shape[1:]) for name, values in self._fields.items()}
        return {"sources": (dtype, ()), "destinations": (dtype, ()), **{f"field.{n}": k for n, k in kinds.items()}}

    def _written(self, run: _Run, division: ListDivision, by_row: bool) -> BucketFile:
        """The edges of a run, divided into a file of buckets."""
        low, groups = (run.rows if by_row else run.sources)[0], division.groups
        group_of = np.repeat(np.arange(len(groups)), [last - first for first, last in groups])
        dtype = self._edges.sources.dtype
        self._divided += 1
        file = self._file(len(groups))
        most = max(1, self._block_bytes // (4 * (2 * dtype.itemsize + 8 + self._edges.field_bytes())))
        for waiting in _gathered(run.blocks(), most):
            sources, destinations, fields = waiting
            rows = {"sources": sources, "destinations": destinations, **{f"field.{n}": v for n, v in fields.items()}}
            file.append(group_of[((destinations if by_row else sources) - low) >> division.shift], rows)
        file.close()
        return file

    def _write(self, run: _Run) -> Array:
        """Write the edges of a run in order; returns how many each destination has."""
        bits = max(1, (run.sources[1] - run.sources[0] - 1).bit_length())
        keys, start = np.empty(run.count, np.int64), 0
        loaded = {name: np.empty((run.count, *values.shape[1:]), values.dtype) for name, values in self._fields.items()}
        for sources, destinations, fields in run.blocks():
            stop = start + len(sources)
            _pack(sources, destinations, run.rows[0], run.sources[0], bits, keys[start:stop])
            for name, values in fields.items():
                loaded[name][start:stop] = values
            start = stop
        order = None
        if loaded:
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
        else:
            keys.sort()
        degrees = np.zeros(run.rows[1] - run.rows[0], np.int64)
        last = -1
        for first, stop in ranges(run.count, _BLOCK_ROWS):
            some = keys[first:stop]
            keep = np.ones(len(some), np.bool_)
            if self._deduplicate:
                keep[0] = some[0] != last
                keep[1:] = some[1:] != some[:-1]
                last = int(some[-1])
            kept = some if keep.all() else some[keep]
            _count_cells(kept, 0, bits, degrees)
            self._indices.append((kept & ((1 << bits) - 1)) + run.sources[0])
            for name, values in loaded.items():
                assert order is not None, "fields have been loaded"
                self._writers[name].append(values[order[first:stop][keep]])
        self._advance(run.count)
        return degrees

    def _copy(self, run: _Run) -> None:
        """Write parallel edges, of which there are more than fit, in their order."""
        for sources, _, fields in run.blocks():
            rows = slice(0, 1) if self._deduplicate else slice(None)
            self._indices.append(sources[rows])
            for name, values in fields.items():
                self._writers[name].append(values[rows])
            if self._deduplicate:
                break
        self._advance(run.count)

    def _advance(self, edges: int) -> None:
        self._target.progress.advance(edges)


def _blocks_of(file: BucketFile, bucket: int) -> Callable[[], Iterator[tuple[Array, Array, dict[str, Array]]]]:
    """The edges of one bucket, as often as they are asked for."""

    def blocks() -> Iterator[tuple[Array, Array, dict[str, Array]]]:
        for piece in file.pieces(bucket, bucket + 1):
            columns = dict(piece.columns)
            sources, destinations = columns.pop("sources"), columns.pop("destinations")
            yield sources, destinations, {name.removeprefix("field."): values for name, values in columns.items()}

    return blocks


def _gathered(
    blocks: Iterator[tuple[Array, Array, dict[str, Array]]], rows: int
) -> Iterator[tuple[Array, Array, dict[str, Array]]]:
    """Blocks joined, or cut, to about so many rows."""
    waiting: list[tuple[Array, Array, dict[str, Array]]] = []
    size = 0
    for sources, destinations, fields in blocks:
        for start, stop in ranges(len(sources), rows):
            cut = {name: values[start:stop] for name, values in fields.items()}
            waiting.append((sources[start:stop], destinations[start:stop], cut))
            size += stop - start
            if size >= rows:
                yield _joined(waiting)
                waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(blocks: list[tuple[Array, Array, dict[str, Array]]]) -> tuple[Array, Array, dict[str, Array]]:
    if len(blocks) == 1:
        return blocks[0]
    sources = np.concatenate([sources for sources, _, _ in blocks])
    destinations = np.concatenate([destinations for _, destinations, _ in blocks])
    fields = {name: np.concatenate([block[2][name] for block in blocks]) for name in blocks[0][2]}
    return sources, destinations, fields


@njit(nogil=True, cache=True, writes=("counts",))
def _count_cells(keys: Array, low: int, shift: int, counts: Array) -> None:
    for i in range(keys.shape[0]):
        counts[(np.int64(keys[i]) - low) >> shift] += 1


@njit(nogil=True, cache=True, writes=("keys",))
def _pack(sources: Array, destinations: Array, low: int, first: int, bits: int, keys: Array) -> None:
    for i in range(keys.shape[0]):
        keys[i] = ((np.int64(destinations[i]) - low) << bits) | (np.int64(sources[i]) - first)
