"""Ways to schedule a flexible job shop.

`SCHEDULERS` lists them. A new scheduler is one file and one line here (docs/simulating.md). The result of any of them
is checked before it is returned. `enumeration` has the exact search; `bilevel` uses it for groups.
"""

from typing import Any

from pydantic import ValidationError

from penstock.errors import PenstockError, nearest
from penstock.graph.documents import first_problem
from penstock.simulate.shop.schedule import ShopSchedule, check_schedule
from penstock.simulate.shop.schedulers.bilevel import BILEVEL
from penstock.simulate.shop.schedulers.cp_sat import CP_SAT
from penstock.simulate.shop.schedulers.enumeration import ENUMERATION
from penstock.simulate.shop.schedulers.scheduler import FIFO, Scheduler
from penstock.simulate.shop.shop import Shop

SCHEDULERS = {each.name: each for each in (FIFO, BILEVEL, ENUMERATION, CP_SAT)}

__all__ = ["SCHEDULERS", "Scheduler", "make_schedule", "scheduler_named"]


def make_schedule(shop: Shop, name: str, options: dict[str, Any] | None = None) -> ShopSchedule:
    """The schedule that a scheduler makes, checked; `options` are fields of its own."""
    scheduler = scheduler_named(name)
    try:
        chosen = scheduler.options.model_validate(options or {})
    except ValidationError as error:
        raise PenstockError(f"Options of schedule {name}: {first_problem(error)}.", code="invalid-document") from None
    found = scheduler.schedule(shop, chosen)
    check_schedule(shop, found)
    return found


def scheduler_named(name: str) -> Scheduler:
    """The scheduler of that name."""
    if name not in SCHEDULERS:
        raise PenstockError(f"No schedule is called {name!r}{nearest(name, SCHEDULERS)}", code="unknown-name")
    return SCHEDULERS[name]
