"""What no policy can beat: a coflow alone on the switch, and the sum over coflows that arrive together."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.traces.bssi import bssi
from penstock.simulate.traces.coflows import Coflows, PortRates, rates_of
from penstock.simulate.traces.lines import line_bytes, lines_of


def bottlenecks(coflows: Coflows, rate_bytes_s: float | PortRates) -> Array:
    """Seconds that each coflow's busiest side of a port needs for it alone, float64 [C]."""
    rates, lines = rates_of(rate_bytes_s, coflows.ports), lines_of(coflows)
    seconds = line_bytes(lines, coflows.sizes) / rates[lines.sides]
    out = np.zeros(coflows.count)
    np.maximum.at(out, np.repeat(np.arange(coflows.count), np.diff(lines.first)), seconds)
    return out


def mean_cct_bound(coflows: Coflows, rate_bytes_s: float | PortRates) -> float:
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
