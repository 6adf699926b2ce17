"""What a scheduler of job shops is, and the simplest one: first in, first out."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from penstock.graph.documents import StrictDocument
from penstock.simulate.shop.schedule import Pick, ShopSchedule, placed
from penstock.simulate.shop.shop import Shop, best_route

# What a scheduler of job shops is.


class NoOptions(StrictDocument):
    """Nothing can be chosen."""


@dataclass(frozen=True)
class Scheduler:
    """One way to schedule: `schedule(shop, options)`."""

    name: str
    schedule: Callable[[Shop, Any], ShopSchedule]
    options: type[StrictDocument] = NoOptions


# First in, first out: whatever is ready first is begun first, on the machine where it ends first.


def in_order_of_arrival(shop: Shop, options: NoOptions) -> ShopSchedule:
    """Jobs by number, each by the route that is shortest alone; of operations ready at once the first job's."""
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
