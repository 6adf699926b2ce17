"""How large the bins of a layer would be, counted without making them: for the memory that they will take."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.blocks import map_blocks
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.sampling.relabel import PerThread
from penstock.train.layerwise.reach import Reach
from penstock.train.whole.in_place_plan import ListSizes, bin_rows, list_sizes
from penstock.train.whole.memory import Decision
from penstock.train.whole.plan import layer_bounds


@dataclass(frozen=True, eq=False)
class BinSize:
    """What one bin reads and computes."""

    rows: dict[str, slice]
    """The rows of the layer's level that it computes, by node type."""
    inputs: dict[str, int]
    """Different vertices that it reads, by node type."""
    edges: dict[EdgeType, int]
    filled: dict[EdgeType, int]
    """Rows that read something, by relation."""

    @property
    def load(self) -> int:
        """Numbers of rows and edges together."""
        computed: int = sum(some.stop - some.start for some in self.rows.values())
        return computed + sum(self.inputs.values()) + sum(self.edges.values())


def decided_sizes(
    reach: Reach, layers: int, order: dict[str, Array], counts: list[dict[str, int]], decision: Decision
) -> list[list[BinSize]]:
    """The bins of every layer of a step that is computed as decided."""
    if decision.in_place:
        return in_place_sizes(list_sizes(reach, order, counts), counts, decision.bins)
    return bin_sizes(reach, layers, order, counts, decision.bins[0])


def in_place_sizes(lists: ListSizes, counts: list[dict[str, int]], bins: Sequence[int]) -> list[list[BinSize]]:
    """The bins of every layer, of a step that reads levels where they stand."""

    def size(rows: slice) -> BinSize:
        edges = {lists.kind: int(lists.offsets[rows.stop] - lists.offsets[rows.start])}
        return BinSize({lists.name: rows}, {}, edges, edges)

    return [[size(rows) for rows in layer] for layer in bin_rows(lists, counts, bins)]


def bin_sizes(
    reach: Reach, layers: int, order: dict[str, Array], counts: list[dict[str, int]], bins: int
) -> list[list[BinSize]]:
    """The bins of every layer, if each is divided into so many."""
    marks: PerThread[_Marks] = PerThread(lambda: _Marks(reach))

    def sizes(number: int) -> list[BinSize]:
        kinds, bounds = reach.of_layer(number, layers), layer_bounds(reach, layers, number, order, counts, bins)

        def size(place: int, _: int) -> BinSize | None:
            rows = {name: slice(int(ends[place]), int(ends[place + 1])) for name, ends in bounds.items()}
            rows = {name: some for name, some in rows.items() if some.stop > some.start}
            return _size(reach, kinds, order, rows, marks.get()) if rows else None

        return [found for found in map_blocks(size, bins, 1) if found is not None]

    if bins > 1:
        return [sizes(number) for number in range(layers)]
    whole = [_whole_size(reach, reach.of_layer(number, layers), order, counts, number) for number in range(layers)]
    return [[each] if each.rows else [] for each in whole]


def _whole_size(
    reach: Reach, kinds: list[EdgeType], order: dict[str, Array], counts: list[dict[str, int]], number: int
) -> BinSize:
    """The only bin of a layer, which reads the level below as it stands: its edges are counted by their bounds."""
    rows = {name: slice(0, count) for name, count in counts[number + 1].items() if count}
    edges, filled = {}, {}
    for kind in kinds:
        if kind[2] in rows:
            indptr, mine = reach.graph.edges[kind].indptr, order[kind[2]][rows[kind[2]]]
            lengths = indptr[mine + 1] - indptr[mine]
            edges[kind], filled[kind] = int(lengths.sum()), int(np.count_nonzero(lengths))
    return BinSize(rows, {name: count for name, count in counts[number].items() if count}, edges, filled)


class _Marks:
    """Which vertices the bin that a thread counts has met: a number for each of them, another for every bin."""

    def __init__(self, reach: Reach) -> None:
        self.of = {name: np.full(nodes.count, -1, np.int32) for name, nodes in reach.graph.nodes.items()}
        self.bin = -1


def num_inputs(sizes: list[list[BinSize]]) -> int:
    """Rows that the bins of all layers read together."""
    return sum(count for layer in sizes for each in layer for count in each.inputs.values())


def _size(
    reach: Reach, kinds: list[EdgeType], order: dict[str, Array], rows: dict[str, slice], marks: _Marks
) -> BinSize:
    marks.bin += 1
    inputs = dict.fromkeys(marks.of, 0)
    for name, some in rows.items():
        own = order[name][some]
        marks.of[name][own] = marks.bin
        inputs[name] += len(own)
    edges, filled = {}, {}
    for kind in kinds:
        if kind[2] in rows:
            lists = reach.graph.edges[kind]
            mine = order[kind[2]][rows[kind[2]]]
            new, read, reading = _count(lists.indptr, lists.indices, mine, marks.of[kind[0]], marks.bin)
            inputs[kind[0]] += int(new)
            edges[kind], filled[kind] = int(read), int(reading)
    return BinSize(rows, {name: count for name, count in inputs.items() if count}, edges, filled)


@njit(nogil=True, cache=True)
def _count(indptr: Array, indices: Array, rows: Array, marks: Array, number: int) -> tuple[int, int, int]:
    """Vertices that are read here for the first time, edges, and rows that have any."""
    new, edges, filled = 0, 0, 0
    for row in rows:
        first, last = indptr[row], indptr[row + 1]
        edges += last - first
        filled += last > first
        for k in range(first, last):
            if marks[indices[k]] != number:
                marks[indices[k]] = number
                new += 1
    return new, edges, filled
