"""Max-min fairness by progressive filling: flows on the tightest side get an equal share of it, and so on."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.traces.coflows import Lines
from penstock.simulate.traces.progress import nested, rest

_UNSETTLED = -1.0


@nested
def fill(
    lines: Lines,
    coflow: int,
    weight: Array,
    capacities: Array,
    spare: Array,
    crossing: Array,
    rate: Array,
) -> None:
    """Give the flows of a coflow max-min rates out of `spare` [sides], and take them from it.

    A flow of weight w counts as w flows, each of which gets `rate`; one of weight 0 is passed over.
    """
    flow_sides, first, last = lines.flow_sides, lines.first[coflow], lines.first[coflow + 1]
    unsettled = _open(lines, first, last, capacities.shape[0] // 2, weight, spare, crossing, rate)
    while unsettled > 0:
        tightest, share, many = first, np.inf, 1.0
        for line in range(first, last):
            side = lines.sides[line]
            # spare / crossing of this side against the least so far, without dividing; never true of 0 flows
            if spare[side] * many < share * crossing[side]:
                tightest, share, many = line, spare[side], float(crossing[side])
        least, full = share / many, lines.sides[tightest]
        for k in range(lines.flow_first[tightest], lines.flow_first[tightest + 1]):
            flow = lines.flows[k]
            if weight[flow] > 0 and rate[flow] == _UNSETTLED:
                rate[flow] = least
                other = flow_sides[0, flow] + flow_sides[1, flow] - full
                crossing[other] -= weight[flow]
                spare[other] = rest(spare[other], least * weight[flow], capacities[other])
                unsettled -= 1
        spare[full], crossing[full] = 0.0, 0


@nested
def _open(
    lines: Lines, first: int, last: int, ports: int, weight: Array, spare: Array, crossing: Array, rate: Array
) -> int:
    """Count the flows on every side of those whose sides both have something left; the others get nothing."""
    unsettled = 0
    for line in range(first, last):
        if lines.sides[line] >= ports:
            break
        for k in range(lines.flow_first[line], lines.flow_first[line + 1]):
            flow = lines.flows[k]
            if weight[flow] > 0:
                source, target = lines.flow_sides[0, flow], lines.flow_sides[1, flow]
                if spare[source] > 0 and spare[target] > 0:
                    rate[flow] = _UNSETTLED
                    crossing[source] += weight[flow]
                    crossing[target] += weight[flow]
                    unsettled += 1
                else:
                    rate[flow] = 0.0
    return unsettled
