"""What every store answers to, and the store of a graph's own fields, read where they are mapped."""

import difflib
from typing import Any, Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.store.rows import gather_rows, span_of


class Store(Protocol):
    """Rows of fields by vertex number, wherever they are. Fields are named `type/field`."""

    def pull(self, field: str, ids: Array, columns: slice | None = None, out: Array | None = None) -> Array:
        """The rows `ids` of a field, or some columns of them, into `out` where given."""

    def push(self, field: str, ids: Array, values: Array) -> None:
        """Replace some rows of a field."""

    def row_shape(self, field: str) -> tuple[int, ...]:
        """The shape of one row of a field."""

    def dtype(self, field: str) -> np.dtype[Any]:
        """The type of a field's numbers."""


class LocalStore:
    """Fields of node types, named `type/field`. Reading costs the rows read; nothing is loaded ahead."""

    def __init__(self, fields: dict[str, Array]) -> None:
        self.fields = fields

    @classmethod
    def of_graph(cls, graph: Graph) -> "LocalStore":
        """Every field of every node type."""
        return cls(graph_fields(graph))

    def pull(self, field: str, ids: Array, columns: slice | None = None, out: Array | None = None) -> Array:
        """The rows `ids` of a field, into `out` where given."""
        table = self.table(field)
        return gather_rows(table, ids, out, span_of(columns, table.shape[1:]))

    def push(self, field: str, ids: Array, values: Array) -> None:
        """Replace rows. Fields of a graph folder are mapped read-only and refuse."""
        self.writable(field)[ids] = values

    def row_shape(self, field: str) -> tuple[int, ...]:
        """The shape of one row of a field."""
        return tuple(self.table(field).shape[1:])

    def dtype(self, field: str) -> np.dtype[Any]:
        """The type of a field's numbers."""
        return self.table(field).dtype

    def table(self, field: str) -> Array:
        """The whole field, memory-mapped."""
        if field not in self.fields:
            near = difflib.get_close_matches(field, self.fields, 1)
            hint = f": did you mean {near[0]!r}?" if near else f" (there are: {', '.join(self.fields) or 'none'})."
            raise PenstockError(f"There is no field {field!r}{hint}", code="field-missing")
        return self.fields[field]

    def writable(self, field: str) -> Array:
        """The whole field, if it may be written to."""
        table = self.table(field)
        if not table.flags.writeable:
            raise PenstockError(
                f"Field {field!r} is mapped read-only from its graph folder and cannot be pushed to.",
                code="not-permitted",
            )
        return table


def graph_fields(graph: Graph) -> dict[str, Array]:
    """Every field of every node type, by its name in stores."""
    return {f"{name}/{key}": values for name, nodes in graph.nodes.items() for key, values in nodes.fields.items()}
