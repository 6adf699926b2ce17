"""Every schedule of up to four jobs: the shortest one is found, and proved to be it."""

from dataclasses import replace

from penstock.errors import PenstockError
from penstock.simulate.shop.job_orders import best_order
from penstock.simulate.shop.schedule import Schedule
from penstock.simulate.shop.schedulers.scheduler import NoOptions, Scheduler
from penstock.simulate.shop.search import Search
from penstock.simulate.shop.shop import Shop

MOST_JOBS = 4


def shortest(shop: Shop, options: NoOptions) -> Schedule:
    """The shortest schedule of a small shop."""
    if len(shop.jobs) > MOST_JOBS:
        raise PenstockError(
            f"Schedule enumeration is for up to {MOST_JOBS} jobs, and {shop.name} has {len(shop.jobs)}: use bilevel or"
            " cp-sat.",
            code="too-large",
        )
    found = Search(shop, best_order(shop)).run()
    return replace(found, proved=found.makespan)


ENUMERATION = Scheduler("enumeration", shortest)
