"""How large the bins of a layer would be, counted without making them: for the memory that they will take."""

from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.train.layerwise.reach import Reach
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


def bin_sizes(
    reach: Reach, layers: int, order: dict[str, Array], counts: list[dict[str, int]], bins: int
) -> list[list[BinSize]]:
    """The bins of every layer, if each is divided into so many."""
    stamps = {name: np.full(nodes.count, -1, np.int32) for name, nodes in reach.graph.nodes.items()}
    made, stamp = [], 0
    for number in range(layers):
        kinds, bounds = reach.of_layer(number, layers), layer_bounds(reach, layers, number, order, counts, bins)
        found = []
        for place in range(bins):
            rows = {name: slice(int(ends[place]), int(ends[place + 1])) for name, ends in bounds.items()}
            rows = {name: some for name, some in rows.items() if some.stop > some.start}
            if rows:
                found.append(_size(reach, kinds, order, rows, stamps, stamp))
                stamp += 1
        if bins == 1:
            # The only bin of a layer reads the level below as it stands.
            found = [BinSize(each.rows, counts[number], each.edges, each.filled) for each in found]
        made.append(found)
    return made


def _size(
    reach: Reach,
    kinds: list[EdgeType],
    order: dict[str, Array],
    rows: dict[str, slice],
    stamps: dict[str, Array],
    stamp: int,
) -> BinSize:
    inputs = dict.fromkeys(stamps, 0)
    for name, some in rows.items():
        own = order[name][some]
        stamps[name][own] = stamp
        inputs[name] += len(own)
    edges, filled = {}, {}
    for kind in kinds:
        if kind[2] in rows:
            lists = reach.graph.edges[kind]
            mine = order[kind[2]][rows[kind[2]]]
            new, read, reading = _count(lists.indptr, lists.indices, mine, stamps[kind[0]], stamp)
            inputs[kind[0]] += int(new)
            edges[kind], filled[kind] = int(read), int(reading)
    return BinSize(rows, {name: count for name, count in inputs.items() if count}, edges, filled)


@njit(nogil=True, cache=True)
def _count(indptr: Array, indices: Array, rows: Array, stamps: Array, stamp: int) -> tuple[int, int, int]:
    """Vertices that are read here for the first time, edges, and rows that have any."""
    new, edges, filled = 0, 0, 0
    for row in rows:
        first, last = indptr[row], indptr[row + 1]
        edges += last - first
        filled += last > first
        for k in range(first, last):
            if stamps[indices[k]] != stamp:
                stamps[indices[k]] = stamp
                new += 1
    return new, edges, filled
