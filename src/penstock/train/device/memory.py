"""What training takes of a device's memory beside the graph, said before anything is allocated."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from penstock.nn.options import ModelOptions
from penstock.sampling.device.room import Room

_LIBRARIES = 2 * (32 << 20)
"""What matrix libraries keep for themselves, a stream: the one that captures and the one that warmed up."""
_ITEM_BYTES = 60
"""An item of an epoch: its name, number and label, before and after the shuffle, and the sort's own memory."""


@dataclass(frozen=True)
class Working:
    """Bytes of everything but topology and features. `row_type` is how features reach the model."""

    bytes: int
    row_type: torch.dtype
    parts: dict[str, int]


def captured_working(
    options: ModelOptions,
    widths: Sequence[int],
    room: Room,
    vertices: int,
    items: int,
    label_bytes: int,
    parameters: int,
    row_type: torch.dtype,
    reads_in_place: bool,
    compute_bytes: int = 4,
) -> Working:
    """Of captured steps: two slots, weights with gradients and moments, and one step's activations.

    `widths` are the model's, input first.
    """
    parts = {
        "numbering": 4 * vertices,
        "slots": 2 * _slot_bytes(room, options.needs_totals),
        "epoch": items * (_ITEM_BYTES + 2 * label_bytes),
        "weights": 4 * 4 * parameters,
        "activations": activation_bytes(options, widths, room, compute_bytes),
        "libraries": _LIBRARIES,
    }
    if not reads_in_place:
        parts["inputs"] = 2 * room.rows[-1] * widths[0] * row_type.itemsize
    return Working(sum(parts.values()), row_type, parts)


def loaded_working(vertices: int, batch_bytes: int, parameters: int, row_type: torch.dtype) -> Working:
    """Of steps on batches that a pipeline brings: a few batches on their way, weights, and a sampler's numbering."""
    parts = {
        "numbering": 4 * vertices,
        "batches": batch_bytes,
        "weights": 4 * 4 * parameters,
        "libraries": _LIBRARIES,
    }
    return Working(sum(parts.values()), row_type, parts)


def activation_bytes(options: ModelOptions, widths: Sequence[int], room: Room, item: int = 4) -> int:
    """The most that a step holds at once: what the forward pass keeps, and the gradients of the widest layer."""
    rows = list(room.rows[::-1])
    kept, peak = 0, 0
    for layer, (width_in, width_out) in enumerate(pairwise(widths)):
        num_src, num_dst = rows[layer], rows[layer + 1]
        kept += item * num_dst * (2 * width_in + width_out)
        backward = item * num_dst * (2 * width_out + (2 * width_in if layer else 0)) + (
            item * num_src * width_in if layer else 0
        )
        peak = max(peak, kept + backward) if layer else backward
        if layer == 0:
            first = backward
    return max(peak, kept + first)


def _slot_bytes(room: Room, totals: bool) -> int:
    rows, edges = sum(room.rows[:-1]), sum(room.edges)
    scratch = 4 * (max(room.edges[0::2]) + max(room.edges[1::2], default=0))
    # Lists read from their sources, for all layers but the first: sorted keys, places, and the sort's own memory.
    sources = sum(
        4 * source_rows + 28 * size for source_rows, size in zip(room.rows[1:-1], room.edges[:-1], strict=False)
    )
    return 4 * room.rows[-1] * (2 if totals else 1) + 4 * rows + 4 * edges + 8 * len(room.edges) + scratch + sources
