"""The input of a partitioning method, and its result."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.graph.arrays import Array
from penstock.partition.constraints import Constraints
from penstock.partition.whole import WholeAdjacency
from penstock.progress import SILENT, Progress


@dataclass(frozen=True)
class Problem:
    """Assign every vertex of `whole` to one of `parts` parts."""

    whole: WholeAdjacency
    parts: int
    constraints: Constraints
    tolerance: float = 1.05
    """Largest load a part may have, over the mean."""
    seed: int = 0
    passes: int = 1
    """How often a streaming method reads the graph."""
    threads: int = 1
    progress: Progress = SILENT

    def capacities(self) -> Array:
        """Largest load a part may have, per constraint. One vertex more than the mean is always allowed: shares of few
        vertices do not divide evenly."""
        weights = self.constraints.weights
        means = weights.sum(1, dtype=np.int64) / self.parts
        largest: Array = np.maximum(means * self.tolerance, np.ceil(means))
        return largest


class Method(Protocol):
    """A policy: problem in, part of every vertex (int32) out. The same problem gives the same answer, except where a
    native library runs in parallel and says otherwise (`hypergraph`)."""

    def __call__(self, problem: Problem) -> Array: ...
