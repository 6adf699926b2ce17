"""`sincronia`: coflows in the order of BSSI, found anew at every arrival; flows send at full rate or not at all.

In the order of coflows, and within one by ports, every flow whose two sides are free takes them. Where ports differ in
rate, a flow takes all that is left on the narrower side.
"""

from penstock.graph.arrays import Array
from penstock.simulate.traces.bssi import bssi
from penstock.simulate.traces.kernels import copy_to, nested
from penstock.simulate.traces.lines import Lines
from penstock.simulate.traces.progress import TraceProgress, advance, rest, sort_by, weigh


@nested
def order_by_bssi(
    progress: TraceProgress, lines: Lines, capacities: Array, present: Array, arrivals: Array, now: float
) -> None:
    """Put the present coflows in Sincronia's order by what they have left."""
    sort_by(arrivals, present, arrivals)
    for coflow in present:
        advance(progress, coflow, now)
        weigh(progress, lines, coflow)
    copy_to(present, bssi(present, lines, progress.load, capacities)[0])


@nested
def match(progress: TraceProgress, lines: Lines, capacities: Array, coflow: int) -> None:
    """Let every flow of a coflow whose sides have something left take all of it."""
    rate, living, spare, flow_sides = progress.rate, progress.living, progress.spare, lines.flow_sides
    for k in range(progress.first[coflow], progress.first[coflow] + progress.alive[coflow]):
        rate[progress.members[k]] = 0.0
    for line in range(lines.first[coflow], lines.first[coflow + 1]):
        source = lines.sides[line]
        if source >= capacities.shape[0] // 2:
            break
        k, last = lines.flow_first[line], lines.flow_first[line + 1]
        while k < last and spare[source] > 0:
            flow = lines.flows[k]
            target = flow_sides[1, flow]
            if living[flow] > 0 and spare[target] > 0:
                rate[flow] = min(spare[source], spare[target])
                spare[source] = rest(spare[source], rate[flow], capacities[source])
                spare[target] = rest(spare[target], rate[flow], capacities[target])
            k += 1
