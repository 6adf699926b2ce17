"""Whether neighbour lists ascend: partitioners and tasks on edges look neighbours up by binary search."""

from typing import TYPE_CHECKING

from numba import njit

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.blocks import map_blocks
from penstock.graph.schema import EdgeType, edge_key

if TYPE_CHECKING:
    from penstock.graph.graph import Graph

_ROWS = 1 << 16


def check_order(graph: "Graph", edge_type: EdgeType) -> None:
    """Refuse lists that do not ascend, of an edge type whose arrays have been checked. Reads them once."""
    edges = graph.edges[edge_type]
    if edges.facts.trusted:
        return
    (row,) = edges.facts.of("indices", edges.indices, "unordered", lambda values: [_first_row(edges.indptr, values)])
    if row >= 0:
        where = edges.facts.where("indices", edges.indices, edge_key(edge_type))
        raise PenstockError(
            f"{where}: the neighbour list of vertex {row} does not ascend, from position {int(edges.indptr[row])} on:"
            " sort every list (and the edge fields with it), or make the graph again."
        )


def _first_row(indptr: Array, indices: Array) -> int:
    rows = len(indptr) - 1
    found = map_blocks(lambda a, b: _first_unordered(indptr, indices, a, b), rows, _ROWS)
    return next((int(row) for row in found if row >= 0), -1)


@njit(nogil=True, cache=True)
def _first_unordered(indptr: Array, indices: Array, start: int, stop: int) -> int:
    for row in range(start, stop):
        for k in range(indptr[row] + 1, indptr[row + 1]):
            if indices[k] < indices[k - 1]:
                return row
    return -1
