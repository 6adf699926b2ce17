"""The bins of a step on one worker with what they wait for, forward and backward."""

from dataclasses import dataclass, field

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.pipeline.edge_rows import EdgeRows
from penstock.train.whole.prepared import PreparedBin, prepared_bin
from penstock.train.whole.shared.cut_plan import CutBin, CutLevel, CutPlan
from penstock.train.whole.shared.interfaces import Rows


@dataclass(eq=False)
class BinTask(PreparedBin):
    """A bin where it is computed, and what it has to do with other bins and with messages."""

    vertices: Rows = field(default_factory=dict)
    """Of its inputs, numbers in the cut graph."""
    layer: int = 0
    place: int = 0
    """Its number in the layer."""
    below: frozenset[int] = frozenset()
    """Bins of the layer below whose rows it reads."""
    halo: frozenset[int] = frozenset()
    """Groups received for the level below that it reads, by their place in the level's list."""
    above: frozenset[int] = frozenset()
    """Bins of the layer above that read its rows."""
    readers: tuple[int, ...] = ()
    """Groups sent of its level that hold rows of it, by their place in the level's list: by rank, then number."""


def make_tasks(plan: CutPlan, device: torch.device, edges: EdgeRows) -> list[list[BinTask]]:
    """For every layer, its bins in order; `edges` reads what the edges of each bin carry."""
    made = [
        [_task(work, number, place, device, edges) for place, work in enumerate(layer)]
        for number, layer in enumerate(plan.bins)
    ]
    for number, layer in enumerate(made):
        level = plan.levels[number]
        for task in layer:
            if number:
                task.below, task.halo = _sources(task, plan.bins[number - 1], level)
                for place in task.below:
                    made[number - 1][place].above |= {task.place}
            sent = plan.levels[number + 1].sent
            task.readers = tuple(place for place, group in enumerate(sent) if task.place in group.computed_by)
    return made


def _task(work: CutBin, layer: int, place: int, device: torch.device, edges: EdgeRows) -> BinTask:
    return BinTask(**vars(prepared_bin(work, device, edges)), vertices=work.vertices, layer=layer, place=place)


def _sources(task: BinTask, below: list[CutBin], level: CutLevel) -> tuple[frozenset[int], frozenset[int]]:
    bins: set[int] = set()
    groups: set[int] = set()
    for kind, rows in task.inputs.items():
        assert rows is not None
        own = rows < level.computed[kind]
        bins |= _which(rows[own], [(place, work.rows[kind]) for place, work in enumerate(below) if kind in work.rows])
        parts = [(place, group.rows[kind]) for place, group in enumerate(level.received) if kind in group.rows]
        groups |= _which(rows[~own], parts)
    return frozenset(bins), frozenset(groups)


def _which(rows: Array, parts: list[tuple[int, slice]]) -> set[int]:
    """The parts, which stand one behind the other, that hold any of some rows."""
    if not len(rows):
        return set()
    ends = np.array([some.stop for _, some in parts])
    return {parts[place][0] for place in np.unique(np.searchsorted(ends, rows, "right")).tolist()}
