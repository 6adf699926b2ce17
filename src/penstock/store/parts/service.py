"""The store's side of the wire: rows of the parts that this process holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.graph.integrity import non_finite
from penstock.store.parts.fields import IN_MEMORY, PartFields, type_of
from penstock.store.parts.requests import FieldRequest, Make, PartRequest, Pull, Select, checked, row_numbers
from penstock.store.parts.row_encoding import PartRows, arrived, encoding_for
from penstock.store.parts.selected_columns import SELECT, KeptSelections, SelectedEncoding
from penstock.store.parts.send_buffers import SendBuffers, pack_rows
from penstock.store.rows import check_rows, span_of, spread_rows
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message


class StoreService:
    """Answers `pull`, `push`, `fields`, `non-finite`, `make`, `drop` and `select` for some parts.

    Rows are numbered inside their part.
    Pushes are seen by pulls that begin later; who pushes rows while others pull them must keep them apart.
    """

    def __init__(
        self, endpoint: Endpoint, parts: dict[int, Graph], in_memory: int = IN_MEMORY, folder: Path | None = None
    ) -> None:
        """Fields made above `in_memory` bytes lie in `folder`."""
        self.parts = {part: PartFields(graph, in_memory, folder) for part, graph in parts.items()}
        """What is served, for readers in this process too."""
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
        """Remember which columns a reader means by a version; answers with the part's mean row where asked."""
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
        """Which rows of a field are NaN or infinite, in words; nothing where none are."""
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
