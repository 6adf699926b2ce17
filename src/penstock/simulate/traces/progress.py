"""The progress of every coflow, and what its flows do until something changes.

Kernels that only kernels call are compiled without an entry from Python, which for tuples of arrays is most of the
work.
"""

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.traces.coflows import Lines, TraceCoflows

if TYPE_CHECKING:
    Kernel = TypeVar("Kernel")

    def nested(kernel: Kernel) -> Kernel:
        """A kernel that only kernels call."""

else:
    nested = njit(nogil=True, cache=True, error_model="numpy")


@nested
def copy_to(target: Array, source: Array) -> None:
    """Copy an array; a loop compiles in a fraction of the time of an assignment to a slice."""
    for k in range(source.shape[0]):
        target[k] = source[k]


FULL = 1e-9  # of a side's rate: what rounding leaves of a full one
SAME = 1e-12  # relative: ends closer than this are one event
CHANGE = np.dtype([("when", np.float64), ("flow", np.int64), ("rate", np.float64)])  # seconds, bytes/s from then on
EVENTS, CHANGES = range(2)  # places in `numbers`


class TraceProgress(NamedTuple):
    """Of C coflows with F flows on L lines, over S sides of ports."""

    first: Array  # int64 [C + 1]: the flows of each coflow
    left: Array  # float64 [F]: bytes, as of `since`
    rate: Array  # float64 [F]: bytes/s
    living: Array  # int64 [F]: 1 until the flow has ended, then 0
    members: Array  # int32 [F]: the flows of each coflow, those that live before the others
    alive: Array  # int64 [C]: how many live
    since: Array  # float64 [C]: seconds
    ends: Array  # float64 [C]: when the next flow ends; inf while none moves
    seen: Array  # float64 [L]: what the side had left (bytes/s) when the coflow was last given its share
    used: Array  # float64 [L]: what the coflow took of it
    load: Array  # float64 [L]: bytes left on the line when last counted
    bottleneck: Array  # float64 [C]: seconds on the coflow's worst side, when last counted
    spare: Array  # float64 [S]: what the side has left, bytes/s
    crossing: Array  # int64 [S]: scratch, zero between uses
    numbers: Array  # int64: EVENTS, CHANGES
    changes: Array  # CHANGE: filled as far as there is room


def progress_of(coflows: TraceCoflows, lines: Lines, sides: int, room: int) -> TraceProgress:
    """The state before anything has begun, with room for so many changes of rate."""
    flows, many = coflows.flows, len(lines.sides)
    return TraceProgress(
        first=coflows.first,
        left=coflows.sizes.copy(),
        rate=np.zeros(flows),
        living=np.ones(flows, np.int64),
        members=np.arange(flows, dtype=np.int32),
        alive=np.diff(coflows.first),
        since=np.zeros(coflows.count),
        ends=np.full(coflows.count, np.inf),
        seen=np.full(many, -1.0),
        used=np.zeros(many),
        load=np.zeros(many),
        bottleneck=np.zeros(coflows.count),
        spare=np.zeros(sides),
        crossing=np.zeros(sides, np.int64),
        numbers=np.zeros(2, np.int64),
        changes=np.zeros(room, CHANGE),
    )


@nested
def advance(progress: TraceProgress, coflow: int, now: float) -> None:
    """Subtract what a coflow has sent until now."""
    passed = now - progress.since[coflow]
    if passed > 0 and progress.ends[coflow] < np.inf:
        left, rate, members = progress.left, progress.rate, progress.members
        for k in range(progress.first[coflow], progress.first[coflow] + progress.alive[coflow]):
            left[members[k]] -= rate[members[k]] * passed
    progress.since[coflow] = now


@nested
def end_flows(progress: TraceProgress, flow_sides: Array, coflow: int, now: float, freed: Array) -> None:
    """End the flows of a coflow that are due, return their rates and mark their sides as `freed`."""
    left, rate, members = progress.left, progress.rate, progress.members
    begin, limit = progress.first[coflow], now * (1 + SAME)
    since, kept, passed = progress.since[coflow], begin, now - progress.since[coflow]
    for k in range(begin, begin + progress.alive[coflow]):
        flow = members[k]
        if rate[flow] > 0 and since + left[flow] / rate[flow] <= limit:
            for which in range(2):
                progress.spare[flow_sides[which, flow]] += rate[flow]
                freed[flow_sides[which, flow]] = True
            left[flow], rate[flow], progress.living[flow] = 0.0, 0.0, 0
            note(progress.changes, progress.numbers, now, flow, 0.0)
        else:
            left[flow] -= rate[flow] * passed
            members[kept] = flow
            kept += 1
    progress.alive[coflow] = kept - begin
    progress.since[coflow] = now


@nested
def foresee(progress: TraceProgress, coflow: int) -> None:
    """Find when the next flow of a coflow ends, at the rates it has from `since` on."""
    left, rate, members = progress.left, progress.rate, progress.members
    shortest = np.inf
    begin, end = progress.first[coflow], progress.first[coflow] + progress.alive[coflow]
    for k in range(begin, end):
        if rate[members[k]] > 0:
            shortest = min(shortest, left[members[k]] / rate[members[k]])
    progress.ends[coflow] = progress.since[coflow] + shortest
    if progress.changes.shape[0] > 0:
        for k in range(begin, end):
            note(progress.changes, progress.numbers, progress.since[coflow], members[k], rate[members[k]])


@nested
def weigh(progress: TraceProgress, lines: Lines, coflow: int) -> None:
    """Sum what a coflow has left on its lines."""
    for line in range(lines.first[coflow], lines.first[coflow + 1]):
        total = 0.0
        for k in range(lines.flow_first[line], lines.flow_first[line + 1]):
            total += progress.left[lines.flows[k]]
        progress.load[line] = total


@nested
def moment(end: float, arrivals: Array, queue: Array, came: int) -> float:
    """The next event: an end, or the arrival of the next of `queue` if that is earlier, or equal but for rounding.

    An arrival is never moved, so that nothing begins before it.
    """
    if came < queue.shape[0] and arrivals[queue[came]] <= end * (1 + SAME):
        return float(arrivals[queue[came]])
    return end


@nested
def sort_by(keys: Array, present: Array, arrivals: Array) -> None:
    """Sort coflows by `keys` [C], ties by arrival and number, so that nothing depends on the order before.

    By insertion, as they are nearly in order already.
    """
    for k in range(1, present.shape[0]):
        coflow, at = present[k], k
        while at > 0 and _later(keys, arrivals, present[at - 1], coflow):
            present[at] = present[at - 1]
            at -= 1
        present[at] = coflow


@nested
def _later(keys: Array, arrivals: Array, one: int, other: int) -> bool:
    if keys[one] != keys[other]:
        return bool(keys[one] > keys[other])
    if arrivals[one] != arrivals[other]:
        return bool(arrivals[one] > arrivals[other])
    return one > other


@nested
def rest(spare: float, taken: float, capacity: float) -> float:
    """What is left of a side; a remainder of rounding counts as nothing."""
    left = spare - taken
    return left if left > FULL * capacity else 0.0


@nested
def note(changes: Array, numbers: Array, when: float, flow: int, rate: float) -> None:
    """Record a flow's rate if asked for; changes beyond the room are only counted."""
    if changes.shape[0] > 0:
        at = numbers[CHANGES]
        if at < changes.shape[0]:
            changes[at].when = when
            changes[at].flow = flow
            changes[at].rate = rate
        numbers[CHANGES] = at + 1
