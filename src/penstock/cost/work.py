"""The work in a batch, counted on the graph: vertices read and neighbour lists drawn, for each part and worker."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned
from penstock.sampling import Block, MiniBatch

Draw = Callable[[Array, Planned], MiniBatch[Block]]
"""The batch of some seeds."""


@dataclass(frozen=True, eq=False)
class TaskWork:
    """The work of each kind of task, as means over some iterations."""

    vertices: Array
    """float64 [parts, workers]: vertices whose rows a worker reads from a part."""
    entries: Array
    """float64 [parts, workers]: of the lists that a worker draws from at a part, the rows and the edges drawn."""

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self.vertices)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return int(self.vertices.shape[1])


def count_work(draw: Draw, batches: Iterable[Planned], part_of: Array, parts: int, workers: int) -> TaskWork:
    """Draw every worker's share of some batches, and count what it reads from each part.

    `part_of` is the part of every vertex. Seeds are shared as in a run: ordered by part, in equal ranges.
    """
    vertices, entries = np.zeros((parts, workers)), np.zeros((parts, workers))
    count = 0
    for planned in batches:
        count += 1
        for rank, seeds in enumerate(_shares(planned.seeds, part_of, workers)):
            if not len(seeds):
                continue
            batch = draw(seeds, planned)
            owner = part_of[batch.vertices[batch.node_type]]
            vertices[:, rank] += np.bincount(owner, minlength=parts)
            for block in batch.blocks:
                drawn = 1.0 + np.diff(block.indptr)
                entries[:, rank] += np.bincount(owner[: block.num_dst], weights=drawn, minlength=parts)
    return TaskWork(vertices / max(count, 1), entries / max(count, 1))


def _shares(seeds: Array, part_of: Array, workers: int) -> list[Array]:
    if workers == 1:
        return [seeds]
    ordered = seeds[np.lexsort((seeds, part_of[seeds]))]
    ends = [round(rank * len(seeds) / workers) for rank in range(workers + 1)]
    return [ordered[first:last] for first, last in pairwise(ends)]
