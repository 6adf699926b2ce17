"""Flexible job shops: jobs of operations in order, each on one of several machines. A group of batches is one.

`shop` is what has to be done, its usual text format, and a lower bound. `schedule` is a schedule, checked against its
shop independently of how it was made, and turned into a simulated workload, so that it is drawn like other simulations.
`schedulers` has the ways to make a schedule.
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.simulate.shop.schedule import check_schedule
    from penstock.simulate.shop.schedulers import make_schedule
    from penstock.simulate.shop.shop import Choice, Shop, read_fjs, shop_bound

__all__ = ["Choice", "Shop", "check_schedule", "make_schedule", "read_fjs", "shop_bound"]

# Looked up on first use: help lists the schedulers, and waits for no kernels.
__getattr__, __dir__ = lazy_names(__name__)
