"""How much memory a step on the whole graph takes, and the choice of bins and of the rows' place that fit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.memory import available_mb
from penstock.nn.layer_table import LAYERS
from penstock.pipeline.batch_rows import EdgeRows
from penstock.processes import map_blocks
from penstock.sampling.lists import PerThread
from penstock.train.layerwise.host import Reach
from penstock.train.run_context import device_memory_of
from penstock.train.whole.levels import Where
from penstock.train.whole.plan import ListSizes, bin_rows, layer_bounds, list_sizes

_SHARE = 0.6
"""The share of free memory that a run plans with; other arrays and the allocator take the rest."""
_ROWS_OUT = 4
"""Arrays as large as a bin's outputs that a layer holds at once: before and after its end, and their gradients."""
_EDGE_BYTES = 20
"""Bytes that an edge of a block takes: its index, and the transposed lists of the backward pass."""
_INDEX_BYTES = 4
"""Bytes of the number of a neighbour in a block."""
_MOST_BINS = 4096
_NO_BINS = "It is not said into which bins steps are divided: use the checkpoint before this one, or plan again."


Place = Literal["device", "host", "disk", "recompute"]


class LayerSize(NamedTuple):
    """The sizes of one layer."""

    rows: int
    """The number of rows that the layer computes."""
    inputs: int
    """Rows of the level below."""
    edges: int
    width_in: int
    width_out: int
    carried: int = 0
    """Columns of the edge features."""
    messages: int = 0
    """Values that the layer computes for each edge."""


def edge_numbers(model: str, edges: EdgeRows, hidden: int) -> tuple[int, int]:
    """Columns of the edge features, and values that a layer computes for each edge."""
    carried = sum(fields.width for fields in edges.fields.values())
    return carried, hidden if carried or LAYERS[model].makes_edge_rows else 0


@dataclass(frozen=True)
class Decision:
    """How a step is computed within the available memory."""

    bins: list[int]
    """The number of bins of each layer."""
    keep: Where
    """Where the rows between two layers are kept for the backward pass."""
    recompute_levels: bool
    """Whether they are not kept but recomputed from the input."""
    retain: bool
    """Whether everything that the backward pass needs of every bin is kept, so that nothing is recomputed."""
    predicted_bytes: int
    """The predicted peak bytes where the model is computed."""
    searched: bool = False
    """Whether vertices are in breadth-first order, rather than in the order of their numbers."""
    in_place: bool = False
    """Whether bins read the level below in place, and gradients are pulled (`in_place`)."""


WHOLE_STEPS = "steps"
"""The name, in a plan's `execution`, of the decisions for each step of an epoch; among workers, by worker."""


def read_decisions(state: Any, layers: int) -> list[Decision]:
    """The decisions of a checkpoint or plan for each step of an epoch, as they were written; none without a state."""
    try:
        found = TypeAdapter(list[Decision]).validate_python([] if state is None else state)
    except ValidationError:
        raise PenstockError(_NO_BINS, code="damaged-file") from None
    if any(len(each.bins) != layers or min(each.bins) < 1 for each in found):
        raise PenstockError(_NO_BINS, code="damaged-file")
    return found


Predict = Callable[[Decision], int]
"""Predicts the bytes of a step that is computed as decided."""


def free_bytes(device: torch.device, share: float) -> int:
    """Bytes that a run may take of the free memory where its model is computed."""
    if device.type == "cuda":
        free, total = device_memory_of(device)
        return int(min(free, share * total))
    return int(_SHARE * (available_mb() << 20))


def decide(
    sizes: Sequence[LayerSize],
    bins: int,
    keep: Place | Literal["auto"],
    item: int,
    free: int,
    spare: int,
    on_device: bool,
    overlapping: bool = False,
    predict: "Predict | None" = None,
    in_place: bool = False,
) -> Decision:
    """Choose the bins and the rows' place. `predict` gives a step's bytes; without it, a rule does. `in_place`: bins
    may read levels in place.

    `bins`: 0 where they are to be chosen. `item`: bytes of a kept value. `spare`: free memory of the host.

    `overlapping`: the purpose of several bins is to overlap with messages. Otherwise it is to save memory, and what the
    backward pass needs of each is recomputed: kept for all bins, it is more than that of a single one.
    """
    numbers = [bins] if bins else [2**power for power in range(_MOST_BINS.bit_length())]
    places = _places(keep, on_device)
    kept = sum(size.rows * size.width_out for size in sizes[:-1]) * item
    tried: list[int] = []
    for place in places:
        where: Where = "host" if place == "recompute" else place
        here = place == "device" or (place == "host" and not on_device)
        least = _least_bytes(sizes, kept if here else 0)
        # A place that is too small for any number of bins is not tried: each try may read all edges.
        for number, retain, standing in _ways(numbers, here, overlapping, in_place) if bins or least <= free else ():
            chosen = Decision([number] * len(sizes), where, place == "recompute", retain, 0, in_place=standing)
            if predict is None:
                needed = step_bytes(sizes, number, place, item, retain, on_device)
            else:
                needed = predict(chosen)
            tried.append(needed)
            fits = needed <= free and (place != "host" or not on_device or kept <= spare)
            # A number of bins that the user sets is used, whatever is predicted.
            if fits or (bins and place == places[-1] and not retain and not standing):
                return replace(chosen, predicted_bytes=needed)
    needed = min(tried, default=least)
    raise PenstockError(
        f"A step on the whole graph needs {needed / 1e9:,.1f} GB at least, and {free / 1e9:,.1f} GB are free: lower"
        " hidden, set keep_type to bfloat16 or keep to disk, or use sampler neighbour.",
        code="out-of-memory",
    )


def _ways(numbers: Sequence[int], here: bool, overlapping: bool, in_place: bool) -> Iterator[tuple[int, bool, bool]]:
    """(bins, retain everything, read in place) in the order they are tried; `here`: where levels are kept."""
    several = [number for number in numbers if number > 1]
    if here and 1 in numbers:
        yield 1, True, False
    if here and in_place:
        yield from ((number, False, True) for number in several)
    if 1 in numbers:
        yield 1, False, False
    for number in several:
        yield from [(number, True, False)] if here and overlapping else []
        yield number, False, False


def _least_bytes(sizes: Sequence[LayerSize], kept: int) -> int:
    """The least bytes of a step, with any number of bins: the rows that are kept, and the neighbour lists."""
    return kept + _INDEX_BYTES * sum(size.edges for size in sizes)


def step_bytes(sizes: Sequence[LayerSize], bins: int, keep: str, item: int, retain: bool, on_device: bool) -> int:
    """The peak bytes where the model is computed, beyond the model and the graph."""
    here = keep == "device" or (keep == "host" and not on_device)
    levels = sum(size.rows * size.width_out for size in sizes[:-1]) * item if here else 0
    if keep == "recompute":
        levels = 2 * max(size.rows * size.width_out for size in sizes) * item
    gradients = max(
        4 * (size.rows * size.width_out + size.inputs * size.width_in * (number > 0))
        for number, size in enumerate(sizes)
    )
    blocks = sum((_EDGE_BYTES + 4 * size.carried) * size.edges for size in sizes)
    working = [_bin_bytes(size, bins, number) for number, size in enumerate(sizes)]
    return levels + gradients + blocks + (bins * sum(working) if retain else max(working))


def _bin_bytes(size: LayerSize, bins: int, number: int) -> int:
    """One bin's inputs with their gradients, and its outputs. A bin reads all rows of the level below unless it is
    small.
    """
    read = min(size.inputs, (size.rows + size.edges) // bins + 1)
    inputs = 0 if bins == 1 and number > 0 else 4 * read * size.width_in
    # The first layer's inputs have no gradients, and its aggregates are kept.
    gradients = 4 * read * size.width_in if number else 8 * (size.rows // bins + 1) * size.width_in
    # One message per edge, and its gradient.
    messages = 8 * (size.edges // bins + 1) * size.messages
    return inputs + gradients + messages + _ROWS_OUT * 4 * (size.rows // bins + 1) * size.width_out


def _places(keep: Place | Literal["auto"], on_device: bool) -> list[Place]:
    if keep == "auto":
        return ["device", "host", "disk"] if on_device else ["host", "disk"]
    return ["host" if keep == "device" and not on_device else keep]


# The sizes that the bins of a layer would have, counted without making them, to predict their memory.


@dataclass(frozen=True, eq=False)
class BinSize:
    """What one bin reads and computes."""

    rows: dict[str, slice]
    """The rows of the layer's level that it computes, by node type."""
    inputs: dict[str, int]
    """The number of distinct vertices that it reads, by node type."""
    edges: dict[EdgeType, int]
    filled: dict[EdgeType, int]
    """The number of rows with at least one neighbour, by relation."""
    first_entry: int = 0
    """Where its lists begin among those of all rows, for bins that read levels in place."""

    @property
    def load(self) -> int:
        """The number of rows and edges."""
        computed: int = sum(some.stop - some.start for some in self.rows.values())
        return computed + sum(self.inputs.values()) + sum(self.edges.values())


def decided_sizes(
    reach: Reach, layers: int, order: dict[str, Array], counts: list[dict[str, int]], decision: Decision
) -> list[list[BinSize]]:
    """The sizes of the bins of every layer of a step that is computed as decided."""
    if decision.in_place:
        return in_place_sizes(list_sizes(reach, order, counts), counts, decision.bins)
    return bin_sizes(reach, layers, order, counts, decision.bins[0])


def in_place_sizes(lists: ListSizes, counts: list[dict[str, int]], bins: Sequence[int]) -> list[list[BinSize]]:
    """The sizes of the bins of every layer, for a step that reads levels in place."""

    def size(rows: slice) -> BinSize:
        first = int(lists.offsets[rows.start])
        edges = {lists.kind: int(lists.offsets[rows.stop]) - first}
        return BinSize({lists.name: rows}, {}, edges, edges, first)

    return [[size(rows) for rows in layer] for layer in bin_rows(lists, counts, bins)]


def bin_sizes(
    reach: Reach, layers: int, order: dict[str, Array], counts: list[dict[str, int]], bins: int
) -> list[list[BinSize]]:
    """The sizes of the bins of every layer, if each is divided into so many."""
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
    """The size of a layer's only bin, which reads the whole level below: its edges are counted by list bounds."""
    rows = {name: slice(0, count) for name, count in counts[number + 1].items() if count}
    edges, filled = {}, {}
    for kind in kinds:
        if kind[2] in rows:
            indptr, mine = reach.graph.edges[kind].indptr, order[kind[2]][rows[kind[2]]]
            lengths = indptr[mine + 1] - indptr[mine]
            edges[kind], filled[kind] = int(lengths.sum()), int(np.count_nonzero(lengths))
    return BinSize(rows, {name: count for name, count in counts[number].items() if count}, edges, filled)


class _Marks:
    """For each vertex, the number of the last bin, of those that a thread counts, that has met it."""

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
    """The number of vertices met for the first time, of edges, and of rows that have any."""
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
