"""How much memory a step on the whole graph takes, and the bins and places for rows that fit what there is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from penstock.errors import PenstockError
from penstock.memory import available_mb
from penstock.nn.layer_table import layer_entry
from penstock.pipeline.edge_rows import EdgeRows
from penstock.train.device_memory import device_memory_of
from penstock.train.whole.levels import Where

_SHARE = 0.6
"""Of the free memory, what a run plans with: other arrays and the allocator take some, too."""
_ROWS_OUT = 4
"""Arrays as large as a bin's outputs that a layer holds at once: before and after its end, and their gradients."""
_EDGE_BYTES = 20
"""Bytes that an edge of a block takes: its index, and the transposed lists of the backward pass."""
_INDEX_BYTES = 4
"""Bytes of the number of a neighbour in a block."""
_MOST_BINS = 4096


Place = Literal["device", "host", "disk", "recompute"]


class LayerSize(NamedTuple):
    """What one layer computes."""

    rows: int
    """Rows that it gives."""
    inputs: int
    """Rows of the level below."""
    edges: int
    width_in: int
    width_out: int
    carried: int = 0
    """Numbers that an edge carries."""
    messages: int = 0
    """Numbers that the layer makes for an edge."""


def edge_numbers(model: str, edges: EdgeRows, hidden: int) -> tuple[int, int]:
    """Numbers that an edge carries, and numbers that a layer makes for it."""
    carried = sum(fields.width for fields in edges.fields.values())
    return carried, hidden if carried or layer_entry(model).makes_edge_rows else 0


@dataclass(frozen=True)
class Decision:
    """How a step is computed within the memory there is."""

    bins: list[int]
    """For each layer."""
    keep: Where
    """Where the rows between two layers wait for the backward pass."""
    recompute_levels: bool
    """Whether they do not wait, and are computed again from the input."""
    retain: bool
    """Whether all that the backward pass needs of every bin is kept, so that nothing is computed again."""
    predicted_bytes: int
    """The most that is predicted to be allocated where the model is computed."""
    searched: bool = False
    """Whether vertices stand in the order of a search, and not in that of their numbers."""
    in_place: bool = False
    """Whether bins read the level below where it stands, and gradients are pulled (`in_place`)."""


Predict = Callable[[Decision], int]
"""Bytes that a step takes which is computed in this way."""


def free_bytes(device: torch.device, share: float) -> int:
    """What a run may take of the memory that is free where its model is computed."""
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
    """`predict` says what a step takes; without it, a rule does. `in_place`: bins may read levels where they stand.

    `bins`: 0 where they are to be chosen. `item`: bytes of a kept number. `spare`: free memory of the host.

    `overlapping`: several bins are there to overlap with messages. Otherwise they are there to save memory, and what
    the backward pass needs of each is computed again: kept for all bins, it is more than that of a single one.
    """
    numbers = [bins] if bins else [2**power for power in range(_MOST_BINS.bit_length())]
    places = _places(keep, on_device)
    kept = sum(size.rows * size.width_out for size in sizes[:-1]) * item
    tried: list[int] = []
    for place in places:
        where: Where = "host" if place == "recompute" else place
        here = place == "device" or (place == "host" and not on_device)
        least = _least_bytes(sizes, kept if here else 0)
        # A place that no number of bins makes large enough is not tried: each try may read all edges.
        for number, retain, standing in _ways(numbers, here, overlapping, in_place) if bins or least <= free else ():
            chosen = Decision([number] * len(sizes), where, place == "recompute", retain, 0, in_place=standing)
            if predict is None:
                needed = step_bytes(sizes, number, place, item, retain, on_device)
            else:
                needed = predict(chosen)
            tried.append(needed)
            fits = needed <= free and (place != "host" or not on_device or kept <= spare)
            # Who asks for a number of bins gets it, whatever is predicted.
            if fits or (bins and place == places[-1] and not retain and not standing):
                return replace(chosen, predicted_bytes=needed)
    needed = min(tried, default=least)
    raise PenstockError(
        f"A step on the whole graph needs {needed / 1e9:,.1f} GB at least, and {free / 1e9:,.1f} GB are free: lower"
        " hidden, set keep_type to bfloat16 or keep to disk, or use sampler neighbour.",
        code="out-of-memory",
    )


def _ways(numbers: Sequence[int], here: bool, overlapping: bool, in_place: bool) -> Iterator[tuple[int, bool, bool]]:
    """Numbers of bins, whether all is retained, and whether levels are read in place; what is tried first comes first.

    `here`: levels are kept where the model is computed.
    """
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
    """What a step takes at least, in however many bins: the rows that are kept, and the lists of neighbours."""
    return kept + _INDEX_BYTES * sum(size.edges for size in sizes)


def step_bytes(sizes: Sequence[LayerSize], bins: int, keep: str, item: int, retain: bool, on_device: bool) -> int:
    """The most bytes allocated at once where the model is computed, beyond the model and the graph."""
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
    """One bin's inputs with their gradients, and its outputs. Inputs of a bin are all rows until bins are small."""
    read = min(size.inputs, (size.rows + size.edges) // bins + 1)
    inputs = 0 if bins == 1 and number > 0 else 4 * read * size.width_in
    # The first layer's inputs have no gradients, and what it aggregates of them is kept.
    gradients = 4 * read * size.width_in if number else 8 * (size.rows // bins + 1) * size.width_in
    # A message for each edge, and its gradient.
    messages = 8 * (size.edges // bins + 1) * size.messages
    return inputs + gradients + messages + _ROWS_OUT * 4 * (size.rows // bins + 1) * size.width_out


def _places(keep: Place | Literal["auto"], on_device: bool) -> list[Place]:
    if keep == "auto":
        return ["device", "host", "disk"] if on_device else ["host", "disk"]
    return ["host" if keep == "device" and not on_device else keep]
