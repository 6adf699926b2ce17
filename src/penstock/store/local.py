"""A graph's own fields, read where they are mapped."""

import difflib

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.store.rows import gather_rows


class LocalStore:
    """Fields of node types, named `type/field`. Reading costs the rows read; nothing is loaded ahead."""

    def __init__(self, fields: dict[str, Array]) -> None:
        self.fields = fields

    @classmethod
    def of_graph(cls, graph: Graph) -> "LocalStore":
        """Every field of every node type."""
        return cls(
            {f"{name}/{key}": values for name, nodes in graph.nodes.items() for key, values in nodes.fields.items()}
        )

    def pull(self, field: str, ids: Array, columns: slice | None = None, out: Array | None = None) -> Array:
        """The rows `ids` of a field, into `out` where given."""
        table = self.table(field)
        if columns is None:
            return gather_rows(table, ids, out)
        rows = gather_rows(table, ids)[:, columns]
        if out is None:
            return rows
        out[...] = rows
        return out

    def push(self, field: str, ids: Array, values: Array) -> None:
        """Replace rows. Fields of a graph folder are mapped read-only and refuse."""
        table = self.table(field)
        if not table.flags.writeable:
            raise PenstockError(f"Field {field!r} is mapped read-only from its graph folder and cannot be pushed to.")
        table[ids] = values

    def table(self, field: str) -> Array:
        """The whole field, mapped."""
        if field not in self.fields:
            near = difflib.get_close_matches(field, self.fields, 1)
            hint = f": did you mean {near[0]!r}?" if near else f" (there are: {', '.join(self.fields) or 'none'})."
            raise PenstockError(f"There is no field {field!r}{hint}")
        return self.fields[field]
