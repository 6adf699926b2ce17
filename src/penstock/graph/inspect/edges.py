"""One pass over the lists of an edge type, and a second one that looks for every edge's reverse."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.blocks import map_blocks, ranges
from penstock.graph.data import EdgeSet, NodeSet
from penstock.kernels import njit
from penstock.progress import Progress

_BLOCK_ROWS = 1 << 16


@dataclass
class EdgeScan:
    """Counts of one edge type. `reciprocal` edges have their reverse too; None where that cannot be told."""

    self_loops: int
    duplicates: int
    reciprocal: int | None


def scan_edges(
    edges: EdgeSet, source: NodeSet, destination: NodeSet, touched: Array, what: str, progress: Progress
) -> EdgeScan:
    """Count self loops and parallel edges, and mark in `touched` every vertex that is a source."""
    same_type = source is destination

    def work(start: int, stop: int) -> tuple[int, int, int, int]:
        counts = _scan(edges.indptr, edges.indices, start, stop, destination.first, same_type, touched)
        progress.advance(int(edges.indptr[stop] - edges.indptr[start]))
        return counts

    found = list(map_blocks(work, destination.count, _BLOCK_ROWS))
    loops, duplicates, descents, bad = (sum(column) for column in zip(*found, strict=True)) if found else (0,) * 4
    if bad:
        raise PenstockError(
            f"{what} has {bad:,} lists or edges that point outside the graph: it is damaged; make it again.",
            code="damaged-file",
        )
    # Lists in the order of other numbers than these, as after a cut, cannot be walked side by side.
    comparable = same_type and destination.count == destination.total and descents == 0
    return EdgeScan(loops, duplicates, _count_reciprocal(edges, progress) if comparable else None)


def _count_reciprocal(edges: EdgeSet, progress: Progress) -> int:
    """Exact and linear: destinations ascend, so a cursor in each vertex's list only ever moves forward."""
    cursors = np.array(edges.indptr[:-1])
    found = 0
    for start, stop in ranges(len(cursors), _BLOCK_ROWS):
        found += _reciprocal(edges.indptr, edges.indices, start, stop, cursors)
        progress.advance(int(edges.indptr[stop] - edges.indptr[start]))
    return found


@njit(nogil=True, cache=True)
def _scan(
    indptr: Array, indices: Array, start: int, stop: int, first: int, same_type: bool, touched: Array
) -> tuple[int, int, int, int]:
    loops = duplicates = descents = bad = 0
    for row in range(start, stop):
        begin, end = indptr[row], indptr[row + 1]
        if begin < 0 or end < begin or end > indices.shape[0]:
            bad += 1
            continue
        for k in range(begin, end):
            neighbour = indices[k]
            if neighbour < 0 or neighbour >= touched.shape[0]:
                bad += 1
                continue
            # Threads may write the same byte; all of them write the same value.
            touched[neighbour] = True
            loops += same_type and neighbour == first + row
            if k > begin:
                duplicates += neighbour == indices[k - 1]
                descents += neighbour < indices[k - 1]
    return loops, duplicates, descents, bad


@njit(nogil=True, cache=True)
def _reciprocal(indptr: Array, indices: Array, start: int, stop: int, cursors: Array) -> int:
    found = 0
    for row in range(start, stop):
        for k in range(indptr[row], indptr[row + 1]):
            neighbour = indices[k]
            cursor, end = cursors[neighbour], indptr[neighbour + 1]
            while cursor < end and indices[cursor] < row:
                cursor += 1
            cursors[neighbour] = cursor
            found += cursor < end and indices[cursor] == row
    return found
