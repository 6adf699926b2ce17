"""How often batches of a machine read each row of other machines, predicted from the graph, its cut and a profile.

Rows are read as often as the lists of the machine's part name them, each list giving at most a fan-out's worth of
reads. A batch reads a row once however many of its lists name it: with c_u reads expected of row u, up to a scale s,
it reads the row with probability 1 - exp(-s c_u), and s is such that as many different rows come as were measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.sampling.explained.locality_draw import LEAST_REMOTE

_MOST_ROWS = 0.98
"""Of the remote rows that a part's lists name, those that a batch reads at most, by this model."""


@dataclass(frozen=True)
class MachineReads:
    """Of one machine: reads expected of each remote row that its part's lists name, and what lists say of them."""

    chances: Array
    """By remote row, the expected reads in a batch, of which repeated ones count."""
    near_share: Array
    """By list with remote neighbours: how many draws it has, and the share of them that is remote."""

    @property
    def rows(self) -> float:
        """Different remote rows of a batch."""
        return float(-np.expm1(-self.chances).sum())

    def hits(self, share: float) -> float:
        """Different rows of a batch that are among the `share` of remote rows that are read most."""
        count = round(share * len(self.chances))
        return float(-np.expm1(-np.sort(self.chances)[::-1][:count]).sum())

    def rows_with_bias(self, bias: float) -> float:
        """Different rows of a batch where lists draw fewer remote neighbours, as sampler explained does."""
        draws, remote = self.near_share
        before = float((draws * remote).sum())
        after = float((draws * np.maximum(remote - bias, LEAST_REMOTE * remote)).sum())
        return float(-np.expm1(-self.chances * (after / before if before else 1.0)).sum())


def machine_reads(
    graph: Graph, part_of: Array, fanout: int, rows: Sequence[float], parts: Sequence[int]
) -> list[MachineReads]:
    """The reads of machines that have the parts `parts` of a graph of one type, whose batches read `rows` remote rows.

    `fanout` is the largest of the job's; -1: all neighbours.
    """
    (edges,) = graph.edges.values()
    lengths = np.diff(edges.indptr)
    draws = lengths.astype(np.float64) if fanout < 0 else np.minimum(lengths, fanout).astype(np.float64)
    targets = np.repeat(np.arange(len(lengths)), lengths)
    far = part_of[edges.indices] != part_of[targets]
    remote = np.bincount(targets[far], minlength=len(lengths)) / np.maximum(lengths, 1)
    weights = draws[targets] / np.maximum(lengths, 1)[targets]
    found = []
    for part, wanted in zip(parts, rows, strict=True):
        mine = far & (part_of[targets] == part)
        counts = np.bincount(edges.indices[mine], weights[mine], minlength=len(lengths))
        lists = (part_of == part) & (remote > 0)
        found.append(MachineReads(_scaled(counts[counts > 0], wanted), np.stack([draws[lists], remote[lists]])))
    return found


def _scaled(counts: Array, rows: float) -> Array:
    """Counts times a scale such that a batch reads so many different rows."""
    rows = min(rows, _MOST_ROWS * len(counts))
    low, high = 0.0, 1.0
    while -np.expm1(-high * counts).sum() < rows:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if -np.expm1(-middle * counts).sum() < rows else (low, middle)
    return np.asarray(counts * high)
