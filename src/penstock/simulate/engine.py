"""Events in continuous time: tasks and flows end, what waited for them starts, and links are shared anew.

Rates change only when something starts or ends, so nothing happens in between and no time step is needed.
"""

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import borrowed, inner, njit
from penstock.simulate.sharing.groups import clear_group, enter, share_by_weight, shift_load, take_first, touch
from penstock.simulate.sharing.priority import group_of_rank, open_ranks, share_by_rank
from penstock.simulate.sharing.queues import join_queue, leave_queue, share_in_order
from penstock.simulate.state import (
    AT_WORK,
    BY_ARRIVAL,
    BY_TIME_LEFT,
    CHANGES,
    DONE,
    FLUID,
    NONE,
    PRIORITY,
    PROPORTIONAL,
    READY,
    STACKED,
    TIMED,
    Case,
    EngineScratch,
    Routes,
    Shape,
    Terms,
    TimelineRecord,
    TransportState,
    least_leaf,
    leaves_for,
    pop_task,
    push_task,
    record_for,
    scratch_for,
    set_leaf,
)
from penstock.simulate.symmetry import MANY, quotient_of
from penstock.simulate.transport import flow_begins, flows_end, transport_state

SAME = 1e-12  # relative: ends closer than this are one event


@njit(nogil=True, cache=True, error_model="numpy")
def open_run(family: int, shape: Shape, routes: Routes, terms: Terms, scratch: EngineScratch) -> None:
    """Prepare the scratch memory for a new run."""
    links, paths, groups, numbers = routes.links, routes.paths, scratch.groups, scratch.numbers
    one_group_per_path = family != PRIORITY or terms.rank.size == 1
    scratch.tree[: 2 * leaves_for(paths.shape[0]) if one_group_per_path else scratch.tree.shape[0]] = np.inf
    numbers[:] = 0
    for link in range(links.shape[0]):
        scratch.spare[0, link] = links[link].capacity
        links[link].active = 0
        links[link].load = 0.0
        links[link].crossing = 0
        links[link].dirty = 0
    for path in range(paths.shape[0]):
        paths[path].groups = NONE
        paths[path].member = NONE
        paths[path].filling = NONE
        if family != PRIORITY:
            clear_group(groups, path, path, 0, path, 0.0)
    if family == PRIORITY:
        open_ranks(groups, scratch.rows, scratch.closed, numbers)
    _open_iterations(shape.waits, scratch.waiting, scratch.ready, numbers)
    scratch.clock[0] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def run(
    family: int,
    shape: Shape,
    routes: Routes,
    seconds: Array,
    slowness: Array,
    sizes: Array,
    terms: Terms,
    scratch: EngineScratch,
    record: TimelineRecord,
    transport: TransportState,
    moments: int,
) -> bool:
    """Simulate `seconds.shape[0]` iterations for so many moments in time; returns whether the end was reached.

    `seconds` is [iterations, tasks], multiplied by `slowness` [tasks]; `sizes` is [iterations, flows] in bytes. All
    state stays in `scratch`, so that the next call continues where this one stopped; `scratch.clock` has the seconds
    simulated so far and `scratch.numbers` the counters.
    """
    starts, followers, lags = borrowed(shape.starts), borrowed(shape.followers), borrowed(shape.lags)
    flow_path, paths, path_links = borrowed(routes.flow_path), borrowed(routes.paths), borrowed(routes.path_links)
    links, crossing_paths = borrowed(routes.links), borrowed(routes.crossing_paths)
    link_crossings, places = borrowed(routes.link_crossings), borrowed(routes.crossing_places)
    path_copies, flow_copies = borrowed(routes.path_copies), borrowed(routes.flow_copies)
    weight, size, rank, ceiling = borrowed(terms.weight), borrowed(terms.size), borrowed(terms.rank), terms.ceiling
    groups, flows, tree = borrowed(scratch.groups), borrowed(scratch.flows), borrowed(scratch.tree)
    order, touched = borrowed(scratch.order), borrowed(scratch.touched)
    spare, rows, closed = borrowed(scratch.spare), borrowed(scratch.rows), borrowed(scratch.closed)
    dirty, ends = borrowed(scratch.dirty), borrowed(scratch.ends)
    tasks, waiting, ended = borrowed(scratch.tasks), borrowed(scratch.waiting), borrowed(scratch.ended)
    ready, numbers, begins = borrowed(scratch.ready), borrowed(scratch.numbers), borrowed(record.starts)
    finishes, owner, changes = borrowed(record.ends), borrowed(record.owner), borrowed(record.changes)
    seconds, slowness, sizes = borrowed(seconds), borrowed(slowness), borrowed(sizes)
    latency, round_trip, laws = borrowed(transport.latency), borrowed(transport.round_trip), borrowed(transport.terms)
    ports, luck = borrowed(transport.ports), borrowed(transport.luck)
    begun, idle = borrowed(transport.begun), borrowed(transport.idle)
    used, crowd, late = borrowed(transport.used), borrowed(transport.crowd), borrowed(record.late)
    if family != PRIORITY or rank.size == 1:
        # One group per path: a smaller tree is enough.
        tree = tree[: 2 * leaves_for(paths.shape[0])]
    now = scratch.clock[0]
    for _ in range(moments):
        while numbers[READY] > 0:
            _begin(
                family, now, shape.tasks, seconds, slowness, sizes, flow_path, flow_copies, weight, size, rank, groups,
                flows, links, paths, path_links, link_crossings, places, path_copies, order, touched, dirty, ends,
                tasks, ended, ready, begins, owner, changes, numbers, latency, begun, idle, used, crowd,
            )  # fmt: skip
            _release(now, starts, followers, lags, waiting, ended, ready, finishes, numbers)
        if family == PROPORTIONAL:
            share_by_weight(
                groups, flows, tree, links, crossing_paths, link_crossings, places, paths, path_links, dirty, ceiling,
                now, changes, numbers,
            )  # fmt: skip
        elif family == PRIORITY:
            share_by_rank(
                groups, flows, tree, links, crossing_paths, link_crossings, places, path_copies, paths, path_links,
                order, touched, spare, rows, closed, dirty, now, changes, numbers,
            )  # fmt: skip
        else:
            share_in_order(
                groups, flows, tree, links, paths, path_links, path_copies, order, spare, family == BY_TIME_LEFT, now,
                changes, numbers,
            )  # fmt: skip
        first = tree[1]
        if numbers[AT_WORK] > 0:
            first = min(first, ends[0])
        if first == np.inf:
            return True
        now = first
        scratch.clock[0] = now
        _collect(
            family, now, shape.tasks, shape.flows, flow_path, flow_copies, weight, groups, flows, tree, links, paths,
            path_links, link_crossings, places, path_copies, touched, dirty, ends, tasks, ended, numbers, sizes,
            latency, round_trip, laws, ports, luck, begun, idle, used, crowd, late,
        )  # fmt: skip
        _release(now, starts, followers, lags, waiting, ended, ready, finishes, numbers)
    return False


@inner
def _open_iterations(waits: Array, waiting: Array, ready: Array, numbers: Array) -> None:
    """Initialise what everything waits for; items that wait for nothing are ready."""
    last, items = waits.shape[0] - 1, waits.shape[1]
    for n in range(waiting.shape[0]):
        for item in range(items):
            waiting[n, item] = waits[min(n, last), item]
            if waiting[n, item] == 0:
                ready[numbers[READY]] = n * items + item
                numbers[READY] += 1


@inner
def _begin(
    family: int,
    now: float,
    task_count: int,
    seconds: Array,
    slowness: Array,
    sizes: Array,
    flow_path: Array,
    flow_copies: Array,
    weight: Array,
    size: Array,
    rank: Array,
    groups: Array,
    flows: Array,
    links: Array,
    paths: Array,
    path_links: Array,
    link_crossings: Array,
    places: Array,
    path_copies: Array,
    order: Array,
    touched: Array,
    dirty: Array,
    ends: Array,
    tasks: Array,
    ended: Array,
    ready: Array,
    begins: Array,
    owner: Array,
    changes: Array,
    numbers: Array,
    latency: Array,
    begun: Array,
    idle: Array,
    used: Array,
    crowd: Array,
) -> None:
    """Start all that is ready; items without duration end at once."""
    items = task_count + sizes.shape[1]
    for k in range(numbers[READY]):
        n, item = ready[k] // items, ready[k] % items
        if begins.shape[0] > 0:
            begins[n, item] = now
        flow = item - task_count
        if flow < 0 and seconds[n, item] * slowness[item] > 0:
            end = now + seconds[n, item] * slowness[item]
            push_task(ends, tasks, numbers[AT_WORK], end, n * task_count + item)
            numbers[AT_WORK] += 1
        elif flow >= 0 and flow_path[flow] >= 0 and sizes[n, flow] > 0:
            instance, path, copies = n * sizes.shape[1] + flow, flow_path[flow], flow_copies[flow]
            serial, served = instance, _term(size, n, flow)
            if latency.shape[0] > 0:
                flow_begins(now, instance, path, copies, paths, path_links, path_copies, begun, idle, used, crowd)
            if family == PROPORTIONAL:
                enter(groups, flows, path, instance, served, copies, now)
                shift_load(
                    links, paths, path_links, link_crossings, places, path_copies, dirty, numbers, path,
                    _term(weight, n, flow), copies,
                )  # fmt: skip
                serial = path
            elif family == PRIORITY:
                group = group_of_rank(groups, paths, numbers, path, _term(rank, n, flow), now)
                touch(groups, touched, numbers, group)
                enter(groups, flows, group, instance, served, copies, now)
                serial = int(groups[group].serial)
            else:
                by_time_left = family == BY_TIME_LEFT
                join_queue(groups, flows, paths, order, instance, path, served, by_time_left, now, changes, numbers)
            if owner.shape[0] > 0:
                # The group whose speed the flow has.
                owner[instance] = serial
        else:
            ended[numbers[STACKED]] = ready[k]
            numbers[STACKED] += 1
    numbers[READY] = 0


@inner
def _release(
    now: float,
    starts: Array,
    followers: Array,
    lags: Array,
    waiting: Array,
    ended: Array,
    ready: Array,
    finishes: Array,
    numbers: Array,
) -> None:
    """Update the items that wait for what has ended; those that wait for nothing more are ready."""
    iterations, items = waiting.shape
    for k in range(numbers[STACKED]):
        n, item = ended[k] // items, ended[k] % items
        if finishes.shape[0] > 0:
            finishes[n, item] = now
        for edge in range(starts[item], starts[item + 1]):
            later, follower = n + lags[edge], followers[edge]
            if later < iterations:
                waiting[later, follower] -= 1
                if waiting[later, follower] == 0:
                    ready[numbers[READY]] = later * items + follower
                    numbers[READY] += 1
    numbers[DONE] += numbers[STACKED]
    numbers[STACKED] = 0


@inner
def _collect(
    family: int,
    now: float,
    task_count: int,
    flow_count: int,
    flow_path: Array,
    flow_copies: Array,
    weight: Array,
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    paths: Array,
    path_links: Array,
    link_crossings: Array,
    places: Array,
    path_copies: Array,
    touched: Array,
    dirty: Array,
    ends: Array,
    tasks: Array,
    ended: Array,
    numbers: Array,
    sizes: Array,
    latency: Array,
    round_trip: Array,
    laws: Array,
    ports: Array,
    luck: Array,
    begun: Array,
    idle: Array,
    used: Array,
    crowd: Array,
    late: Array,
) -> None:
    """Collect all items that end now."""
    items, stacked, limit = task_count + flow_count, 0, now * (1 + SAME)
    while numbers[AT_WORK] > 0 and ends[0] <= limit:
        task = pop_task(ends, tasks, numbers[AT_WORK])
        numbers[AT_WORK] -= 1
        if task >= 0:
            ended[stacked] = (task // task_count) * items + task % task_count
        else:
            instance = -1 - task
            ended[stacked] = (instance // flow_count) * items + task_count + instance % flow_count
        stacked += 1
    sent = stacked
    while tree[1] <= limit:
        first = stacked
        group = least_leaf(tree)
        set_leaf(tree, group, np.inf)
        if family >= BY_ARRIVAL:
            ended[stacked] = groups[group].root
            stacked += 1
            leave_queue(groups, flows, group)
        else:
            if family == PRIORITY:
                touch(groups, touched, numbers, group)
            clock = flows[groups[group].root].key
            groups[group].clock = clock
            groups[group].since = now
            while groups[group].root != NONE and flows[groups[group].root].key <= clock * (1 + SAME):
                ended[stacked] = groups[group].root
                stacked += 1
                take_first(groups, flows, flow_copies, group)
        for k in range(first, stacked):
            n, flow = ended[k] // flow_count, ended[k] % flow_count
            ended[k] = n * items + task_count + flow
            if family == PROPORTIONAL:
                shift_load(
                    links, paths, path_links, link_crossings, places, path_copies, dirty, numbers, flow_path[flow],
                    _term(weight, n, flow), -flow_copies[flow],
                )  # fmt: skip
    if latency.shape[0] > 0 and stacked > sent:
        stacked = flows_end(
            now, sent, stacked, task_count, flow_count, sizes, flow_path, flow_copies, paths, path_links, path_copies,
            links, latency, round_trip, laws, ports, luck, begun, idle, used, crowd, late, ended, ends, tasks, numbers,
        )  # fmt: skip
    numbers[TIMED] += stacked
    numbers[STACKED] = stacked


@inner
def _term(values: Array, n: int, flow: int) -> Any:
    """The entry [n, flow]; an array with a single row or column is used for all."""
    return values[n if values.shape[0] > 1 else 0, flow if values.shape[1] > 1 else 0]


# Carry a placed workload out under a policy's terms: what happened when, and how long it took.

_LEAST_MOMENTS = 64
_PATIENCE_S = 0.1  # a kernel handles no signals: it returns about this often
_NEVER = 1 << 62
_EQUALS = (PROPORTIONAL, PRIORITY)  # ways of sharing in which equal flows get equal rates


class SimulatedTimes(NamedTuple):
    """The record of a run; empty arrays for what was not asked for."""

    makespan: float  # seconds
    events: int  # ends of tasks and flows that took time
    record: TimelineRecord


class Executor:
    """Runs cases of one workload and length one after the other, in reused memory."""

    def __init__(self, many: int = MANY) -> None:
        """Cases with at least `many` items in all iterations are simulated with one representative of equal items."""
        self._many = many
        self._scratch: EngineScratch | None = None
        self._moments = _LEAST_MOMENTS

    def run(self, family: int, case: Case, terms: Terms, times: bool = False, segments: bool = False) -> SimulatedTimes:
        """Simulate a case; `times` records starts and ends, `segments` also every change of a flow's rate."""
        if family in _EQUALS and case.amounts.seconds.size + case.amounts.sizes.size >= self._many:
            quotient = quotient_of(case, terms)
            if quotient is not None:
                few = Executor(many=_NEVER).run(family, quotient.case, quotient.terms, times, segments)
                return SimulatedTimes(few.makespan, _timed(case), quotient.expanded(few.record))
        return self._run_all(family, case, terms, times, segments)

    def _run_all(self, family: int, case: Case, terms: Terms, times: bool, segments: bool) -> SimulatedTimes:
        """Carry out every item of a case."""
        iterations = len(case.amounts.seconds)
        if self._scratch is None:
            self._scratch = scratch_for(case.shape, iterations, len(case.routes.links), case.transport is not None)
        room = 8 * case.amounts.sizes.size if segments else 0
        while True:
            record = record_for(case.shape, iterations, times, room, case.transport is not None)
            self._carry_out(family, case, terms, self._scratch, record)
            numbers = self._scratch.numbers
            if numbers[CHANGES] <= room:
                break
            room = int(numbers[CHANGES])
        if numbers[DONE] != iterations * (case.shape.tasks + case.shape.flows):
            raise PenstockError(
                "The simulation stopped before everything had run: some item waits for a later iteration.",
                code="unexpected-failure",
            )
        record = record._replace(changes=record.changes[: numbers[CHANGES]])
        return SimulatedTimes(float(self._scratch.clock[0]), int(numbers[TIMED]), record)

    def _carry_out(self, family: int, case: Case, terms: Terms, scratch: EngineScratch, record: TimelineRecord) -> None:
        """Run to the end, returning from the kernel often enough that Ctrl-C is handled."""
        seconds, sizes = case.amounts
        transport = FLUID if case.transport is None else transport_state(case.transport, case.routes, sizes.size)
        open_run(family, case.shape, case.routes, terms, scratch)
        while True:
            began = perf_counter()
            if run(
                family, case.shape, case.routes, seconds, case.slowness, sizes, terms, scratch, record, transport,
                self._moments,
            ):  # fmt: skip
                return
            took = perf_counter() - began
            if took < _PATIENCE_S / 4:
                self._moments *= 4
            elif took > _PATIENCE_S:
                self._moments = max(_LEAST_MOMENTS, self._moments // 2)


def _timed(case: Case) -> int:
    """The number of tasks and flows of all iterations that take time."""
    tasks = (case.amounts.seconds * case.slowness > 0).sum()
    return int(tasks + (case.amounts.sizes[:, case.routes.flow_path >= 0] > 0).sum())
