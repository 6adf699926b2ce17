"""What no policy can beat: a coflow alone on the switch, the busiest port, and coflows that arrive together."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.traces.bssi import bssi
from penstock.simulate.traces.coflows import PortRates, TraceCoflows, rates_of
from penstock.simulate.traces.lines import line_bytes, lines_of


def bottlenecks(coflows: TraceCoflows, rate_bytes_s: float | PortRates) -> Array:
    """Seconds that each coflow's busiest side of a port needs for it alone, float64 [C]."""
    rates, lines = rates_of(rate_bytes_s, coflows.ports), lines_of(coflows)
    seconds = line_bytes(lines, coflows.sizes) / rates[lines.sides]
    out = np.zeros(coflows.count)
    np.maximum.at(out, np.repeat(np.arange(coflows.count), np.diff(lines.first)), seconds)
    return out


def makespan_bound(coflows: TraceCoflows, rate_bytes_s: float | PortRates) -> float:
    """Seconds from the first arrival below which no policy completes all coflows.

    For every side of a port and every arrival: what arrives from then on cannot be through before it has crossed that
    side, one byte after the other.
    """
    rates, lines = rates_of(rate_bytes_s, coflows.ports), lines_of(coflows)
    arrivals = np.repeat(coflows.arrivals, np.diff(lines.first))
    # By side, and on each from the last arrival to the first.
    order = np.lexsort((-arrivals, lines.sides))
    seconds = (line_bytes(lines, coflows.sizes) / rates[lines.sides])[order]
    summed = np.cumsum(seconds)
    begins = np.flatnonzero(np.diff(lines.sides[order], prepend=-1))
    before = np.repeat(summed[begins] - seconds[begins], np.diff(np.append(begins, len(order))))
    through = arrivals[order] + (summed - before)
    return float(max(through.max(initial=0.0), coflows.arrivals.max()) - coflows.arrivals.min())


def mean_cct_bound(coflows: TraceCoflows, rate_bytes_s: float | PortRates) -> float:
    """Seconds below which no policy brings the mean completion time.

    It is the mean of the coflows' own bounds or, where all arrive at once and that is more, the value of the dual
    solution that ordering by BSSI finds. Sincronia's mean is at most 4 times the latter where all ports are alike: its
    order at most doubles the bound, and a flow waits for both of its sides.
    """
    alone = float(bottlenecks(coflows, rate_bytes_s).mean())
    if np.ptp(coflows.arrivals) > 0:
        return alone
    rates, lines = rates_of(rate_bytes_s, coflows.ports), lines_of(coflows)
    together = bssi(np.arange(coflows.count), lines, line_bytes(lines, coflows.sizes), rates)[1]
    return max(alone, together / coflows.count)
