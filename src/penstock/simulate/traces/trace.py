"""A trace of shuffles, as the public coflow benchmark writes it, in memory.

A coflow is a shuffle: every reducer receives its megabytes in even shares from all mappers. A location may be named
more than once, and then counts as often. `made_trace` draws one by a hash with the shape of the public trace: most
shuffles small, most bytes in a few wide ones.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key, unit_draws
from penstock.kernels import njit
from penstock.simulate.traces.coflows import MOST_COFLOWS, MOST_FLOWS, MOST_PORTS, TraceCoflows, join_flows

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


_NARROW = 0.68  # share of shuffles with one reducer or a few
_NARROW_WIDTH = 14  # ports at most on a side of these
_TAIL = 1.2  # exponent of a flow's megabytes: finite mean, no variance
_LONGEST = 500.0  # megabytes of a flow


def made_trace(ports: int = 150, coflows: int = 526, seconds: float = 3600.0, seed: int = 0) -> Trace:
    """A trace with Poisson arrivals over about so many seconds (0: all at once), in whole milliseconds.

    Widths are skewed and sizes heavy-tailed. With the given numbers it is about as large as the public trace.
    """
    if not (1 <= ports <= MOST_PORTS and 1 <= coflows <= MOST_COFLOWS and 0 <= seconds <= 1e8):
        raise PenstockError(
            f"A trace cannot have {coflows} coflows over {ports} ports and {seconds:g} s: give 1 or more coflows and"
            " ports, and 0 s or more.",
            code="value-out-of-range",
        )
    gaps = -np.log1p(-_draws(seed, "gaps", coflows)) * seconds / coflows
    arrivals = np.floor(1e3 * (np.cumsum(gaps) - gaps[0]))
    narrow = _draws(seed, "narrow", coflows) < _NARROW
    mapper_counts = _widths(narrow, ports, _draws(seed, "mappers", coflows), 2.0)
    reducer_counts = _widths(narrow, ports, _draws(seed, "reducers", coflows), 4.0)
    mapper_first, mappers = _locations(seed, "from", ports, mapper_counts)
    reducer_first, reducers = _locations(seed, "to", ports, reducer_counts)
    share = np.minimum(_LONGEST, (1 - _draws(seed, "sizes", coflows)) ** (-1 / _TAIL)).round()
    waves = 1 + np.floor(4 * _draws(seed, "waves", len(reducers)) ** 3)
    return Trace(
        ports=ports,
        names=np.arange(1, coflows + 1),
        arrivals_ms=arrivals,
        mapper_first=mapper_first,
        mappers=mappers,
        reducer_first=reducer_first,
        reducers=reducers,
        megabytes=np.repeat(share * mapper_counts, reducer_counts) * waves,
    )


def _widths(narrow: Array, ports: int, uniform: Array, skew: float) -> Array:
    """Ports on one side: few, skewed to one, of narrow shuffles; any number of the others."""
    few = 1 + np.floor(min(_NARROW_WIDTH, ports) * uniform**skew)
    return np.minimum(ports, np.where(narrow, few, 1 + np.floor(ports * uniform))).astype(np.int64)


def _locations(seed: int, purpose: str, ports: int, counts: Array) -> tuple[Array, Array]:
    """Different ports for every shuffle, ascending, and where each shuffle's begin."""
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    out = np.empty(first[-1], np.int32)
    for coflow, count in enumerate(counts.tolist()):
        order = np.argsort(_draws(seed, purpose, ports, coflow * ports), kind="stable")
        out[first[coflow] : first[coflow + 1]] = np.sort(order[:count])
    return first, out


def _draws(seed: int, purpose: str, count: int, start: int = 0) -> Array:
    out = np.empty(count)
    unit_draws(document_key(seed, "trace {}", purpose), start, out)
    return out
