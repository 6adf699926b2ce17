"""Which vertices each level has, in which order, and every layer divided into bins; made once, before training.

Level 0 holds the inputs and level l + 1 what layer l gives. Of each node type the vertices stand in one order, in which
every level is a prefix: first those of the last level, then those that only earlier levels have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.graph.blocks import map_blocks
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType
from penstock.sampling.block import Block, MiniBatch, TypedBlock
from penstock.train.layerwise.reach import Reach, frontiers
from penstock.train.whole.neighbour_lists import list_offsets, placed_lists

Rows = dict[str, Array]


@dataclass(eq=False)
class Bin:
    """Some rows of one layer, and what they read of the level below."""

    rows: dict[str, slice]
    """The rows of the layer's level that it computes, by node type."""
    block: Any
    """A block whose source rows are `inputs`, in that order."""
    inputs: dict[str, Array | None]
    """Rows of the level below, by node type; None: all of them, as they stand."""
    names: Rows
    """Original numbers of the vertices in `inputs`."""

    @property
    def num_inputs(self) -> int:
        """The number of rows that it reads."""
        return sum(map(len, self.names.values()))

    @property
    def num_rows(self) -> int:
        """The number of rows that it computes."""
        return sum(rows.stop - rows.start for rows in self.rows.values())


@dataclass(eq=False)
class WholePlan:
    """All levels and bins of one step."""

    order: Rows
    """The vertices of every level, by node type."""
    counts: list[dict[str, int]]
    """How many of them each level has."""
    bins: list[list[Bin]]
    """For every layer."""

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.bins)


def vertices_by_level(reach: Reach, layers: int, wanted: Rows, all_vertices: bool) -> tuple[Rows, list[dict[str, int]]]:
    """The order of the vertices, and how many of them each level has. `wanted` are ascending numbers by type."""
    graph = reach.graph
    if all_vertices:
        every = {name: np.arange(nodes.count) for name, nodes in graph.nodes.items()}
        last = {name: len(rows) if name in wanted else 0 for name, rows in every.items()}
        return every, [{name: nodes.count for name, nodes in graph.nodes.items()}] * layers + [last]
    needed = frontiers(graph, wanted, [reach.of_layer(number, layers) for number in reversed(range(layers))])
    order = {
        name: _prefixes(nodes.count, [level[name] for level in reversed(needed)]) for name, nodes in graph.nodes.items()
    }
    return order, [{name: len(rows) for name, rows in level.items()} for level in needed]


def _prefixes(count: int, levels: Sequence[Array]) -> Array:
    """Numbers of levels that contain each other, the smallest first, so that each is a prefix; ascending where new."""
    known = np.zeros(count, np.bool_)
    found = []
    for rows in levels:
        found.append(rows[~known[rows]])
        known[rows] = True
    return np.concatenate(found)


def make_plan(reach: Reach, layers: int, order: Rows, counts: list[dict[str, int]], bins: Sequence[int]) -> WholePlan:
    """Every layer divided into its number of bins, of about the same number of edges and rows each."""
    if max(bins) == 1 and _has_plain_lists(reach) and all(sum(level.values()) for level in counts):
        return _undivided(reach, order, counts)
    places = {name: np.full(nodes.count, -1, np.int64) for name, nodes in reach.graph.nodes.items()}
    for name, vertices in order.items():
        places[name][vertices] = np.arange(len(vertices))
    made = []
    for number in range(layers):
        kinds = reach.of_layer(number, layers)
        sample = reach.batches([kinds])
        bounds = layer_bounds(reach, layers, number, order, counts, bins[number])
        made.append(_make_bins(sample, order, bounds, bins[number], places))
        if bins[number] == 1:
            made[-1] = [_in_place(made[-1][0], order, counts[number])]
    return WholePlan(order, counts, [[each for each in layer if each.num_rows] for layer in made])


def _has_plain_lists(reach: Reach) -> bool:
    """Whether blocks are lists of neighbours and nothing else, of one type."""
    return reach.graph.is_homogeneous and reach.weight is None and reach.clock is None and not reach.edges


def _undivided(reach: Reach, order: Rows, counts: list[dict[str, int]]) -> WholePlan:
    """One bin for each layer. They are prefixes of the same lists, which are read once, on all cores."""
    ((name, vertices),), (edges,) = order.items(), reach.graph.edges.values()
    rows = [level[name] for level in counts]
    lists = placed_lists(edges, vertices, list_offsets(edges, vertices[: rows[1]]), 0, torch.device("cpu"))[0]
    totals = np.diff(list_offsets(edges, vertices)).astype(np.float32)
    bins = []
    for below, above in pairwise(rows):
        indptr = lists.indptr[: above + 1]
        block = Block(indptr, lists.indices.numpy()[: indptr[-1]], below, None, totals[:below])
        bins.append([Bin({name: slice(0, above)}, block, {name: None}, {name: vertices[:below]})])
    return WholePlan(order, counts, bins)


def layer_bounds(
    reach: Reach, layers: int, number: int, order: Rows, counts: list[dict[str, int]], bins: int
) -> dict[str, Array]:
    """Where the bins of a layer start and end among its rows, by node type."""
    kinds = reach.of_layer(number, layers)
    return {
        name: bin_bounds(_loads(reach.graph, kinds, name, vertices[: counts[number + 1][name]]), bins)
        for name, vertices in order.items()
    }


def bin_bounds(loads: Array, bins: int) -> Array:
    """Where bins of about the same load start and end."""
    ends = np.cumsum(loads)
    total = int(ends[-1]) if len(ends) else 0
    inner = np.searchsorted(ends, total * np.arange(1, bins) / bins, "left") + (len(ends) > 0)
    return np.concatenate([[0], np.minimum(inner, len(loads)), [len(loads)]]).astype(np.int64)


def _loads(graph: Graph, kinds: Sequence[EdgeType], name: str, rows: Array) -> Array:
    loads = np.ones(len(rows), np.int64)
    for kind in kinds:
        if kind[2] == name:
            indptr = graph.edges[kind].indptr
            loads += indptr[rows + 1] - indptr[rows]
    return loads


def _make_bins(
    sample: Callable[[Rows], MiniBatch[Any]], order: Rows, bounds: dict[str, Array], bins: int, places: Rows
) -> list[Bin]:
    """The bins of a layer, several at a time."""

    def work(number: int, _: int) -> Bin:
        rows = {name: slice(int(ends[number]), int(ends[number + 1])) for name, ends in bounds.items()}
        return _make_bin(sample, order, rows, places)

    return list(map_blocks(work, bins, 1))


def _make_bin(sample: Callable[[Rows], MiniBatch[Any]], order: Rows, rows: dict[str, slice], places: Rows) -> Bin:
    rows = {name: some for name, some in rows.items() if some.stop > some.start}
    if not rows:
        return Bin({}, None, {}, {})
    batch = sample({name: order[name][some] for name, some in rows.items()})
    read = {name: ids for name, ids in batch.vertices.items() if len(ids)}
    return Bin(rows, batch.blocks[0], {name: places[name][ids] for name, ids in read.items()}, read)


def _in_place(whole: Bin, order: Rows, counts: dict[str, int]) -> Bin:
    """The only bin of a layer, reading the level below as it stands: its rows are a prefix there, too."""
    places = whole.inputs
    if isinstance(whole.block, TypedBlock):
        relations = {
            kind: _renumbered(part, places[kind[0]], counts[kind[0]], places.get(kind[2]), counts[kind[2]])
            for kind, part in whole.block.relations.items()
        }
        block: Any = TypedBlock(relations, {**whole.block.num_src, **_known(counts)}, whole.block.num_dst)
    else:
        ((name, found),) = places.items()
        block = _renumbered(whole.block, found, counts[name], found, counts[name])
    names = {name: order[name][:count] for name, count in counts.items() if count}
    return Bin(whole.rows, block, dict.fromkeys(names), names)


def _known(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _renumbered(block: Block, places: Any, sources: int, totals_at: Any, targets: int) -> Block:
    """A block that reads rows of the level where they stand; `totals_at` are the places of the rows of `totals`."""
    totals = block.totals
    if totals is not None:
        moved = np.zeros(max(targets, len(totals)), totals.dtype)
        moved[totals_at[: len(totals)]] = totals
        totals = moved
    return Block(
        block.indptr, places[block.indices].astype(block.indices.dtype), sources, block.weights, totals, block.edges
    )
