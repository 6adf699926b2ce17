"""The interface of schedulers of job shops, and the simplest one: first in, first out."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from penstock.graph.documents import StrictDocument
from penstock.simulate.shop.schedule import Pick, ShopSchedule, placed
from penstock.simulate.shop.shop import Shop, best_route

# The interface of schedulers of job shops.


class NoOptions(StrictDocument):
    """No options."""


@dataclass(frozen=True)
class Scheduler:
    """One way to schedule: `schedule(shop, options)`."""

    name: str
    schedule: Callable[[Shop, Any], ShopSchedule]
    options: type[StrictDocument] = NoOptions


# First in, first out: the operation that is ready first is begun first, on the machine where it ends first.


def in_order_of_arrival(shop: Shop, options: NoOptions) -> ShopSchedule:
    """Jobs by number, each by the route that is shortest alone; ties go to the first job."""
    routes = tuple(best_route(job) for job in shop.jobs)
    free, picks = [0.0] * len(shop.machines), []
    arrived = [(0.0, job, 0) for job in range(len(shop.jobs))]
    heapify(arrived)
    while arrived:
        ready, job, done = heappop(arrived)
        route = shop.jobs[job][routes[job]]
        end, machine = min((max(ready, free[machine]) + time, machine) for machine, time in route[done])
        free[machine] = end
        picks.append(Pick(job, machine))
        if done + 1 < len(route):
            heappush(arrived, (end, job, done + 1))
    return placed(shop, routes, picks)


FIFO = Scheduler("fifo", in_order_of_arrival)
