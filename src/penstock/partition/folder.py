"""The partition folder: opening one."""

from pathlib import Path

import numpy as np

from penstock.graph.arrays import Array, open_array
from penstock.graph.folder import edges_folder, nodes_folder, open_graph
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, file_name
from penstock.partition.book import Book
from penstock.partition.document import PartitionDocument, read_partition_document


class Partition:
    """A cut graph on disk: its document, its book, its parts (mapped when asked for)."""

    def __init__(self, path: Path, document: PartitionDocument) -> None:
        self.path, self.document = path, document
        self.book: Book = document.book()
        total = sum(info.count for info in document.node_types.values())
        self._original = open_array(path / "original.npy", "int64", (total,))

    @property
    def parts(self) -> int:
        """Number of parts."""
        return self.document.parts

    @property
    def trainers(self) -> int:
        """Sub-parts of each part."""
        return self.document.trainers

    def part(self, index: int) -> Graph:
        """One part, mapped. Its neighbour lists name vertices by new ID."""
        return open_graph(part_folder(self.path, index))

    def original(self, node_type: str | None = None) -> Array:
        """Original ID of every new ID of a type."""
        info = self.document.node_types[self.book.type_named(node_type)]
        return self._original[info.original_offset : info.original_offset + info.count]

    def new_ids(self, original: Array, node_type: str | None = None) -> Array:
        """New ID of some original IDs. Builds the inverse map: for a few calls, not for a loop."""
        to_original = self.original(node_type)
        inverse = np.empty(len(to_original), np.int64)
        inverse[to_original] = np.arange(len(to_original))
        return inverse[original]

    def halo(self, index: int, node_type: str | None = None) -> Array:
        """New IDs of the remote vertices that a part's core vertices read, ascending."""
        name = self.book.type_named(node_type)
        return open_array(nodes_folder(part_folder(self.path, index), name) / "halo.npy")

    def held_out_places(self, index: int, edge_type: EdgeType, name: str) -> Array:
        """Where a part's held-out pairs stood in the whole graph's array."""
        return open_array(edges_folder(part_folder(self.path, index), edge_type) / f"place.{file_name(name)}.npy")


def open_partition(path: str | Path) -> Partition:
    """Map a partition folder; costs the same for any size."""
    path = Path(path)
    return Partition(path, read_partition_document(path))


def part_folder(path: Path, index: int) -> Path:
    """Where a part lives."""
    return path / f"part{index}"
