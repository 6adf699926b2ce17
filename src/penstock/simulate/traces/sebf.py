"""`sebf`: Varys. Coflows by their effective bottleneck, the seconds that what is left would take alone; shortest first.
`coflowsim-fifo` is the same by arrival, as CoflowSim's FIFO is, and coflows that got none share what is left as equals
before it is filled up (`passed_over`).

In that order each coflow gets just the rates with which all its flows end together, with its bottleneck, on what is
left of the sides (MADD); one that meets a full side gets none. What then is left goes to flows in the same order, as
much as fits (backfilling), so that no flow waits between two sides with something left. Order and rates are set anew
when a coflow arrives or is complete. A flow that ends in between was backfilled: what it used goes to flows on its two
sides, again in order.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.traces.coflows import Lines
from penstock.simulate.traces.progress import TraceProgress, advance, copy_to, foresee, nested, rest, sort_by, weigh


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


@nested
def share_ending_together(
    by_arrival: bool,
    progress: TraceProgress,
    lines: Lines,
    capacities: Array,
    present: Array,
    arrivals: Array,
    now: float,
) -> None:
    """Order the present coflows, by bottleneck or by arrival, and set all rates anew."""
    for coflow in present:
        advance(progress, coflow, now)
        weigh(progress, lines, coflow)
        progress.bottleneck[coflow] = _bottleneck(lines, progress.load, capacities, coflow)
    sort_by(arrivals if by_arrival else progress.bottleneck, present, arrivals)
    copy_to(progress.spare, capacities)
    for coflow in present:
        _end_together(progress, lines, capacities, coflow)
    if by_arrival:
        share_among_passed_over(progress, lines.flow_sides, capacities, present)
    for coflow in present:
        for line in range(lines.first[coflow], lines.first[coflow + 1]):
            if lines.sides[line] < capacities.shape[0] // 2:
                _backfill(progress, lines, capacities, line, coflow, now)
        foresee(progress, coflow)


@nested
def hand_on(
    progress: TraceProgress, lines: Lines, capacities: Array, present: Array, freed: Array, stale: Array, now: float
) -> None:
    """Give the rates of ended flows on the `freed` sides to others there; `stale` coflows lost a flow."""
    for coflow in present:
        changed = stale[coflow]
        for side in range(freed.shape[0]):
            if freed[side] and progress.spare[side] > 0:
                line = _line_on(lines, coflow, side)
                if line >= 0 and _backfill(progress, lines, capacities, line, coflow, now):
                    changed = True
        if changed:
            foresee(progress, coflow)


@nested
def _bottleneck(lines: Lines, load: Array, rates: Array, coflow: int) -> float:
    """Seconds that a coflow takes on its worst side at `rates` [sides]; inf where that has nothing."""
    worst = 0.0
    for line in range(lines.first[coflow], lines.first[coflow + 1]):
        if load[line] > 0:
            worst = max(worst, load[line] / rates[lines.sides[line]])
    return worst


@nested
def _end_together(progress: TraceProgress, lines: Lines, capacities: Array, coflow: int) -> None:
    """Rates with which all flows of a coflow end with its bottleneck; none where a side is full."""
    seconds = _bottleneck(lines, progress.load, progress.spare, coflow)
    for k in range(progress.first[coflow], progress.first[coflow] + progress.alive[coflow]):
        flow = progress.members[k]
        progress.rate[flow] = progress.left[flow] / seconds
    if seconds < np.inf:
        for line in range(lines.first[coflow], lines.first[coflow + 1]):
            side = lines.sides[line]
            progress.spare[side] = rest(progress.spare[side], progress.load[line] / seconds, capacities[side])


@nested
def _backfill(progress: TraceProgress, lines: Lines, capacities: Array, line: int, coflow: int, now: float) -> bool:
    """Give the flows of a line what their two sides have left, one after the other; returns whether
    any got something.
    """
    spare, side, found = progress.spare, lines.sides[line], False
    k = lines.flow_first[line]
    while k < lines.flow_first[line + 1] and spare[side] > 0:
        flow = lines.flows[k]
        other = lines.flow_sides[0, flow] + lines.flow_sides[1, flow] - side
        if spare[other] > 0 and progress.living[flow] > 0:
            if not found:
                advance(progress, coflow, now)
                found = True
            extra = min(spare[side], spare[other])
            progress.rate[flow] += extra
            spare[side] = rest(spare[side], extra, capacities[side])
            spare[other] = rest(spare[other], extra, capacities[other])
        k += 1
    return found


@nested
def _line_on(lines: Lines, coflow: int, side: int) -> int:
    """A coflow's line on a side, or -1."""
    low, high = lines.first[coflow], lines.first[coflow + 1]
    while low < high:
        middle = (low + high) // 2
        if lines.sides[middle] < side:
            low = middle + 1
        else:
            high = middle
    return low if low < lines.first[coflow + 1] and lines.sides[low] == side else -1
