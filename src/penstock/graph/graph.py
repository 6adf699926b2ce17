"""A graph as users hold it: its contents, opened from a folder, saved to one, or handed to PyG."""

import os
from pathlib import Path
from typing import Any, Self

from penstock.graph.data import GraphData
from penstock.graph.folder import read_graph, write_graph


class Graph(GraphData):
    """A heterogeneous graph, in memory or mapped. With one type of each, `graph.x` and `graph.num_nodes` just work."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], unchecked: bool = False) -> Self:
        """Map a graph folder; costs the same for any size.

        Its arrays are checked before the first kernel reads them, once for each folder; with `unchecked` they never
        are, and a wrong number in a file may then crash the process.
        """
        found = read_graph(Path(path))
        graph = cls(found.nodes, found.edges, found.name, found.path, found.origin)
        if unchecked:
            graph.trust()
        return graph

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Self:
        """Write a graph folder and return the graph mapped from it."""
        write_graph(self, Path(path), force)
        return self.open(path)

    def to_pyg(self) -> Any:
        """As a PyG `Data` (one type of each) or `HeteroData`; arrays are shared where torch allows."""
        # Torch takes seconds to import, and most commands need none of it.
        from penstock.graph.pyg_export import to_pyg

        return to_pyg(self)
