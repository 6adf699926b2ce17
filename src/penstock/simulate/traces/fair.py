"""`fair` and `coflowsim-fair`: coflows are unknown; all flows share the sides of ports as equals.

`fair` is max-min: what a flow cannot use of one side because the other limits it goes to others. `coflowsim-fair`
leaves it unused (`equal_shares`).

Flows between the same two ports have one rate. So every pair of ports keeps a clock of the bytes that each of its flows
was sent, and a flow ends when the clock reaches its mark: the cost of an event depends on the pairs, not on the flows.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.processes import call_interruptibly
from penstock.simulate.traces.coflows import Lines, TraceCoflows, lines_of
from penstock.simulate.traces.progress import CHANGE, EVENTS, SAME, copy_to, moment, nested, note, rest

# Max-min fairness by progressive filling: flows on the tightest side get an equal share of it, and so on.

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


_NONE = -1


class Pairs(NamedTuple):
    """The pairs of ports that flows run between."""

    flow_pair: Array  # int64 [F]: the pair of every flow
    lines: Lines  # of one coflow that has a flow for every pair
    first: Array  # int64 [C + 1]: the flows of each coflow
    sizes: Array  # float64 [F]: bytes


class Clocks(NamedTuple):
    """The state of every pair, and its flows as a linked list."""

    present: Array  # int64 [pairs]: how many there are
    sent: Array  # float64 [pairs]: bytes that each flow was sent since the pair was last idle
    speed: Array  # float64 [pairs]: bytes/s of each flow
    lowest: Array  # float64 [pairs]: the mark that is reached next
    head: Array  # int64 [pairs]: a flow
    following: Array  # int64 [F]: the next flow of the list
    mark: Array  # float64 [F]: bytes on the clock when the flow ends


def pairs_of(coflows: TraceCoflows) -> Pairs:
    """The pairs of ports of coflows."""
    found, which = np.unique(coflows.sources.astype(np.int64) * coflows.ports + coflows.targets, return_inverse=True)
    sources, targets = np.divmod(found, coflows.ports)
    together = TraceCoflows(
        coflows.ports, np.zeros(1, np.int64), np.zeros(1), np.array([0, len(found)]), sources, targets,
        np.ones(len(found)),
    )  # fmt: skip
    return Pairs(which.astype(np.int64), lines_of(together), coflows.first, coflows.sizes)


def run_fair(
    arrivals: Array, queue: Array, pairs: Pairs, capacities: Array, room: int, redistribute: bool
) -> tuple[Array, Array, Array]:
    """When every coflow is complete (seconds), how many events and changes there were, and the changes."""
    many, flows = pairs.lines.flow_sides.shape[1], len(pairs.sizes)
    clocks = Clocks(
        present=np.zeros(many, np.int64),
        sent=np.zeros(many),
        speed=np.zeros(many),
        lowest=np.full(many, np.inf),
        head=np.full(many, _NONE, np.int64),
        following=np.full(flows, _NONE, np.int64),
        mark=np.zeros(flows),
    )
    numbers, changes = np.zeros(2, np.int64), np.zeros(room, CHANGE)
    owners = np.repeat(np.arange(len(arrivals)), np.diff(pairs.first))
    completions, waits = arrivals.copy(), np.diff(pairs.first)
    call_interruptibly(
        lambda: _run(
            arrivals, queue, owners, pairs, clocks, capacities, waits, completions, numbers, changes, redistribute
        )
    )
    return completions, numbers, changes


@njit(nogil=True, cache=True, error_model="numpy")
def _run(
    arrivals: Array,
    queue: Array,
    owners: Array,
    pairs: Pairs,
    clocks: Clocks,
    capacities: Array,
    waits: Array,
    completions: Array,
    numbers: Array,
    changes: Array,
    redistribute: bool,
) -> None:
    """Find when every coflow is complete; `waits` counts the flows that each still has."""
    busy, count, came = np.empty(clocks.present.shape[0], np.int64), 0, 0
    crossing, spare = np.zeros(capacities.shape[0], np.int64), np.empty(capacities.shape[0])
    now, end = 0.0, np.inf
    while came < queue.shape[0] or count > 0:
        before, now = now, moment(end, arrivals, queue, came)
        numbers[EVENTS] += 1
        count = _let_go(clocks, busy, count, before, now, owners, waits, completions, numbers, changes)
        while came < queue.shape[0] and arrivals[queue[came]] <= now:
            coflow = queue[came]
            came += 1
            for flow in range(pairs.first[coflow], pairs.first[coflow + 1]):
                pair = pairs.flow_pair[flow]
                if clocks.present[pair] == 0:
                    busy[count] = pair
                    count += 1
                _enter(clocks, pair, flow, pairs.sizes[flow])
        if redistribute:
            copy_to(spare, capacities)
            fill(pairs.lines, 0, clocks.present, capacities, spare, crossing, clocks.speed)
        else:
            share_equally(pairs.lines.flow_sides, clocks.present, busy[:count], capacities, crossing, clocks.speed)
        end = np.inf
        for k in range(count):
            end = min(end, (clocks.lowest[busy[k]] - clocks.sent[busy[k]]) / clocks.speed[busy[k]])
        end += now
        if changes.shape[0] > 0:
            _note_all(clocks, busy[:count], now, numbers, changes)


@nested
def _enter(clocks: Clocks, pair: int, flow: int, size: float) -> None:
    """Add a flow to those that share the ports."""
    clocks.mark[flow] = clocks.sent[pair] + size
    clocks.lowest[pair] = min(clocks.lowest[pair], clocks.mark[flow])
    clocks.following[flow] = clocks.head[pair]
    clocks.head[pair] = flow
    clocks.present[pair] += 1


@nested
def _let_go(
    clocks: Clocks,
    busy: Array,
    count: int,
    before: float,
    now: float,
    owners: Array,
    waits: Array,
    completions: Array,
    numbers: Array,
    changes: Array,
) -> int:
    """Advance all clocks and end flows that have reached their marks; returns how many pairs are still busy."""
    limit, kept = now * (1 + SAME), 0
    for k in range(count):
        pair = busy[k]
        if before + (clocks.lowest[pair] - clocks.sent[pair]) / clocks.speed[pair] <= limit:
            last, flow, lowest = _NONE, clocks.head[pair], np.inf
            while flow != _NONE:
                after = clocks.following[flow]
                if before + (clocks.mark[flow] - clocks.sent[pair]) / clocks.speed[pair] <= limit:
                    if last == _NONE:
                        clocks.head[pair] = after
                    else:
                        clocks.following[last] = after
                    clocks.present[pair] -= 1
                    note(changes, numbers, now, flow, 0.0)
                    waits[owners[flow]] -= 1
                    if waits[owners[flow]] == 0:
                        completions[owners[flow]] = now
                else:
                    last, lowest = flow, min(lowest, clocks.mark[flow])
                flow = after
            clocks.lowest[pair] = lowest
        clocks.sent[pair] += clocks.speed[pair] * (now - before)
        if clocks.present[pair] == 0:
            clocks.sent[pair] = 0.0
        else:
            busy[kept] = pair
            kept += 1
    return kept


@nested
def _note_all(clocks: Clocks, busy: Array, now: float, numbers: Array, changes: Array) -> None:
    """Write down the rates of all flows."""
    for pair in busy:
        flow = clocks.head[pair]
        while flow != _NONE:
            note(changes, numbers, now, flow, clocks.speed[pair])
            flow = clocks.following[flow]
