"""One edge type on its way from tables to a spool: endpoints resolved, rows kept, held out or dropped."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter
from penstock.graph.csr import index_dtype
from penstock.graph.graph import SPLITS
from penstock.graph.schema import edge_key
from penstock.graph.tables.columns import FieldWriters, edge_fields, learn_fields, roles_of
from penstock.graph.tables.folds import fold_codes
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.reader import Chunk, Table
from penstock.graph.tables.spec import EdgeSpec
from penstock.progress import Progress

_NAMED = 5


class EdgeTable:
    """An edge type: its table and the node types at its ends."""

    def __init__(self, spec: EdgeSpec, folder: Path, source: NodeTable, destination: NodeTable) -> None:
        self.spec, self.source, self.destination = spec, source, destination
        self.key = edge_key(spec.type)
        self.fields = edge_fields(spec)
        self.dropped = 0
        self._named: list[str] = []
        self._folder = folder

    def spool(self, folder: Path, progress: Progress) -> "Spool":
        """All rows resolved and written to `folder` in order of arrival."""
        table = Table(self.spec, self._folder, f"edge type {self.key}", self._roles())
        if any(field.learns for field in self.fields):
            with progress.step(f"{self.key}: columns", table.rows, "rows"):
                for _ in learn_fields(self.fields, table, set(), progress):
                    pass
        with Spool(self, folder) as spool, progress.step(f"{self.key}: edges", table.rows, "rows"):
            for chunk in table.chunks(self._roles()):
                self._take(chunk, spool)
                progress.advance(len(chunk))
        if self.dropped and self.spec.dangling == "error":
            raise PenstockError(self._dangling_sentence())
        return spool

    def _roles(self) -> dict[str, Any]:
        roles = roles_of(self.fields)
        if self.spec.split:
            roles[str(self.spec.split.column)] = "text"
        for column, nodes in ((self.spec.source, self.source), (self.spec.destination, self.destination)):
            roles[column] = f"{nodes.kind} id" if nodes.kind else "id"
        return roles

    def _take(self, chunk: Chunk, spool: "Spool") -> None:
        source_ids = self.source.ids_of(chunk, self.spec.source)
        destination_ids = self.destination.ids_of(chunk, self.spec.destination)
        assert self.source.index is not None and self.destination.index is not None
        sources, destinations = (
            self.source.index.find(source_ids),
            self.destination.index.find(destination_ids),
        )
        lost = self._lost(chunk, sources, destinations)
        self._create(sources, destinations, source_ids, destination_ids, lost)
        spool.append(chunk, sources, destinations, ~lost if lost.any() else None)

    def _lost(self, chunk: Chunk, sources: Array, destinations: Array) -> Array:
        """Rows that name a vertex which neither exists nor may be created; the first few are remembered."""
        lost = np.zeros(len(chunk), np.bool_)
        ends = (
            (self.source, sources, self.spec.source),
            (self.destination, destinations, self.spec.destination),
        )
        for nodes, numbers, _ in ends:
            if not self._creates(nodes):
                lost |= numbers < 0
        self.dropped += int(np.count_nonzero(lost))
        for row in np.flatnonzero(lost)[: _NAMED - len(self._named)].tolist():
            nodes, _, column = next(end for end in ends if end[1][row] < 0 and not self._creates(end[0]))
            value = chunk.column(column)[row].as_py()
            self._named.append(f"{nodes.spec.type} {value!r} ({chunk.place(row)})")
        return lost

    def _creates(self, nodes: NodeTable) -> bool:
        return nodes.table is None or self.spec.dangling == "create"

    def _create(
        self,
        sources: Array,
        destinations: Array,
        source_ids: pa.Array,
        destination_ids: pa.Array,
        lost: Array,
    ) -> None:
        """Number the ids met for the first time, row by row and source before destination."""
        new_sources, new_destinations = (
            np.flatnonzero((sources < 0) & ~lost),
            np.flatnonzero((destinations < 0) & ~lost),
        )
        assert self.source.index is not None and self.destination.index is not None
        if self.source is not self.destination:
            sources[new_sources] = self.source.index.add(source_ids.take(pa.array(new_sources)))
            destinations[new_destinations] = self.destination.index.add(
                destination_ids.take(pa.array(new_destinations))
            )
            return
        if len(new_sources) + len(new_destinations) == 0:
            return
        ids = _joined(
            source_ids.take(pa.array(new_sources)), destination_ids.take(pa.array(new_destinations))
        )
        order = np.argsort(np.concatenate([2 * new_sources, 2 * new_destinations + 1]))
        numbers = np.empty(len(ids), np.int64)
        numbers[order] = self.source.index.add(ids.take(pa.array(order)))
        sources[new_sources] = numbers[: len(new_sources)]
        destinations[new_destinations] = numbers[len(new_sources) :]

    def _dangling_sentence(self) -> str:
        more = ", ..." if self.dropped > len(self._named) else ""
        what = "edge names a vertex" if self.dropped == 1 else "edges name vertices"
        return (
            f"{self.dropped:,} {what} that no table of {self.key} has: {', '.join(self._named)}{more}."
            " Add them to the node table, or set 'dangling: drop' or 'dangling: create'."
        )


class Spool:
    """Edges on disk in order of arrival: sources, destinations, fields, and the pairs held out."""

    def __init__(self, edges: EdgeTable, folder: Path) -> None:
        self.edges, self._stack = edges, ExitStack()
        self._dtype = index_dtype(max(edges.source.count, edges.destination.count))
        self.sources, self.destinations = (
            self._writer(folder, "sources"),
            self._writer(folder, "destinations"),
        )
        # Where an undirected edge stands twice, both need the row their fields are in.
        self.rows = self._writer(folder, "rows", np.int64) if edges.spec.undirected and edges.fields else None
        self.fields = self._stack.enter_context(FieldWriters(edges.fields, folder))
        held_out = SPLITS[1:] if edges.spec.split else ()
        self.held_out = {name: self._writer(folder, f"held_out.{name}", np.int64, (2,)) for name in held_out}
        self._kept = 0

    def append(self, chunk: Chunk, sources: Array, destinations: Array, keep: Array | None) -> None:
        """The rows of a chunk marked in `keep` (None: all)."""
        self._check_width()
        if self.edges.spec.split:
            keep = self._hold_out(chunk, sources, destinations, keep)
        self.fields.append(chunk, keep)
        if keep is not None:
            sources, destinations = sources[keep], destinations[keep]
        rows = len(sources)
        if self.edges.spec.undirected:
            sources, destinations, order = _both_ways(sources, destinations)
            if self.rows is not None:
                self.rows.append(self._kept + order)
        self.sources.append(sources)
        self.destinations.append(destinations)
        self._kept += rows

    def _hold_out(self, chunk: Chunk, sources: Array, destinations: Array, keep: Array | None) -> Array:
        folds = fold_codes(chunk, str(self.edges.spec.split and self.edges.spec.split.column))
        keep = np.ones(len(chunk), np.bool_) if keep is None else keep
        for code, name in enumerate(SPLITS):
            if name in self.held_out:
                out = keep & (folds == code)
                self.held_out[name].append(np.stack([sources[out], destinations[out]], axis=1))
        kept: Array = keep & (folds <= 0)
        return kept

    def _check_width(self) -> None:
        """Vertices that edges create may outgrow the numbers chosen when the table was opened."""
        for nodes in (self.edges.source, self.edges.destination):
            if index_dtype(nodes.count).itemsize > self._dtype.itemsize:
                raise PenstockError(
                    f"{self.edges.key} creates more than 2,147,483,647 vertices of type {nodes.spec.type}:"
                    " give them a node table."
                )

    def _writer(
        self, folder: Path, name: str, dtype: Any = None, row_shape: tuple[int, ...] = ()
    ) -> ArrayWriter:
        return self._stack.enter_context(ArrayWriter(folder / f"{name}.npy", dtype or self._dtype, row_shape))

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.__exit__(*failure)


def _both_ways(sources: Array, destinations: Array) -> tuple[Array, Array, Array]:
    """Each edge and right after it its opposite, loops once; and the row each came from."""
    rows = np.repeat(np.arange(len(sources)), 2)
    there, back = np.stack([sources, destinations], axis=1), np.stack([destinations, sources], axis=1)
    pairs = np.stack([there, back], axis=1).reshape(-1, 2)
    keep = np.ones(len(rows), np.bool_)
    keep[1::2] = sources != destinations
    return pairs[keep, 0], pairs[keep, 1], rows[keep]


def _joined(first: pa.Array, second: pa.Array) -> pa.Array:
    """Two arrays of ids as one, whatever their encoding."""
    if pa.types.is_integer(first.type):
        return pa.concat_arrays([first, second])
    return pa.concat_arrays([ids.cast(pa.large_string()) for ids in (first, second)])
