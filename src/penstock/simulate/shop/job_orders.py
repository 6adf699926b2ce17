"""Schedules that place one job after the other: where a search begins."""

from collections.abc import Sequence
from itertools import islice, permutations

from penstock.simulate.shop.schedule import Pick, Schedule, placed
from penstock.simulate.shop.shop import Shop, best_route

_MOST_ORDERS = 120
"""Orders of jobs that are tried: those of five jobs."""


def best_order(shop: Shop) -> Schedule:
    """The shortest schedule of those that place job after job, in all orders or the first 120."""
    routes = tuple(best_route(job) for job in shop.jobs)
    orders = islice(permutations(range(len(shop.jobs))), _MOST_ORDERS)
    return min((_placed_in(shop, routes, order) for order in orders), key=lambda schedule: schedule.makespan)


def _placed_in(shop: Shop, routes: tuple[int, ...], order: Sequence[int]) -> Schedule:
    """Each operation on the machine where it would end first behind all that is there, in the first gap that fits."""
    free, picks = [0.0] * len(shop.machines), []
    for job in order:
        ready = 0.0
        for operation in shop.jobs[job][routes[job]]:
            ready, machine = min((max(ready, free[machine]) + time, machine) for machine, time in operation)
            free[machine] = ready
            picks.append(Pick(job, machine))
    return placed(shop, routes, picks, filling=True)
