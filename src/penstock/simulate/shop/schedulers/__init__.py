"""Ways to schedule a flexible job shop.

`SCHEDULERS` lists them. A new scheduler is one file and one line here (docs/simulating.md). The result of any of them
is checked before it is returned. `enumeration` has the exact search; `bilevel` uses it for groups.
"""

from typing import TYPE_CHECKING, Any

from penstock.registry import Registry

if TYPE_CHECKING:
    from penstock.simulate.shop.schedule import Scheduler, ShopSchedule
    from penstock.simulate.shop.shop import Shop

SCHEDULERS: "Registry[Scheduler]" = Registry(
    "schedule",
    "penstock.shop_schedulers",
    {
        "fifo": "penstock.simulate.shop.schedule:FIFO",
        "local-search": "penstock.simulate.shop.schedulers.local_search:LOCAL_SEARCH",
        "bilevel": "penstock.simulate.shop.schedulers.bilevel:BILEVEL",
        "enumeration": "penstock.simulate.shop.schedulers.enumeration:ENUMERATION",
        "cp-sat": "penstock.simulate.shop.schedulers.cp_sat:CP_SAT",
    },
    "penstock.simulate.shop.schedule:Scheduler",
)


def make_schedule(shop: "Shop", name: str, options: dict[str, Any] | None = None) -> "ShopSchedule":
    """The validated schedule of a scheduler; `options` are the fields of its own options."""
    # Imported here, so that help lists the schedulers without loading kernels and pydantic.
    from penstock.graph.documents import validated
    from penstock.simulate.shop.schedule import check_schedule

    scheduler = SCHEDULERS[name]
    found = scheduler.schedule(shop, validated(scheduler.options, options or {}, f"Options of schedule {name}"))
    check_schedule(shop, found)
    return found
