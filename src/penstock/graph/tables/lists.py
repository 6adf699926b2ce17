"""From a spool of edges to neighbour lists: sorted in memory, or on disk where they do not fit."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from penstock.graph.arrays import Array, ArrayWriter, open_array, release_pages, write_array
from penstock.graph.blocks import map_blocks, ranges
from penstock.graph.csr import build_lists, deduplicate_lists, index_dtype
from penstock.graph.data import EdgeSet
from penstock.graph.folder import edges_folder, write_held_out
from penstock.graph.schema import EdgeType, edge_key, file_name, relation_names
from penstock.graph.tables.bucket_files import BucketFile, MemoryBound, groups_of
from penstock.graph.tables.edges import Spool
from penstock.kernels import njit
from penstock.progress import Progress

_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 1 << 20


def write_spool(spool: Spool, folder: Path, bound: MemoryBound | None, progress: Progress) -> dict[EdgeType, EdgeSet]:
    """The lists of the edge types of a table and of their reverses where those are wanted; the spool is removed."""
    write = _write_relations if spool.spec.relation is not None else _write_type
    made = write(spool, folder, bound, progress)
    shutil.rmtree(spool.folder, ignore_errors=True)
    return made


def _write_type(spool: Spool, folder: Path, bound: MemoryBound | None, progress: Progress) -> dict[EdgeType, EdgeSet]:
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
    with progress.step(f"{key}: lists", edges.count, "edges"):
        target = edges_folder(folder, spec.type)
        lists = write_lists(edges, spec.deduplicate, held_out, target, spool.folder, bound, progress)
        made[spec.type] = replace(lists, categories=spool.fields.categories())
    if spec.reverse_type:
        with progress.step(f"{key}: reverse lists", edges.count, "edges"):
            target = edges_folder(folder, spec.reverse_type)
            lists = write_lists(edges.reversed(), spec.deduplicate, {}, target, spool.folder, bound, progress)
            made[spec.reverse_type] = replace(lists, categories=spool.fields.categories())
    return made


def _write_relations(
    spool: Spool, folder: Path, bound: MemoryBound | None, progress: Progress
) -> dict[EdgeType, EdgeSet]:
    """Tables whose rows have a relation each: an edge type for every relation, with its held-out pairs."""
    spec = spool.spec
    names = relation_names(list(spool.words))
    ends = {name: open_array(writer.path) for name, writer in spool.held_out.items()}
    sources, destinations = open_array(spool.sources.path), open_array(spool.destinations.path)
    kept = _by_relation(spool, "train", {"sources": sources, "destinations": destinations})
    apart = {split: _by_relation(spool, split, {"pairs": pairs}) for split, pairs in ends.items()}
    made: dict[EdgeType, EdgeSet] = {}
    with progress.step(f"{edge_key(spec.type)}: lists", len(sources), "edges"):
        for number, name in enumerate(names):
            columns = _relation(kept, number, spool.folder / "relation")
            held_out = {split: _relation(file, number, spool.folder / split)["pairs"] for split, file in apart.items()}
            edges = ArrivedEdges(columns["sources"], columns["destinations"], spool.ends[0].count, spool.ends[1].count)
            kind = spec.type[0], name, spec.type[2]
            target = edges_folder(folder, kind)
            made[kind] = write_lists(edges, spec.deduplicate, held_out, target, spool.folder, bound, progress)
            if spec.reverse:
                back = kind[2], f"rev-{name}", kind[0]
                target = edges_folder(folder, back)
                made[back] = write_lists(edges.reversed(), spec.deduplicate, {}, target, spool.folder, bound)
    return made


def _by_relation(spool: Spool, split: str, columns: dict[str, Array]) -> BucketFile:
    """Rows divided by their relations."""
    codes = open_array(spool.relations[split].path)
    kinds = {name: (values.dtype, values.shape[1:]) for name, values in columns.items()}
    file = BucketFile(spool.folder / f"by_relation.{split}", max(1, len(spool.words)), kinds)
    for start, stop in ranges(len(codes), _BLOCK_ROWS):
        file.append(codes[start:stop], {name: values[start:stop] for name, values in columns.items()})
    file.close()
    return file


def _relation(file: BucketFile, number: int, work: Path) -> dict[str, Array]:
    """The columns of one relation, mapped; the files are replaced by those of the next."""
    shutil.rmtree(work, ignore_errors=True)
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(ArrayWriter(work / f"{name}.npy", values.dtype, values.shape[1:]))
            for name, values in file.columns().items()
        }
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
    edges: ArrivedEdges,
    deduplicate: bool,
    held_out: dict[str, Array],
    target: Path,
    work: Path,
    bound: MemoryBound | None,
    progress: Progress | None = None,
) -> EdgeSet:
    """Edges sorted into lists, written and mapped. Lists ascend by source; parallel edges keep their order."""
    if bound is None or _memory_of(edges, deduplicate) <= bound.list_bytes:
        made = _write_in_memory(edges, deduplicate, target)
        if progress is not None:
            progress.advance(edges.count)
    else:
        made = ListSorter(edges, deduplicate, target, work / "sorted", bound, progress).write()
    write_held_out(held_out, target)
    mapped = {name: open_array(target / f"held_out.{name}.npy") for name in held_out}
    return replace(made, held_out=mapped)


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


class ListSorter:
    """Sorts edges on disk, in the memory of a bound."""

    def __init__(
        self,
        edges: ArrivedEdges,
        deduplicate: bool,
        target: Path,
        work: Path,
        bound: MemoryBound,
        progress: Progress | None = None,
    ) -> None:
        self._edges, self._deduplicate, self._work, self._progress = edges, deduplicate, work, progress
        self._fields = edges.fields or {}
        # Keys; with fields an order, its work space, the keys and the fields in that order.
        self._edge_bytes = 8 + (edges.field_bytes() + 20 if self._fields else 0) + 17 * deduplicate
        self._most, self._block_bytes = bound.list_bytes, bound.block_bytes
        self._target, self._divided = target, 0

    def write(self) -> EdgeSet:
        """Write the lists range by range, and map them."""
        edges, paths = self._edges, {name: self._path(f"field.{file_name(name)}") for name in self._fields}
        with ExitStack() as stack:
            self._indptr = stack.enter_context(ArrayWriter(self._path("indptr"), np.int64))
            self._indices = stack.enter_context(ArrayWriter(self._path("indices"), index_dtype(edges.num_sources)))
            self._writers = {
                name: stack.enter_context(ArrayWriter(paths[name], values.dtype, values.shape[1:]))
                for name, values in self._fields.items()
            }
            self._indptr.append(np.zeros(1, np.int64))
            self._sort(_Run(edges.count, edges.blocks, (0, edges.num_destinations), (0, edges.num_sources)))
        fields = {name: open_array(path) for name, path in paths.items()}
        return EdgeSet(open_array(self._path("indptr")), open_array(self._path("indices")), fields)

    def _path(self, name: str) -> Path:
        return self._target / f"{name}.npy"

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
        low, high = run.rows if by_row else run.sources
        shift = max(0, (high - low - 1).bit_length() - _CELLS.bit_length() + 1)
        counts = np.zeros(((high - low - 1) >> shift) + 1, np.int64)
        for sources, destinations, _ in run.blocks():
            _count_cells(destinations if by_row else sources, low, shift, counts)
        most = self._most - _ROW_BYTES * (not by_row)
        groups = groups_of(counts * self._edge_bytes + (_ROW_BYTES << shift) * by_row, most)
        group_of = np.repeat(np.arange(len(groups)), [last - first for first, last in groups])
        file = self._written(run, len(groups), lambda ends: group_of[(ends[by_row] - low) >> shift])
        sizes = file.counts()
        for number, (first, last) in enumerate(groups):
            part = low + (first << shift), min(high, low + (last << shift))
            yield _Run(
                int(sizes[number]),
                _blocks_of(file, number),
                part if by_row else run.rows,
                run.sources if by_row else part,
            )
        file.remove()

    def _written(self, run: _Run, buckets: int, bucket_of: Callable[[tuple[Array, Array]], Array]) -> BucketFile:
        """The edges of a run, divided into a file of buckets."""
        dtype = self._edges.sources.dtype
        kinds = {name: (values.dtype, values.shape[1:]) for name, values in self._fields.items()}
        self._divided += 1
        columns = {"sources": (dtype, ()), "destinations": (dtype, ()), **{f"field.{n}": k for n, k in kinds.items()}}
        file = BucketFile(self._work / str(self._divided), buckets, columns)
        most = max(1, self._block_bytes // (4 * (2 * dtype.itemsize + 8 + self._edges.field_bytes())))
        for waiting in _gathered(run.blocks(), most):
            sources, destinations, fields = waiting
            rows = {"sources": sources, "destinations": destinations, **{f"field.{n}": v for n, v in fields.items()}}
            file.append(bucket_of((sources, destinations)), rows)
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
        if self._progress is not None:
            self._progress.advance(edges)


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
