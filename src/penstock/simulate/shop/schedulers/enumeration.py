"""An exact search for shops of up to four jobs, which finds the shortest schedule and proves it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, permutations
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.simulate.shop.schedule import NoOptions, Pick, Scheduler, ShopSchedule, placed
from penstock.simulate.shop.shop import Choice, Route, Shop, best_route, quickest

# Schedules that place one job after the other, from which a search begins.

_MOST_ORDERS = 120
"""The most orders of jobs that are tried: those of five jobs."""


def best_order(shop: Shop) -> ShopSchedule:
    """The shortest schedule of those that place job after job, in all orders or the first 120."""
    routes = tuple(best_route(job) for job in shop.jobs)
    orders = islice(permutations(range(len(shop.jobs))), _MOST_ORDERS)
    return min((_placed_in(shop, routes, order) for order in orders), key=lambda schedule: schedule.makespan)


def _placed_in(shop: Shop, routes: tuple[int, ...], order: Sequence[int]) -> ShopSchedule:
    """Each operation on the machine where it would end first, in the first gap that fits."""
    free, picks = [0.0] * len(shop.machines), []
    for job in order:
        ready = 0.0
        for operation in shop.jobs[job][routes[job]]:
            ready, machine = min((max(ready, free[machine]) + time, machine) for machine, time in operation)
            free[machine] = ready
            picks.append(Pick(job, machine))
    return placed(shop, routes, picks, filling=True)


# The exact search: operations are placed in order of their start, and of equivalent partial schedules one is kept. A
# state says how far every job is, when it can continue, and when every machine is free. Nothing starts before what was
# placed last, so earlier times do not matter: all times are raised to it. A state that is dominated by another at the
# same point is dropped, and so is one whose remaining work cannot beat the best known schedule. With a limit on the
# states after each operation it is a beam search: the most promising ones are kept, and nothing is proved.

_UNSTARTED = -1


class _State(NamedTuple):
    """Times, and how they were reached: the last pick and the state before it."""

    ready: tuple[float, ...]
    free: tuple[float, ...]
    pick: Pick | None
    before: "_State | None"


Progress = tuple[tuple[int, int], ...]
"""For every job its route, or _UNSTARTED, and the number of completed operations."""


class Search:
    """Searches the best schedule of a shop, starting from a known one.

    `width` limits the states that are kept after each operation; None: no limit, and the result is optimal.
    """

    def __init__(self, shop: Shop, known: ShopSchedule, width: int | None = None) -> None:
        self._shop, self._best, self._width = shop, known, width
        self._rest = [[_remaining(route) for route in job] for job in shop.jobs]

    def run(self) -> ShopSchedule:
        """The best schedule: the known one, if none is shorter."""
        shop = self._shop
        start: Progress = ((_UNSTARTED, 0),) * len(shop.jobs)
        nothing = _State((0.0,) * len(shop.jobs), (0.0,) * len(shop.machines), None, None)
        level: dict[Progress, list[_State]] = {start: [nothing]}
        while level:
            following: dict[Progress, list[_State]] = defaultdict(list)
            for progress, states in level.items():
                for state in states:
                    self._extend(progress, state, following)
            level = following if self._width is None else self._promising(following)
        return self._best

    def _extend(self, progress: Progress, state: _State, following: dict[Progress, list[_State]]) -> None:
        for job, (route, done) in enumerate(progress):
            ways = range(len(self._shop.jobs[job])) if route == _UNSTARTED else (route,)
            for way in ways:
                operations = self._shop.jobs[job][way]
                if done == len(operations):
                    continue
                for choice in operations[done]:
                    reached = (*progress[:job], (way, done + 1), *progress[job + 1 :])
                    self._add(reached, _after(state, job, choice), following)

    def _add(self, progress: Progress, state: _State, following: dict[Progress, list[_State]]) -> None:
        if self._bound(progress, state) >= self._best.makespan * (1 - 1e-12):
            return
        if all(
            route != _UNSTARTED and done == len(self._shop.jobs[job][route])
            for job, (route, done) in enumerate(progress)
        ):
            self._best = self._schedule(progress, state)
            return
        others = following[progress]
        for other in others:
            if _nowhere_later(other, state):
                return
        others[:] = [other for other in others if not _nowhere_later(state, other)]
        others.append(state)

    def _promising(self, level: dict[Progress, list[_State]]) -> dict[Progress, list[_State]]:
        """The states with the lowest bounds, and of equal ones those whose machines are free earlier."""
        assert self._width is not None
        ranked = [(self._bound(at, state), sum(state.free), at, state) for at, some in level.items() for state in some]
        ranked.sort(key=lambda each: each[:2])
        kept: dict[Progress, list[_State]] = defaultdict(list)
        for _, _, progress, state in ranked[: self._width]:
            kept[progress].append(state)
        return kept

    def _bound(self, progress: Progress, state: _State) -> float:
        """A lower bound on the makespan: the longest job, and all remaining work on all machines."""
        longest, work = 0.0, sum(state.free)
        for job, (route, done) in enumerate(progress):
            rest = min(each[0] for each in self._rest[job]) if route == _UNSTARTED else self._rest[job][route][done]
            longest = max(longest, state.ready[job] + rest)
            work += rest
        return max(longest, work / len(state.free))

    def _schedule(self, progress: Progress, state: _State) -> ShopSchedule:
        picks = []
        at: _State | None = state
        while at is not None and at.pick is not None:
            picks.append(at.pick)
            at = at.before
        return placed(self._shop, tuple(route for route, _ in progress), reversed(picks))


def _after(state: _State, job: int, choice: Choice) -> _State:
    start = max(state.ready[job], state.free[choice.machine])
    end = start + choice.time
    ready = [max(time, start) for time in state.ready]
    free = [max(time, start) for time in state.free]
    ready[job] = free[choice.machine] = end
    return _State(tuple(ready), tuple(free), Pick(job, choice.machine), state)


def _nowhere_later(one: _State, other: _State) -> bool:
    return all(a <= b for a, b in zip(one.free, other.free, strict=True)) and all(
        a <= b for a, b in zip(one.ready, other.ready, strict=True)
    )


def _remaining(route: Route) -> list[float]:
    """The least time of the operations from each one on, and 0 after the last."""
    found = [0.0]
    for operation in reversed(route):
        found.append(found[-1] + quickest(operation).time)
    return found[::-1]


# The shortest schedule of up to four jobs, with proof.

MOST_JOBS = 4


def shortest(shop: Shop, options: NoOptions) -> ShopSchedule:
    """The shortest schedule of a small shop."""
    if len(shop.jobs) > MOST_JOBS:
        raise PenstockError(
            f"Schedule enumeration is for up to {MOST_JOBS} jobs, and {shop.name} has {len(shop.jobs)}: use"
            " local-search or cp-sat.",
            code="too-large",
        )
    found = Search(shop, best_order(shop)).run()
    return replace(found, proved=found.makespan)


ENUMERATION = Scheduler("enumeration", shortest)
