"""A list schedule by the longest remaining path, improved by moving operations of its critical path.

The list schedule takes, of the operations that could begin before the one that would end first ends on that machine,
the one whose job has the longest way to go (Giffler and Thompson). A move takes one operation of a critical path out
and puts it back at another place of one of its machines. With the longest paths to and from all others, found once
without it, every place's makespan is known exactly: the longer of the path through it and the longest without it. A
move may make the schedule longer by a threshold that falls to zero. Draws are hashes, and moves are counted, not timed:
the result is the same everywhere.
"""

from typing import NamedTuple

import numpy as np
from pydantic import Field

from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument
from penstock.graph.hashing import below, draw, key_of
from penstock.kernels import inner, njit
from penstock.simulate.shop.schedule import NoOptions, Pick, Scheduler, ShopSchedule, in_order_of_arrival, placed
from penstock.simulate.shop.shop import Shop, best_route, quickest

_SEARCHES = 5
"""Searches that share the moves, each from the list schedule: its draws decide more than its length."""
_THRESHOLD = 0.08
"""By what share of the best makespan a schedule may be longer at first; it falls with the square of the moves left."""
_ROUNDING = 1 - 1e-12
"""Sums of the same times in another order differ by less."""


class LocalSearchOptions(StrictDocument):
    """How long it searches, and from which draws."""

    moves: int = Field(100_000, ge=0, le=100_000_000, description="moves that are tried, of all five searches")
    seed: int = Field(0, ge=0, description="of the operations and places that are tried")


class _Operations(NamedTuple):
    """All operations, job after job, and the machines that can do each: first[o] : first[o + 1]."""

    job: Array  # int32 [operations + 1]; the last is -1
    first: Array  # int32 [operations + 1]
    machine: Array  # int32 [choices]
    time: Array  # float64 [choices]
    rest: Array  # float64 [operations]: the least time from its beginning to the end of its job


def local_search(shop: Shop, options: LocalSearchOptions) -> ShopSchedule:
    """The best schedule that was met; first in, first out where that is shorter."""
    routes = [best_route(job) for job in shop.jobs]
    machines = len(shop.machines)
    order, chosen, least = list_schedule(_operations(shop, routes), machines)
    for job, ways in enumerate(shop.jobs):
        for way in range(len(ways)):
            tried = [*routes[:job], way, *routes[job + 1 :]]
            found = list_schedule(_operations(shop, tried), machines)
            if found[2] < least:
                routes, (order, chosen, least) = tried, found
    operations = _operations(shop, routes)
    searches = []
    for number in range(_SEARCHES):
        searched, choice = order.copy(), chosen.copy()
        key = key_of(options.seed, "shop search {}", number)
        least = improve(operations, machines, searched, choice, options.moves // _SEARCHES, key)
        searches.append((least, searched, choice))
    _, order, chosen = min(searches, key=lambda each: each[0])
    picks = [Pick(int(operations.job[each]), int(operations.machine[chosen[each]])) for each in order]
    best = placed(shop, tuple(routes), picks)
    return min(best, in_order_of_arrival(shop, NoOptions()), key=lambda each: each.makespan)


def _operations(shop: Shop, routes: list[int]) -> _Operations:
    chosen = [job[way] for job, way in zip(shop.jobs, routes, strict=True)]
    every = [operation for route in chosen for operation in route]
    choices = [choice for operation in every for choice in operation]
    least = [np.array([quickest(operation).time for operation in route]) for route in chosen]
    return _Operations(
        np.array([*(job for job, route in enumerate(chosen) for _ in route), -1], np.int32),
        np.cumsum([0, *map(len, every)]).astype(np.int32),
        np.array([choice.machine for choice in choices], np.int32),
        np.array([choice.time for choice in choices]),
        np.concatenate([np.cumsum(times[::-1])[::-1] for times in least]),
    )


@njit(nogil=True, cache=True, error_model="numpy")
def list_schedule(operations: _Operations, machines: int) -> tuple[Array, Array, float]:
    """The order of operations, the choice of each, and the makespan."""
    job, first, machine, time, rest = operations
    count, jobs = len(rest), job[len(rest) - 1] + 1
    free, ready, coming = np.zeros(machines), np.zeros(jobs), np.zeros(jobs, np.int64)
    for each in range(count - 1, -1, -1):
        coming[job[each]] = each
    order: Array = np.empty(count, np.int64)
    chosen: Array = np.empty(count, np.int64)
    end, best = np.empty(jobs), np.empty(jobs, np.int64)
    for step in range(count):
        earliest = -1
        for which in range(jobs):
            each = coming[which]
            if job[each] != which:
                continue
            end[which] = np.inf
            for choice in range(first[each], first[each + 1]):
                ends = max(ready[which], free[machine[choice]]) + time[choice]
                if ends < end[which]:
                    end[which], best[which] = ends, choice
            if earliest < 0 or end[which] < end[earliest]:
                earliest = which
        taken, limit = earliest, end[earliest]
        for which in range(jobs):
            each = coming[which]
            if job[each] != which or machine[best[which]] != machine[best[earliest]]:
                continue
            if end[which] - time[best[which]] < limit and rest[each] > rest[coming[taken]]:
                taken = which
        order[step], chosen[coming[taken]] = coming[taken], best[taken]
        free[machine[best[taken]]] = ready[taken] = end[taken]
        coming[taken] += 1
    return order, chosen, free.max()


@inner
def _paths(
    operations: _Operations, order: Array, chosen: Array, left_out: int, to: Array, ready: Array, free: Array
) -> float:
    """Set `to` to the longest path before each operation of an order, one left out; returns the longest of all."""
    longest = 0.0
    ready[:], free[:] = 0.0, 0.0
    for each in order:
        if each != left_out:
            which, machine = operations.job[each], operations.machine[chosen[each]]
            to[each] = max(ready[which], free[machine])
            ready[which] = free[machine] = to[each] + operations.time[chosen[each]]
            longest = max(longest, free[machine])
    return longest


@inner
def _sort_by_heads(order: Array, left_out: int, heads: Array, into: Array) -> None:
    """The order without one operation, sorted by heads; operations that begin at one time stay as they are."""
    size = 0
    for each in order:
        if each != left_out:
            at = size
            while at > 0 and heads[into[at - 1]] > heads[each]:
                into[at] = into[at - 1]
                at -= 1
            into[at] = each
            size += 1


@njit(nogil=True, cache=True, error_model="numpy")
def improve(operations: _Operations, machines: int, order: Array, chosen: Array, moves: int, key: np.uint64) -> float:
    """Leave the best order and choices that so many moves come to in `order` and `chosen`; returns its makespan."""
    time, count, here, choice = operations.time, len(order), order.copy(), chosen.copy()
    others: Array = np.empty(count, np.int64)
    critical: Array = np.empty(count, np.int64)
    heads, tails, ready, free = np.empty(count), np.empty(count), np.empty(count), np.empty(machines)
    places = _Places(np.empty(machines), np.empty(machines, np.int64), np.empty(machines, np.int64))
    best, found = np.inf, 0
    for move in range(moves + 1):
        if found == 0:
            now = _paths(operations, here, choice, -1, heads, ready, free)
            _paths(operations, here[::-1], choice, -1, tails, ready, free)
            for each in range(count):
                if heads[each] + time[choice[each]] + tails[each] >= now * _ROUNDING:
                    critical[found], found = each, found + 1
            if now < best:
                best = now
                for each in range(count):
                    order[each], chosen[each] = here[each], choice[each]
        drawn = draw(key, np.uint64(move))
        each = critical[below(drawn, found)]
        without = _paths(operations, here, choice, each, heads, ready, free)
        _paths(operations, here[::-1], choice, each, tails, ready, free)
        _sort_by_heads(here, each, heads, others)
        place, taken, through = _best_place(operations, here, others, choice, each, heads, tails, places, drawn)
        left = 1.0 - move / max(moves, 1)
        if place >= 0 and max(without, through) <= best * (1.0 + _THRESHOLD * left * left):
            choice[each], found = taken, 0
            for at in range(count):
                here[at] = others[at] if at < place else each if at == place else others[at - 1]
    return best


class _Places(NamedTuple):
    """What is known of each machine while its places for an operation are compared."""

    end: Array  # float64: of the operation before the place
    last: Array  # int64: that operation; -1: none
    way: Array  # int64: the operation's choice of this machine; -1: none, or all places were seen


@inner
def _best_place(
    operations: _Operations,
    here: Array,
    others: Array,
    choice: Array,
    each: int,
    heads: Array,
    tails: Array,
    places: _Places,
    drawn: np.uint64,
) -> tuple[int, int, float]:
    """The place among the others, not the present one, with the shortest longest path through the operation, drawn
    from several; the machine's choice there; and that path. The place is -1 where there is none.

    Places between the operations of its job before and behind are compared: the order stays possible at all of them.
    """
    job, first, machine, time, _ = operations
    rest, follows, leads = len(others) - 1, job[each - 1] == job[each], job[each + 1] == job[each]
    before = heads[each - 1] + time[choice[each - 1]] if follows else 0.0
    behind = tails[each + 1] + time[choice[each + 1]] if leads else 0.0
    places.end[:], places.last[:], places.way[:] = 0.0, -1, -1
    for way in range(first[each], first[each + 1]):
        places.way[machine[way]] = way
    usual = -1
    for other in here:
        if other == each:
            break
        if machine[choice[other]] == machine[choice[each]]:
            usual = other
    place, taken, least, alike, begun, end = -1, -1, np.inf, 0, not follows, rest
    for at in range(rest + len(places.end)):
        # Behind the last operation every machine has one more place.
        other = others[at] if at < rest else -1
        on = machine[choice[other]] if at < rest else at - rest
        if other == each + 1 and leads:
            end = at
        way = places.way[on]
        if begun and way >= 0:
            after = tails[other] + time[choice[other]] if at < rest else 0.0
            through = max(before, places.end[on]) + time[way] + max(behind, after)
            if (way != choice[each] or places.last[on] != usual) and through <= least:
                alike = alike + 1 if through == least else 1
                least = through
                if below(draw(drawn, np.uint64(alike)), alike) == 0:
                    place, taken = min(at, end), way
            if at >= end:
                places.way[on] = -1
        if at < rest:
            places.end[on], places.last[on] = heads[other] + time[choice[other]], other
            begun = begun or other == each - 1
    return place, taken, least


LOCAL_SEARCH = Scheduler("local-search", local_search, LocalSearchOptions)
