"""The store's side of the wire: fields and learnable rows of the parts that this process holds."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array, passing_rows
from penstock.graph.files import make_private_folder
from penstock.graph.folder import Graph
from penstock.graph.integrity import non_finite
from penstock.graph.schema import file_name
from penstock.partition.folder import Partition
from penstock.partition.owners import Book
from penstock.store.embedding import Optimiser
from penstock.store.initial_rows import InitialRows
from penstock.store.parts.embedding_files import JOURNAL, DamagedEmbedding, Push
from penstock.store.parts.owned import OwnedEmbedding, chunks
from penstock.store.parts.requests import (
    FieldRequest,
    Make,
    PartRequest,
    PartRows,
    Pull,
    Restore,
    RoundRequest,
    Select,
    SendBuffers,
    Shrink,
    Staged,
    TableRequest,
    arrived,
    checked,
    encoding_for,
    pack_rows,
    row_numbers,
    rows_a_part,
)
from penstock.store.parts.selected_columns import SELECT, KeptSelections, SelectedEncoding
from penstock.store.rows import check_rows, span_of, spread_rows
from penstock.store.source import LocalStore, field_owners, graph_fields
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

# The fields of one part: those of its graph folder, and those made while a run needs them.

IN_MEMORY = 1 << 30
"""Made fields above this many bytes lie in a file."""


class PartFields(LocalStore):
    """A `LocalStore` by row number in the part, to which float32 fields can be added."""

    def __init__(self, graph: Graph, in_memory: int = IN_MEMORY, folder: Path | None = None) -> None:
        """Made fields above `in_memory` bytes lie in unlinked files in `folder` (None: the temporary folder)."""
        super().__init__(graph_fields(graph))
        self.nodes, self._in_memory, self._folder = graph.nodes, in_memory, folder
        self.owners = field_owners(graph)
        self._made: set[str] = set()
        self._dropped: set[str] = set()
        self._lock = threading.Lock()

    def make(self, field: str, width: int) -> None:
        """Make a field of `width` float32 for every vertex of its type, initially zero. If it exists it is kept."""
        with self._lock:
            if field in self._dropped:
                # Otherwise a delayed request could recreate a field after it was dropped.
                raise PenstockError(f"Field {field!r} was dropped: create one with another name.", code="not-available")
            if field in self.fields:
                if field not in self._made or self.fields[field].shape[1:] != (width,):
                    raise PenstockError(
                        f"A field {field!r} of another shape exists already: choose another name.", code="duplicate"
                    )
                return
            nodes = self.nodes[type_of(field, self.nodes)]
            self.fields[field] = passing_rows((nodes.count, width), self._in_memory, self._folder)
            self._made.add(field)

    def drop(self, field: str) -> None:
        """Drop a made field, and its name for good. It need not exist."""
        with self._lock:
            if field in self.fields and field not in self._made:
                raise PenstockError(
                    f"Field {field!r} belongs to the graph and cannot be dropped.", code="not-permitted"
                )
            self.fields.pop(field, None)
            self._made.discard(field)
            self._dropped.add(field)


def type_of(field: str, types: Iterable[str]) -> str:
    """The node type, or the relation key, that a field's name begins with."""
    known = list(types)
    found = [name for name in known if field.startswith(f"{name}/")]
    if not found:
        raise PenstockError(
            f"Field {field!r} does not begin with a node type or relation{nearest(field.split('/')[0], known)}",
            code="unknown-name",
        )
    return max(found, key=len)


def row_bounds(field: str, book: Book) -> Array:
    """The first row number of every part for a field, of vertices or edges, followed by the total."""
    of_vertices = any(field.startswith(f"{name}/") for name in book.node_types)
    # For a field that only edges have, the book explains why they have no numbers.
    numbered = book.numbers_edges or ("__" in field and not of_vertices)
    name = type_of(field, [*book.node_types, *(book.relations if numbered else ())])
    return book.bounds(name) if name in book.node_types else book.edge_bounds(name)


# The store's side of the wire: rows of the parts that this process holds.


class StoreService:
    """Serves `pull`, `push`, `fields`, `non-finite`, `make`, `drop` and `select` for some parts.

    Rows are numbered inside their part. Pushes are seen by pulls that begin later; callers must not push rows while
    others pull them.
    """

    def __init__(
        self, endpoint: Endpoint, parts: dict[int, Graph], in_memory: int = IN_MEMORY, folder: Path | None = None
    ) -> None:
        """Fields made above `in_memory` bytes lie in `folder`."""
        self.parts = {part: PartFields(graph, in_memory, folder) for part, graph in parts.items()}
        """What is served, also for readers in this process."""
        self.buffers, self._name = SendBuffers(), endpoint.name
        self._selections = KeptSelections()
        for kind in ("pull", "push", "fields", "make", "drop", SELECT):
            endpoint.serve(kind, getattr(self, f"_{kind}"))
        endpoint.serve("non-finite", self._non_finite)

    def _pull(self, request: Message, sender: str) -> Iterator[Message]:
        asked = checked(request, Pull)
        table = self._part(asked).table(asked.field)
        rows = row_numbers(request)
        check_rows(table, rows)
        span, _ = span_of(None if asked.columns is None else slice(*asked.columns), table.shape[1:])
        if span is not None and list(span) != asked.columns:
            raise PenstockError(
                f"Field {asked.field!r} has no columns {asked.columns}: its rows are {table.shape[1:]}.",
                code="shape-mismatch",
            )
        way = encoding_for(asked.wire_type, table.dtype, table.shape[1:], span, asked.rounding)
        if asked.selected is not None:
            columns = self._selections.of(sender, asked.field, asked.selected)
            way = SelectedEncoding(asked.wire_type, table.dtype, columns, asked.rounding)
        return pack_rows(way, table, rows, PartRows(asked.part, rows), self.buffers)

    def _select(self, request: Message, sender: str) -> Message:
        """Keep a reader's selection of columns under a version; answers with the part's mean row if asked."""
        asked = checked(request, Select)
        table = self._part(asked).table(asked.field)
        if table.ndim != 2 or len(request.arrays) != 1:
            raise PenstockError(
                f"Columns of {asked.field!r} cannot be selected: its rows are {table.shape[1:]}.", code="shape-mismatch"
            )
        self._selections.keep(sender, asked.field, asked.version, request.arrays[0], table.shape[1])
        means = (self._selections.means(asked.field, asked.part, table),) if asked.means else ()
        return Message(SELECT, {}, means)

    def _push(self, request: Message, sender: str) -> Message:
        asked = checked(request, FieldRequest)
        table = self._part(asked).writable(asked.field)
        rows = row_numbers(request, 2)
        _, values = arrived(request.arrays, [(rows.shape, rows.dtype), ((len(rows), *table.shape[1:]), table.dtype)])
        check_rows(table, rows)
        spread_rows(values, rows, table)
        return Message("pushed")

    def _fields(self, request: Message, sender: str) -> Message:
        part = self._part(checked(request, PartRequest))
        return Message("fields", {"fields": {name: _described(part, name) for name in list(part.fields)}})

    def _non_finite(self, request: Message, sender: str) -> Message:
        """Answer with a phrase that names the rows of a field which are NaN or infinite; empty where none are."""
        asked = checked(request, FieldRequest)
        part = self._part(asked)
        name = type_of(asked.field, part.owners)
        owner, field = part.owners[name], asked.field.removeprefix(f"{name}/")
        found = non_finite(owner, name, field) if field in owner.fields else None
        return Message("non-finite", {"found": None if found is None else str(found)})

    def _make(self, request: Message, sender: str) -> Message:
        asked = checked(request, Make)
        self._part(asked).make(asked.field, asked.width)
        return Message("made")

    def _drop(self, request: Message, sender: str) -> Message:
        asked = checked(request, FieldRequest)
        self._part(asked).drop(asked.field)
        return Message("dropped")

    def _part(self, asked: PartRequest) -> PartFields:
        if asked.part not in self.parts:
            has = ", ".join(map(str, self.parts)) or "none"
            raise PenstockError(f"{self._name} does not hold part {asked.part} (it holds {has}).", code="not-available")
        return self.parts[asked.part]


def _described(part: PartFields, field: str) -> dict[str, Any]:
    table = part.table(field)
    return {
        "dtype": table.dtype.str,
        "row_shape": list(table.shape[1:]),
        "count": len(table),
        "writable": table.flags.writeable,
    }


# The owner's side of learnable rows: requests about the parts that it holds.

Tables = Mapping[tuple[str, int], OwnedEmbedding]
"""By (table, part); a table is a node type."""


def own_embedding(
    folder: Path,
    partition: Partition,
    part: int,
    table: str,
    width: int,
    optimiser: Optimiser,
    rate: float,
    seed: int,
    decay: float = 0.0,
    damaged: Callable[[DamagedEmbedding], None] | None = None,
    initial: InitialRows | None = None,
) -> OwnedEmbedding:
    """A part's share of the table of a node type, in a folder of its own below `folder`: as it was left, or new.

    If its files are damaged, `damaged` is called and may raise; otherwise the rows are initialised anew, to be restored
    from a checkpoint.
    """
    names = partition.original(table)[slice(*partition.book.range(part, table))]
    own = make_private_folder(make_private_folder(folder / file_name(table)) / f"part{part}")
    given = own, table, names, width, optimiser, rate, seed, decay, initial
    try:
        return OwnedEmbedding(*given)
    except DamagedEmbedding as error:
        if damaged is None:
            raise
        damaged(error)
        (own / JOURNAL).unlink()
        return OwnedEmbedding(*given)


class EmbeddingService:
    """Serves `embed-pull`, `-push`, `-squares`, `-shrink`, `-round`, `-state` and `-restore`.

    Rows are numbered inside their part.
    """

    def __init__(self, endpoint: Endpoint, tables: Tables) -> None:
        self._tables, self._name, self._buffers = tables, endpoint.name, SendBuffers()
        for kind in ("pull", "push", "squares", "shrink", "round", "state", "restore"):
            endpoint.serve(f"embed-{kind}", getattr(self, f"_{kind}"))

    def _pull(self, request: Message, sender: str) -> Iterator[Message]:
        asked = checked(request, TableRequest)
        owned, rows = self._owned(asked), row_numbers(request)
        check_rows(owned.rows, rows)
        owned.reach(asked.step)
        return self._parts(owned, rows, asked.step)

    def _parts(self, owned: OwnedEmbedding, rows: Array, step: int) -> Iterator[Message]:
        width = owned.rows.shape[1]
        count = rows_a_part(4 * width)
        for start in range(0, len(rows), count):
            some = rows[start : start + count]
            buffer = self._buffers.take(4 * width * len(some))
            out = buffer[: 4 * width * len(some)].view(np.float32).reshape(len(some), width)
            try:
                owned.pull(some, step, out)
            except PenstockError:
                self._buffers.give(buffer)
                raise
            yield Message("rows", {}, (out,), done=lambda buffer=buffer: self._buffers.give(buffer))  # type: ignore[misc]

    def _push(self, request: Message, sender: str) -> Message:
        asked = checked(request, Staged)
        ids = row_numbers(request, 2)
        push = Push(asked.step, asked.rank, asked.world, asked.learned, ids, request.arrays[1], asked.clipped)
        self._owned(asked).push(push)
        return Message("staged")

    def _squares(self, request: Message, sender: str) -> Message:
        asked = checked(request, TableRequest)
        return Message("squares", {"squares": self._owned(asked).squares(asked.step)})

    def _shrink(self, request: Message, sender: str) -> Message:
        asked = checked(request, Shrink)
        self._owned(asked).shrink(asked.step, asked.factor)
        return Message("shrunk")

    def _round(self, request: Message, sender: str) -> Message:
        asked = checked(request, RoundRequest)
        self._owned(asked).begin_round(asked.step, asked.round)
        return Message("round")

    def _state(self, request: Message, sender: str) -> Iterator[Message]:
        asked = checked(request, TableRequest)
        owned = self._owned(asked)
        owned.reach(asked.step)
        return self._state_parts(owned, asked.step)

    def _state_parts(self, owned: OwnedEmbedding, step: int) -> Iterator[Message]:
        for start, stop in chunks(len(owned.rows), owned.rows.shape[1], 1 + len(owned.moments)):
            tables = owned.read(start, stop, step)
            yield Message("state", {"start": start, "steps": owned.steps}, tuple(tables))

    def _restore(self, request: Message, sender: str) -> Message:
        asked = checked(request, Restore)
        if not request.arrays:
            raise PenstockError("An 'embed-restore' request needs rows and their moments.", code="malformed-message")
        owned = self._owned(asked)
        complete = owned.restore(asked.token, asked.start, list(request.arrays), asked.step, asked.steps)
        return Message("restored", {"complete": complete})

    def _owned(self, asked: TableRequest) -> OwnedEmbedding:
        owned = self._tables.get((asked.table, asked.part))
        if owned is None:
            has = ", ".join(f"{table} of part {part}" for table, part in self._tables) or "none"
            raise PenstockError(
                f"{self._name} has no embeddings {asked.table!r} of part {asked.part} (it has {has}).",
                code="not-available",
            )
        return owned
