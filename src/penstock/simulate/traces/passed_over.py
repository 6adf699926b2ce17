"""What coflows that were passed over get in `coflowsim-fifo`: equal shares of what the others left.

A coflow that meets a full side gets no rates that end together. Its other flows need not wait for that: on every side,
the flows of all such coflows whose two sides have something left get the same share, and the lesser of their two.
"""

from penstock.graph.arrays import Array
from penstock.simulate.traces.kernels import nested
from penstock.simulate.traces.progress import TraceProgress, rest


@nested
def share_among_passed_over(progress: TraceProgress, flow_sides: Array, capacities: Array, present: Array) -> None:
    """Set the rates of the flows of all present coflows that have none, and take them from what is left."""
    spare, crossing, rate = progress.spare, progress.crossing, progress.rate
    for coflow in present:
        if _passed_over(progress, coflow):
            for k in range(progress.first[coflow], progress.first[coflow] + progress.alive[coflow]):
                source, target = flow_sides[0, progress.members[k]], flow_sides[1, progress.members[k]]
                if spare[source] > 0 and spare[target] > 0:
                    crossing[source] += 1
                    crossing[target] += 1
    # All shares are of what is left now, so nothing is taken before all are known. A flow's rate marks it until then.
    for coflow in present:
        if _passed_over(progress, coflow):
            for k in range(progress.first[coflow], progress.first[coflow] + progress.alive[coflow]):
                flow = progress.members[k]
                source, target = flow_sides[0, flow], flow_sides[1, flow]
                if spare[source] > 0 and spare[target] > 0:
                    rate[flow] = -min(spare[source] / crossing[source], spare[target] / crossing[target])
    for coflow in present:
        for k in range(progress.first[coflow], progress.first[coflow] + progress.alive[coflow]):
            flow = progress.members[k]
            if rate[flow] < 0:
                rate[flow] = -rate[flow]
                for which in range(2):
                    side = flow_sides[which, flow]
                    spare[side] = rest(spare[side], rate[flow], capacities[side])
                    crossing[side] = 0


@nested
def _passed_over(progress: TraceProgress, coflow: int) -> bool:
    """Whether no flow of a coflow moves."""
    for k in range(progress.first[coflow], progress.first[coflow] + progress.alive[coflow]):
        if progress.rate[progress.members[k]] > 0:
            return False
    return True
