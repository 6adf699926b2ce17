"""Which jobs' bins read levels where they stand, and their plan: ranges of rows of one array of lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType
from penstock.nn.first_rows import Aggregation
from penstock.nn.kernels import cut_evenly
from penstock.nn.layer_table import layer_entry
from penstock.train.layerwise.reach import Reach
from penstock.train.session import Session
from penstock.train.whole.neighbour_lists import PlacedLists, list_offsets, placed_lists, turned_round
from penstock.train.whole.plan import Bin, WholePlan

_WIDEST = 2
"""Inputs that are so many times as wide as a layer's outputs, or wider, are better transformed first."""


def reads_in_place(session: Session) -> Aggregation | None:
    """What the layers of a job aggregate of rows where they stand; None: its bins need rows of their own."""
    job, inputs, messages = session.job, session.inputs, session.task.messages
    if messages is None or not messages.is_homogeneous or not getattr(session.model, "layerwise", False):
        return None
    carried = session.list_weight is not None or bool(inputs.edges)
    changed = bool(inputs.tables) or inputs.scale is not None or job.input_dropout > 0
    joined = job.residual or job.jump != "none" or job.norm == "batch"
    orders = job.order if isinstance(job.order, list) else [job.order]
    ordered = "transform" in orders or max(inputs.widths.values()) > _WIDEST * job.hidden
    # Kernels of the host read rows of the type that they compute with.
    rounded = inputs.device.type == "cpu" and job.keep_type != "float32"
    if carried or changed or joined or ordered or rounded:
        return None
    what: Aggregation | None = layer_entry(job.model).aggregates(job)
    return what


@dataclass(eq=False)
class InPlacePlan(WholePlan):
    """Ranges of rows of one array of lists."""

    lists: PlacedLists
    """Of the vertices of level 1, which every later level is a prefix of."""
    readers: list[PlacedLists]
    """For each layer from the second on: the rows of its level that read each row of the level below."""


class ListSizes(NamedTuple):
    """How long the lists are that a step reads, by the order of its vertices."""

    name: str
    kind: EdgeType
    edges: EdgeSet
    offsets: Array
    """Where the lists of level 1 begin and end."""


def list_sizes(reach: Reach, order: dict[str, Array], counts: list[dict[str, int]]) -> ListSizes:
    """Of a step on a graph with one type of vertices."""
    ((name, vertices),), ((kind, edges),) = order.items(), reach.graph.edges.items()
    return ListSizes(name, kind, edges, list_offsets(edges, vertices[: counts[1][name]]))


def bin_rows(sizes: ListSizes, counts: list[dict[str, int]], bins: Sequence[int]) -> list[list[slice]]:
    """The rows of every layer's bins, which have about the same number of edges and rows together."""
    found = []
    for level, number in zip(counts[1:], bins, strict=True):
        bounds = cut_evenly(sizes.offsets[: level[sizes.name] + 1], number)
        found.append([slice(int(a), int(b)) for a, b in pairwise(bounds) if b > a])
    return found


def make_in_place_plan(
    reach: Reach, order: dict[str, Array], counts: list[dict[str, int]], bins: Sequence[int], device: torch.device
) -> InPlacePlan:
    """Lists where the model is computed, and bins of them."""
    sizes = list_sizes(reach, order, counts)
    rows = [level[sizes.name] for level in counts]
    lists, kept = placed_lists(sizes.edges, order[sizes.name], sizes.offsets, rows[2] if len(rows) > 2 else 0, device)
    readers = [
        turned_round(sizes.offsets[: above + 1], kept[: sizes.offsets[above]], below, device)
        for below, above in pairwise(rows[1:])
    ]
    made = [[Bin({sizes.name: each}, None, {}, {}) for each in layer] for layer in bin_rows(sizes, counts, bins)]
    return InPlacePlan(order, counts, made, lists, readers)
