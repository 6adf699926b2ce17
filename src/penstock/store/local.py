"""The store of a graph's own fields, read where they are mapped."""

import difflib

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.graph import Graph
from penstock.graph.schema import edge_key
from penstock.store.source import ArraySource


class LocalStore:
    """Fields, named `type/field` for node types and `source__relation__destination/field` for relations.

    Reading costs the rows read; nothing is loaded ahead. Rows of a relation's fields are numbered as its edges are:
    `block.edges` names those of a batch.
    """

    def __init__(self, fields: dict[str, Array]) -> None:
        self.fields = fields

    @classmethod
    def of_graph(cls, graph: Graph) -> "LocalStore":
        """Every field of every node type and relation."""
        return cls(graph_fields(graph))

    def source(self, field: str) -> ArraySource:
        """The rows of a field."""
        return ArraySource(self.table(field))

    def push(self, field: str, ids: Array, values: Array) -> None:
        """Replace rows. Fields of a graph folder are mapped read-only and refuse."""
        self.writable(field)[ids] = values

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
    """Every field of every node type and relation, by its name in stores."""
    owners = field_owners(graph).items()
    return {f"{name}/{key}": values for name, owner in owners for key, values in owner.fields.items()}


def field_owners(graph: Graph) -> dict[str, NodeSet | EdgeSet]:
    """What has fields, as stores name it: vertices by their type, edges by the relation's key."""
    return {**graph.nodes, **{edge_key(kind): edges for kind, edges in graph.edges.items()}}
