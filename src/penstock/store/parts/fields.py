"""The fields of one part: those of its graph folder, and those made while a run needs them."""

import threading
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.partition.owners import Book
from penstock.store.files import passing_rows
from penstock.store.local import LocalStore, field_owners, graph_fields

IN_MEMORY = 1 << 30
"""Bytes of a made field above which it lies in a file."""


class PartFields(LocalStore):
    """A LocalStore by row number in the part, to which fields of float32 can be added."""

    def __init__(self, graph: Graph, in_memory: int = IN_MEMORY, folder: Path | None = None) -> None:
        """Made fields above `in_memory` bytes lie in nameless files in `folder` (None: where temporary ones do)."""
        super().__init__(graph_fields(graph))
        self.nodes, self._in_memory, self._folder = graph.nodes, in_memory, folder
        self.owners = field_owners(graph)
        self._made: set[str] = set()
        self._dropped: set[str] = set()
        self._lock = threading.Lock()

    def make(self, field: str, width: int) -> None:
        """A field of `width` float32 for every vertex of its type, zeros at first. Made twice, it is the one it was."""
        with self._lock:
            if field in self._dropped:
                # Else a request that was long on its way could bring back what everybody is done with.
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
        """Forget a made field, and its name for good. It may be gone, or never have been, already."""
        with self._lock:
            if field in self.fields and field not in self._made:
                raise PenstockError(
                    f"Field {field!r} belongs to the graph and cannot be dropped.", code="not-permitted"
                )
            self.fields.pop(field, None)
            self._made.discard(field)
            self._dropped.add(field)


def type_of(field: str, types: Iterable[str]) -> str:
    """The node type, or the key of the relation, that a field's name begins with."""
    known = list(types)
    found = [name for name in known if field.startswith(f"{name}/")]
    if not found:
        raise PenstockError(
            f"Field {field!r} does not begin with a node type or relation{nearest(field.split('/')[0], known)}",
            code="unknown-name",
        )
    return max(found, key=len)


def row_bounds(field: str, book: Book) -> Array:
    """The number of every part's first row of a field, of vertices or edges, and the count of all behind the last."""
    of_vertices = any(field.startswith(f"{name}/") for name in book.node_types)
    # Of a field that only edges can have, the book says why they have no numbers.
    numbered = book.numbers_edges or ("__" in field and not of_vertices)
    name = type_of(field, [*book.node_types, *(book.relations if numbered else ())])
    return book.bounds(name) if name in book.node_types else book.edge_bounds(name)
