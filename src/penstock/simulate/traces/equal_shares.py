"""Equal shares without redistribution: a flow gets the lesser of its two sides' rates over their numbers of flows.

That is CoflowSim's FAIR, and per-flow fairness as each port would see it alone. What the other side keeps a flow from
using stays unused.
"""

from penstock.graph.arrays import Array
from penstock.simulate.traces.kernels import nested


@nested
def share_equally(
    flow_sides: Array, present: Array, busy: Array, capacities: Array, crossing: Array, speed: Array
) -> None:
    """Set the `speed` of every flow on the `busy` pairs of ports; `crossing` [sides] is zero before and after."""
    for pair in busy:
        for which in range(2):
            crossing[flow_sides[which, pair]] += present[pair]
    for pair in busy:
        source, target = flow_sides[0, pair], flow_sides[1, pair]
        speed[pair] = min(capacities[source] / crossing[source], capacities[target] / crossing[target])
    for pair in busy:
        for which in range(2):
            crossing[flow_sides[which, pair]] = 0
