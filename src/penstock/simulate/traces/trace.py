"""A trace of shuffles, as the public coflow benchmark writes it, in memory.

A coflow is a shuffle: every reducer receives its megabytes in even shares from all mappers. A location may be named
more than once, and then counts as often.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.traces.coflows import MOST_FLOWS, TraceCoflows, join_flows

MEGABYTE = 1e6  # bytes


@dataclass(frozen=True, eq=False)
class Trace:
    """C shuffles over the ports of one switch. Those of coflow c are `mappers[mapper_first[c] : mapper_first[c + 1]]`
    and likewise for reducers."""

    ports: int
    names: Array  # int64 [C]
    arrivals_ms: Array  # float64 [C]
    mapper_first: Array  # int64 [C + 1]
    mappers: Array  # int32: port
    reducer_first: Array  # int64 [C + 1]
    reducers: Array  # int32: port
    megabytes: Array  # float64, of every reducer

    @property
    def count(self) -> int:
        """Number of coflows, C."""
        return len(self.names)

    @cached_property
    def coflows(self) -> TraceCoflows:
        """The flows of all shuffles, those between the same ports joined."""
        each = np.diff(self.mapper_first) * np.diff(self.reducer_first)
        if each.sum() > MOST_FLOWS:
            raise PenstockError(
                f"The trace has {each.sum():,} flows: at most {MOST_FLOWS:,} can be simulated; use a part of it.",
                code="too-large",
            )
        sources, targets = np.empty(each.sum(), np.int32), np.empty(each.sum(), np.int32)
        sizes = np.empty(each.sum())
        _spread(
            self.mapper_first, self.mappers, self.reducer_first, self.reducers, self.megabytes, sources, targets, sizes
        )
        owners = np.repeat(np.arange(self.count), each)
        return join_flows(self.ports, self.names, self.arrivals_ms / 1e3, owners, sources, targets, sizes * MEGABYTE)


@njit(nogil=True, cache=True)
def _spread(
    mapper_first: Array,
    mappers: Array,
    reducer_first: Array,
    reducers: Array,
    megabytes: Array,
    sources: Array,
    targets: Array,
    sizes: Array,
) -> None:
    """Every reducer's megabytes in even shares over the mappers."""
    flow = 0
    for coflow in range(mapper_first.shape[0] - 1):
        shares = mapper_first[coflow + 1] - mapper_first[coflow]
        for mapper in range(mapper_first[coflow], mapper_first[coflow + 1]):
            for reducer in range(reducer_first[coflow], reducer_first[coflow + 1]):
                sources[flow] = mappers[mapper]
                targets[flow] = reducers[reducer]
                sizes[flow] = megabytes[reducer] / shares
                flow += 1
