"""Coflows that are served in an order: `sincronia`, `sebf`, `fifo` and `coflowsim-fifo`, and their events.

Between two events nothing changes. At each, coflows before the first that changed keep their rates, and so do those
after it that find the same spare rates on their sides as before. Kernels that take functions cannot be cached between
processes, so a policy is given by a number.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.traces.coflows import Lines
from penstock.simulate.traces.fair import fill
from penstock.simulate.traces.progress import (
    EVENTS,
    SAME,
    TraceProgress,
    advance,
    copy_to,
    end_flows,
    foresee,
    moment,
    nested,
    rest,
    sort_by,
    weigh,
)

# Sincronia's order of coflows, BSSI (bottleneck, select, scale, iterate), and the policy `sincronia`.
#
# From the last place to the first: on the side with the most work left, the coflow with the largest work for its weight
# goes last; the weights of the others there are reduced in proportion to their work. These reductions are a solution of
# the dual of a linear program that every schedule satisfies, so they also bound the sum of completion times from below;
# completing coflows in this order, each as if on its worst side alone, is at most twice that bound.
#
# `sincronia` finds that order anew at every arrival; flows send at full rate or not at all. In the order of coflows,
# and within one by ports, every flow whose two sides are free takes them. Where ports differ in rate, a flow takes all
# that is left on the narrower side.


@njit(nogil=True, cache=True, error_model="numpy")
def bssi(present: Array, lines: Lines, load: Array, capacities: Array) -> tuple[Array, float]:
    """The coflows of `present` in Sincronia's order, and a lower bound of the sum of their completion times (seconds).

    `load` [lines] holds bytes. All weights are 1. Of coflows that weigh the same, the later in `present` goes last.
    """
    begins, entries, totals = _by_side(present, lines, load, capacities)
    weight, waiting = np.ones(present.shape[0]), np.ones(present.shape[0], np.bool_)
    order, bound = np.empty_like(present), 0.0
    for place in range(present.shape[0] - 1, -1, -1):
        side = 0
        for each in range(1, totals.shape[0]):
            if totals[each] > totals[side]:
                side = each
        chosen, price, total, squares = -1, np.inf, 0.0, 0.0
        for k in range(begins[side], begins[side + 1]):
            which, work = entries[k].coflow, entries[k].seconds
            if waiting[which]:
                total += work
                squares += work * work
                if weight[which] / work <= price:
                    chosen, price = which, weight[which] / work
        if chosen == -1:
            # No coflow has work left: they keep their order.
            chosen = present.shape[0] - 1
            while not waiting[chosen]:
                chosen -= 1
        else:
            bound += price * (total * total + squares) / 2
            for k in range(begins[side], begins[side + 1]):
                which = entries[k].coflow
                weight[which] = max(0.0, weight[which] - price * entries[k].seconds)
        order[place] = present[chosen]
        waiting[chosen] = False
        coflow = present[chosen]
        for line in range(lines.first[coflow], lines.first[coflow + 1]):
            totals[lines.sides[line]] -= load[line] / capacities[lines.sides[line]]
        _clear_idle(present, lines, coflow, begins, entries, waiting, totals)
    return order, bound


_ENTRY = np.dtype([("coflow", np.int64), ("seconds", np.float64)])


@nested
def _by_side(present: Array, lines: Lines, load: Array, capacities: Array) -> tuple[Array, Array, Array]:
    """For every side, who has how many seconds of work there (place in `present`), and the sums."""
    begins, totals = np.zeros(capacities.shape[0] + 1, np.int64), np.zeros(capacities.shape[0])
    for k in range(present.shape[0]):
        for line in range(lines.first[present[k]], lines.first[present[k] + 1]):
            begins[lines.sides[line] + 1] += load[line] > 0
    for side in range(totals.shape[0]):
        begins[side + 1] += begins[side]
    entries, at = np.empty(begins[-1], _ENTRY), begins.copy()
    for k in range(present.shape[0]):
        for line in range(lines.first[present[k]], lines.first[present[k] + 1]):
            if load[line] > 0:
                side = lines.sides[line]
                entries[at[side]].coflow = k
                entries[at[side]].seconds = load[line] / capacities[side]
                totals[side] += load[line] / capacities[side]
                at[side] += 1
    return begins, entries, totals


@nested
def _clear_idle(
    present: Array, lines: Lines, coflow: int, begins: Array, entries: Array, waiting: Array, totals: Array
) -> None:
    """Clear the rounding errors of sides on which a coflow just placed was the last."""
    for line in range(lines.first[coflow], lines.first[coflow + 1]):
        side = lines.sides[line]
        k = begins[side]
        while k < begins[side + 1] and not waiting[entries[k].coflow]:
            k += 1
        if k == begins[side + 1]:
            totals[side] = 0.0


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


# `sebf`: Varys. Coflows by their effective bottleneck, the seconds that what is left would take alone; shortest first.
# `coflowsim-fifo` is the same by arrival, as CoflowSim's FIFO is, and coflows that got none share what is left as
# equals before it is filled up (`passed_over`).
#
# In that order each coflow gets just the rates with which all its flows end together, with its bottleneck, on what is
# left of the sides (MADD); one that meets a full side gets none. What then is left goes to flows in the same order, as
# much as fits (backfilling), so that no flow waits between two sides with something left. Order and rates are set anew
# when a coflow arrives or is complete. A flow that ends in between was backfilled: what it used goes to flows on its
# two sides, again in order.


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


# The events of all four policies: arrivals, and ends of flows and coflows.

FIFO, SEBF, SINCRONIA, FIFO_MADD = range(4)


@njit(nogil=True, cache=True, error_model="numpy")
def run_ordered(
    policy: int,
    arrivals: Array,
    queue: Array,
    lines: Lines,
    capacities: Array,
    progress: TraceProgress,
    completions: Array,
) -> None:
    """Find when every coflow is complete, in seconds. `queue` lists the coflows by arrival.

    `completions` holds the arrivals at first, for a coflow without bytes is complete when it arrives.
    """
    present, count, came = np.empty(queue.shape[0], np.int64), 0, 0
    stale = np.zeros(queue.shape[0], np.bool_)
    freed = np.zeros(capacities.shape[0], np.bool_)
    while came < queue.shape[0] or count > 0:
        end = np.inf
        for k in range(count):
            end = min(end, progress.ends[present[k]])
        now = moment(end, arrivals, queue, came)
        progress.numbers[EVENTS] += 1
        changed, left = _end_due(progress, lines, present[:count], now, stale, freed, completions)
        departed, arrived, count = left < count, came, left
        while came < queue.shape[0] and arrivals[queue[came]] <= now:
            coflow = queue[came]
            came += 1
            if progress.alive[coflow] > 0:
                present[count], stale[coflow], progress.since[coflow] = coflow, True, now
                count += 1
        here = present[:count]
        if policy in (SEBF, FIFO_MADD):
            if departed or came > arrived:
                share_ending_together(policy == FIFO_MADD, progress, lines, capacities, here, arrivals, now)
            else:
                hand_on(progress, lines, capacities, here, freed, stale, now)
            for coflow in here:
                stale[coflow] = False
        else:
            if policy == SINCRONIA and came > arrived:
                order_by_bssi(progress, lines, capacities, here, arrivals, now)
                changed = 0
            _share_in_order(policy, progress, lines, capacities, here, changed, stale, now)
        for side in range(freed.shape[0]):
            freed[side] = False


@nested
def _end_due(
    progress: TraceProgress, lines: Lines, present: Array, now: float, stale: Array, freed: Array, completions: Array
) -> tuple[int, int]:
    """End flows that are due, and remove complete coflows; returns the first position that changed, and how many
    remain.
    """
    kept, changed = 0, present.shape[0]
    for k in range(present.shape[0]):
        coflow = present[k]
        if progress.ends[coflow] <= now * (1 + SAME):
            end_flows(progress, lines.flow_sides, coflow, now, freed)
            stale[coflow] = True
            changed = min(changed, kept)
            if progress.alive[coflow] == 0:
                completions[coflow] = now
                continue
        present[kept] = coflow
        kept += 1
    return min(changed, kept), kept


@nested
def _share_in_order(
    policy: int,
    progress: TraceProgress,
    lines: Lines,
    capacities: Array,
    present: Array,
    changed: int,
    stale: Array,
    now: float,
) -> None:
    """Give every coflow from position `changed` on its share of what those before it leave."""
    spare, seen, used, sides = progress.spare, progress.seen, progress.used, lines.sides
    copy_to(spare, capacities)
    for k in range(present.shape[0]):
        coflow = present[k]
        first, last = lines.first[coflow], lines.first[coflow + 1]
        if k >= changed and not stale[coflow]:
            for line in range(first, last):
                if seen[line] != spare[sides[line]]:
                    stale[coflow] = True
                    break
        if k >= changed and stale[coflow]:
            advance(progress, coflow, now)
            for line in range(first, last):
                seen[line] = spare[sides[line]]
            if policy == FIFO:
                fill(lines, coflow, progress.living, capacities, spare, progress.crossing, progress.rate)
            else:
                match(progress, lines, capacities, coflow)
            for line in range(first, last):
                used[line] = seen[line] - spare[sides[line]]
            foresee(progress, coflow)
            stale[coflow] = False
        for line in range(first, last):
            # The same sum whether shares are new or old, so that comparing it with the last one is exact.
            side = sides[line]
            spare[side] = rest(seen[line], used[line], capacities[side])
