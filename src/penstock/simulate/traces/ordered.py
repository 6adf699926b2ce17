"""Events of coflows that are served in an order: arrivals, and ends of flows and coflows.

Between two events nothing changes. At each, coflows before the first that changed keep their rates, and so do those
after it that find the same spare rates on their sides as before. Kernels that take functions cannot be cached between
processes, so a policy is given by a number.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.traces.bssi import match, order_by_bssi
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
)
from penstock.simulate.traces.sebf import hand_on, share_ending_together

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
