"""Sincronia's order of coflows, BSSI (bottleneck, select, scale, iterate), and the policy `sincronia`.

From the last place to the first: on the side with the most work left, the coflow with the largest work for its weight
goes last; the weights of the others there are reduced in proportion to their work. These reductions are a solution of
the dual of a linear program that every schedule satisfies, so they also bound the sum of completion times from below;
completing coflows in this order, each as if on its worst side alone, is at most twice that bound.

`sincronia` finds that order anew at every arrival; flows send at full rate or not at all. In the order of coflows, and
within one by ports, every flow whose two sides are free takes them. Where ports differ in rate, a flow takes all that
is left on the narrower side.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.traces.coflows import Lines
from penstock.simulate.traces.progress import TraceProgress, advance, copy_to, nested, rest, sort_by, weigh


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
