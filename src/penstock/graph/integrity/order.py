"""Whether neighbour lists ascend: partitioners and tasks on edges look neighbours up by binary search."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, release_pages
from penstock.graph.blocks import map_blocks
from penstock.graph.data import GraphData
from penstock.graph.schema import EdgeType, edge_key

_ROWS = 1 << 14
"""Lists that one thread looks at at a time."""


def check_order(graph: GraphData, edge_type: EdgeType) -> None:
    """Refuse lists that do not ascend, of an edge type whose arrays have been checked. Reads them once."""
    edges = graph.edges[edge_type]
    if edges.facts.trusted:
        return
    (row,) = edges.facts.of("indices", edges.indices, "unordered", lambda values: [_first_row(edges.indptr, values)])
    if row >= 0:
        where = edges.facts.where("indices", edges.indices, edge_key(edge_type))
        raise PenstockError(
            f"{where}: the neighbour list of vertex {row} does not ascend, from position {int(edges.indptr[row])} on:"
            " sort every list (and the edge fields with it), or make the graph again.",
            code="damaged-file",
        )


def _first_row(indptr: Array, indices: Array) -> int:
    def search(start: int, stop: int) -> int:
        first = int(indptr[start])
        block = indices[first : int(indptr[stop])]
        falls = block[1:] < block[:-1]
        # From the end of a list to the start of the next, numbers may fall.
        starts = indptr[start + 1 : stop] - first
        falls[starts[(starts > 0) & (starts < len(block))] - 1] = False
        if not falls.any():
            return -1
        return int(np.searchsorted(indptr, first + int(falls.argmax()), "right")) - 1

    found = next((row for row in map_blocks(search, len(indptr) - 1, _ROWS) if row >= 0), -1)
    release_pages(indices)
    return found
