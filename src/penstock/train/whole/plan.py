"""Which vertices each level has, in which order, and the bins or ranges of every layer; made before training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.nn.aggregation import Aggregation
from penstock.nn.kernels import cut_evenly
from penstock.processes import default_threads, map_blocks, run_blocks
from penstock.sampling.block import Block, MiniBatch
from penstock.train.layerwise.host import Reach, frontiers
from penstock.train.session import Session
from penstock.train.whole.levels import aggregated_in_place

# Neighbour lists by position in an order of vertices, and the transposed lists. Every level of a step is a prefix of
# one order, so one array of lists serves all layers. It is made by reading the graph's lists once, on all cores. On a
# device it is filled piece by piece: the host holds the lists of the rows to be transposed, and one piece of the
# others.

_PIECE = 1 << 26
"""Entries that are copied to a device at once: 256 MiB."""
_WORK = 1 << 20
"""The approximate number of entries that a thread renumbers at a time."""


class PlacedLists(NamedTuple):
    """Row i has the entries `indices[indptr[i]:indptr[i + 1]]`, which are positions in an order of vertices."""

    indptr: Array
    """Offsets of the lists, int64, on the host."""
    indices: Tensor
    """int32, where the model is computed."""


def list_offsets(edges: EdgeSet, vertices: Array) -> Array:
    """The offsets (int64) of some vertices' lists when these are concatenated."""
    found = np.zeros(len(vertices) + 1, np.int64)
    run_blocks(lambda a, b: _lengths(edges.indptr, vertices, found, a, b), len(vertices), _WORK)
    return np.cumsum(found, out=found)


def placed_lists(
    edges: EdgeSet, order: Array, offsets: Array, turned: int, device: torch.device
) -> tuple[PlacedLists, Array]:
    """The lists of an order's first vertices (`list_offsets`), and on the host those of the first `turned`."""
    entries = int(offsets[-1])
    places = np.empty(int(order.max(initial=-1)) + 1, np.int32)
    run_blocks(lambda a, b: _number(order, places, a, b), len(order), _WORK)

    def write(first: int, last: int, out: Array) -> None:
        """Renumber the lists of rows [first, last)."""
        lists, shift = offsets[first : last + 1], int(offsets[first])
        bounds = cut_evenly(lists - shift, max(1, len(out) // _WORK))

        def work(piece: int, _: int) -> None:
            rows = bounds[piece], bounds[piece + 1]
            _renumber(edges.indptr, edges.indices, order[first:last], places, lists, shift, out, *rows)

        run_blocks(work, len(bounds) - 1, 1)

    indices = torch.empty(entries, dtype=torch.int32, device=device)
    kept = np.empty(0, np.int32)
    for first, last in [(0, turned), *_pieces(offsets, turned)]:
        into = indices[int(offsets[first]) : int(offsets[last])]
        piece = into.numpy() if device.type == "cpu" else np.empty(len(into), np.int32)
        write(first, last, piece)
        if device.type != "cpu":
            into.copy_(torch.from_numpy(piece))
        kept = piece if first == 0 else kept
    return PlacedLists(offsets, indices), kept


def turned_round(indptr: Array, indices: Array, sources: int, device: torch.device) -> PlacedLists:
    """The transposed lists: for each of the first `sources` positions, the rows that read it, ascending.

    A counting sort. Every thread reads all entries twice, in order, and counts and writes those of its own positions,
    so that nothing is written by two threads and the result does not depend on how many there are.
    """
    parts = default_threads()
    bounds = np.linspace(0, sources, parts + 1).astype(np.int64)
    found = np.zeros(sources + 1, np.int64)

    def count(part: int, _: int) -> None:
        _count_entries(indices, bounds[part], bounds[part + 1], found[1:])

    run_blocks(count, parts, 1)
    np.cumsum(found, out=found)
    readers = np.empty(len(indices), np.int32)

    def write(part: int, _: int) -> None:
        low, high = bounds[part : part + 2]
        _write_readers(indptr, indices, low, high, found[low:high].copy(), readers)

    run_blocks(write, parts, 1)
    return PlacedLists(found, torch.from_numpy(readers).to(device))


def _pieces(offsets: Array, first: int) -> list[tuple[int, int]]:
    """Ranges of rows from `first` on, with about as many entries as are copied to a device at once."""
    entries = int(offsets[-1] - offsets[first])
    bounds = first + cut_evenly(offsets[first:] - offsets[first], max(1, -(-entries // _PIECE)))
    return [(int(a), int(b)) for a, b in pairwise(bounds) if b > a]


@njit(nogil=True, cache=True)
def _lengths(indptr: Array, vertices: Array, out: Array, first: int, last: int) -> None:
    for row in range(first, last):
        out[row + 1] = indptr[vertices[row] + 1] - indptr[vertices[row]]


@njit(nogil=True, cache=True)
def _number(order: Array, places: Array, first: int, last: int) -> None:
    for place in range(first, last):
        places[order[place]] = place


@njit(nogil=True, cache=True)
def _renumber(
    indptr: Array,
    indices: Array,
    vertices: Array,
    places: Array,
    starts: Array,
    shift: int,
    out: Array,
    first: int,
    last: int,
) -> None:
    for row in range(first, last):
        to = starts[row] - shift
        for k in range(indptr[vertices[row]], indptr[vertices[row] + 1]):
            out[to] = places[indices[k]]
            to += 1


@njit(nogil=True, cache=True)
def _count_entries(indices: Array, low: int, high: int, out: Array) -> None:
    for k in range(indices.shape[0]):
        if low <= indices[k] < high:
            out[indices[k]] += 1


@njit(nogil=True, cache=True)
def _write_readers(indptr: Array, indices: Array, low: int, high: int, starts: Array, out: Array) -> None:
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            if low <= indices[k] < high:
                at = indices[k] - low
                out[starts[at]] = row
                starts[at] += 1


# Which vertices each level has, in which order, and every layer divided into bins; made once, before training. Level 0
# holds the inputs and level l + 1 the outputs of layer l. The vertices of each node type are in one order, of which
# every level is a prefix: first those of the last level, then those that only earlier levels have.

Rows = dict[str, Array]
Sample = Callable[[Rows], MiniBatch]


@dataclass(eq=False)
class Bin:
    """Some rows of one layer, and what they read of the level below."""

    rows: dict[str, slice]
    """The rows of the layer's level that it computes, by node type."""
    block: Any
    """A block whose source rows are `inputs`, in that order."""
    inputs: dict[str, Array | None]
    """Rows of the level below, by node type; None: all of them, in order."""
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
    """The vertices of all levels in their common order, by node type."""
    counts: list[dict[str, int]]
    """For each level, how many of them it has."""
    bins: list[list[Bin]]
    """The bins of every layer."""

    @property
    def layers(self) -> int:
        """The number of the model's layers."""
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
    """Vertices in an order of which every level is a prefix, given nested levels, the smallest first; ascending within
    what each adds.
    """
    known = np.zeros(count, np.bool_)
    found = []
    for rows in levels:
        found.append(rows[~known[rows]])
        known[rows] = True
    return np.concatenate(found)


def make_plan(reach: Reach, layers: int, order: Rows, counts: list[dict[str, int]], bins: Sequence[int]) -> WholePlan:
    """The plan in which every layer is divided into its number of bins, with about equally many edges and rows each."""
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

        def work(place: int, _: int, sample: Sample = sample, bounds: Rows = bounds) -> Bin:
            rows = {name: slice(int(ends[place]), int(ends[place + 1])) for name, ends in bounds.items()}
            return _make_bin(sample, order, rows, places)

        made.append(list(map_blocks(work, bins[number], 1)))
        if bins[number] == 1:
            made[-1] = [_in_place(made[-1][0], order, counts[number])]
    return WholePlan(order, counts, [[each for each in layer if each.num_rows] for layer in made])


def _has_plain_lists(reach: Reach) -> bool:
    """Whether blocks are plain neighbour lists of one type, without weights, edge numbers or ages."""
    return reach.graph.is_homogeneous and reach.weight is None and reach.clock is None and not reach.edges


def _undivided(reach: Reach, order: Rows, counts: list[dict[str, int]]) -> WholePlan:
    """One bin for each layer. Bins are prefixes of the same lists, which are read once, on all cores."""
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
    """The bounds of a layer's bins among its rows, by node type."""
    kinds = reach.of_layer(number, layers)
    return {
        name: bin_bounds(_loads(reach.graph, kinds, name, vertices[: counts[number + 1][name]]), bins)
        for name, vertices in order.items()
    }


def bin_bounds(loads: Array, bins: int) -> Array:
    """The bounds of bins with about equal loads."""
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


def _make_bin(sample: Sample, order: Rows, rows: dict[str, slice], places: Rows) -> Bin:
    rows = {name: some for name, some in rows.items() if some.stop > some.start}
    if not rows:
        return Bin({}, None, {}, {})
    batch = sample({name: order[name][some] for name, some in rows.items()})
    read = {name: ids for name, ids in batch.vertices.items() if len(ids)}
    return Bin(rows, batch.blocks[0], {name: places[name][ids] for name, ids in read.items()}, read)


def _in_place(whole: Bin, order: Rows, counts: dict[str, int]) -> Bin:
    """A layer's only bin, which reads the level below in place: its rows are a prefix there, too."""
    places, known = whole.inputs, {name: count for name, count in counts.items() if count}
    named = whole.block.named((name, "", name) for name in places)
    relations = {
        kind: _renumbered(part, places[kind[0]], counts[kind[0]], places.get(kind[2]), counts[kind[2]])
        for kind, part in named.relations.items()
    }
    block = Block.of_relations(relations, named.src_counts | known, named.dst_counts)
    names = {name: order[name][:count] for name, count in known.items()}
    return Bin(whole.rows, block if named is whole.block else block.parts[0], dict.fromkeys(names), names)


def _renumbered(block: Block, places: Any, sources: int, totals_at: Any, targets: int) -> Block:
    """A block that reads rows of the level in place; `totals_at` are the positions of the rows of `totals`."""
    totals = block.totals
    if totals is not None:
        moved = np.zeros(max(targets, len(totals)), totals.dtype)
        moved[totals_at[: len(totals)]] = totals
        totals = moved
    return Block(
        block.indptr, places[block.indices].astype(block.indices.dtype), sources, block.weights, totals, block.edges
    )


# The jobs whose bins read levels in place, and their plan: ranges of rows of one array of lists.

_WIDEST = 2
"""Where inputs are at least this many times as wide as a layer's outputs, it is better to transform them first."""


def reads_in_place(session: Session) -> Aggregation | None:
    """What the layers of a job aggregate of rows in place; None: its bins need copies of rows."""
    job, inputs = session.job, session.inputs
    changed = bool(inputs.tables) or inputs.scale is not None or job.input_dropout > 0
    joined = job.jump != "none" or job.norm == "batch"
    if session.task.messages is None or changed or joined or max(inputs.widths.values()) > _WIDEST * job.hidden:
        return None
    return aggregated_in_place(session)


@dataclass(eq=False)
class InPlacePlan(WholePlan):
    """A plan whose bins are ranges of rows of one array of lists."""

    lists: PlacedLists
    """The lists of the vertices of level 1, of which every later level is a prefix."""
    readers: list[PlacedLists]
    """For each layer from the second on: the rows of its level that read each row of the level below."""


class ListSizes(NamedTuple):
    """The lengths of the lists that a step reads, by the order of its vertices."""

    name: str
    kind: EdgeType
    edges: EdgeSet
    offsets: Array
    """The offsets of the lists of level 1."""


def list_sizes(reach: Reach, order: dict[str, Array], counts: list[dict[str, int]]) -> ListSizes:
    """The list sizes of a step on a graph with one type of vertices."""
    ((name, vertices),), ((kind, edges),) = order.items(), reach.graph.edges.items()
    return ListSizes(name, kind, edges, list_offsets(edges, vertices[: counts[1][name]]))


def bin_rows(sizes: ListSizes, counts: list[dict[str, int]], bins: Sequence[int]) -> list[list[slice]]:
    """The rows of every layer's bins, with about equally many edges and rows each."""
    found = []
    for level, number in zip(counts[1:], bins, strict=True):
        bounds = cut_evenly(sizes.offsets[: level[sizes.name] + 1], number)
        found.append([slice(int(a), int(b)) for a, b in pairwise(bounds) if b > a])
    return found


def make_in_place_plan(
    reach: Reach, order: dict[str, Array], counts: list[dict[str, int]], bins: Sequence[int], device: torch.device
) -> InPlacePlan:
    """The plan with lists where the model is computed, and their bins."""
    sizes = list_sizes(reach, order, counts)
    rows = [level[sizes.name] for level in counts]
    lists, kept = placed_lists(sizes.edges, order[sizes.name], sizes.offsets, rows[2] if len(rows) > 2 else 0, device)
    readers = [
        turned_round(sizes.offsets[: above + 1], kept[: sizes.offsets[above]], below, device)
        for below, above in pairwise(rows[1:])
    ]
    made = [[Bin({sizes.name: each}, None, {}, {}) for each in layer] for layer in bin_rows(sizes, counts, bins)]
    return InPlacePlan(order, counts, made, lists, readers)
