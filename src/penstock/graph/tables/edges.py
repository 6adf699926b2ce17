"""One edge type on its way from tables to a spool: endpoints resolved, rows kept, held out or dropped."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import edge_key
from penstock.graph.tables.columns import edge_fields, learn_fields, roles_of
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.reader import Table, TableChunk
from penstock.graph.tables.roles import Role
from penstock.graph.tables.spec import EdgeSpec
from penstock.graph.tables.spool import Spool
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
        self.table = Table(spec, folder, f"edge type {self.key}", self._roles())

    def spool(self, folder: Path, progress: Progress) -> Spool:
        """All rows resolved and written to `folder` in order of arrival."""
        # By now the node tables are read and it is known what their ids are.
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
        """Where edges alone name the vertices, both ends must be read as one kind: 007 is not 7."""
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
        """Rows that name a vertex which neither exists nor may be created; the first few are remembered."""
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
        """Number the ids met for the first time, row by row and source before destination."""
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
