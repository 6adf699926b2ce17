"""One pass over a field or over the lists of an edge type.

Of a field it finds values that are no numbers, columns that never change and columns of very different scale; of lists
it counts edges, and a second pass looks for every edge's reverse.
"""

from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, release_pages
from penstock.graph.blocks import map_blocks, ranges
from penstock.graph.data import EdgeSet, NodeSet
from penstock.kernels import njit
from penstock.progress import Progress

_BLOCK_BYTES = 8 << 20
# A mapped field's pages are given back about this often, so that a large file does not fill the memory.
_RELEASE_BYTES = 512 << 20


@dataclass
class ColumnScan:
    """What a field's columns look like; `stds` are of the columns that vary."""

    not_finite: int
    constant: int
    stds: Array


def scan_columns(values: Array, mapped: bool, progress: Progress) -> ColumnScan:
    """Scan a one- or two-dimensional numeric field in blocks. `mapped`: it is a file's, read-only."""
    if values.size == 0:
        return ColumnScan(0, 0, np.empty(0))
    table = values.reshape(len(values), -1)
    columns = table.shape[1]
    row_bytes = table.itemsize * columns
    rows = max(1, _BLOCK_BYTES // row_bytes)
    # Sums of differences to a typical row do not lose small variations of large values.
    typical = np.nan_to_num(np.asarray(table[0], np.float64), nan=0.0, posinf=0.0, neginf=0.0)

    def work(start: int, stop: int) -> tuple[int, Array]:
        block = table[start:stop]
        if block.dtype not in (np.float32, np.float64):
            block = block.astype(np.float64 if block.itemsize == 8 else np.float32)
        sums = np.empty((5, columns))
        bad = _scan(block, typical, sums)
        progress.advance(stop - start)
        return bad, sums

    total, not_finite, unreleased = _empty(columns), 0, 0
    for bad, sums in map_blocks(work, len(table), rows):
        not_finite += bad
        _merge(total, sums)
        unreleased += rows * row_bytes
        if mapped and unreleased > _RELEASE_BYTES:
            release_pages(values)
            unreleased = 0
    count, low, high, first, second = total
    varies = (count > 0) & (high > low)
    mean = first[varies] / count[varies]
    variance = second[varies] / count[varies] - mean**2
    constant = int(np.count_nonzero((count > 0) & (high == low)))
    return ColumnScan(not_finite, constant, np.sqrt(np.maximum(variance, 0)))


def _empty(columns: int) -> Array:
    """Per column: finite values, lowest, highest, sum and sum of squares of the differences."""
    total = np.zeros((5, columns))
    total[1], total[2] = np.inf, -np.inf
    return total


def _merge(total: Array, sums: Array) -> None:
    total[0] += sums[0]
    np.minimum(total[1], sums[1], out=total[1])
    np.maximum(total[2], sums[2], out=total[2])
    total[3:] += sums[3:]


@njit(nogil=True, cache=True)
def _scan(block: Array, typical: Array, sums: Array) -> int:
    sums[:] = 0.0
    sums[1] = np.inf
    sums[2] = -np.inf
    bad = 0
    for row in range(block.shape[0]):
        for column in range(block.shape[1]):
            value = float(block[row, column])
            if np.isfinite(value):
                difference = value - typical[column]
                sums[0, column] += 1
                sums[1, column] = min(sums[1, column], value)
                sums[2, column] = max(sums[2, column], value)
                sums[3, column] += difference
                sums[4, column] += difference * difference
            else:
                bad += 1
    return bad


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
        counts = _scan_lists(edges.indptr, edges.indices, start, stop, destination.first, same_type, touched)
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
def _scan_lists(
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
