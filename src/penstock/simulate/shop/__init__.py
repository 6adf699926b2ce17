"""Flexible job shops: jobs of operations in order, each on one of several machines. A group of batches is one.

`shop` is what has to be done, and `fjs` its usual text format. `schedule` is who does what when, `validator` checks any
schedule against its shop without knowing how it was made, and `bound` says what no schedule beats. `schedulers` has a
file for each way to make a schedule, and `search` is the exact one that two of them use. `drawing` turns a schedule
into a simulated workload, so that it is drawn as other simulations are.
"""

from penstock.simulate.shop.bound import shop_bound
from penstock.simulate.shop.drawing import timeline_of
from penstock.simulate.shop.fjs import fjs_text, read_fjs
from penstock.simulate.shop.schedule import Schedule, Step
from penstock.simulate.shop.schedulers import SCHEDULERS, Scheduler, make_schedule, scheduler_named
from penstock.simulate.shop.shop import Choice, Job, Operation, Route, Shop
from penstock.simulate.shop.validator import check_schedule

__all__ = [
    "SCHEDULERS",
    "Choice",
    "Job",
    "Operation",
    "Route",
    "Schedule",
    "Scheduler",
    "Shop",
    "Step",
    "check_schedule",
    "fjs_text",
    "make_schedule",
    "read_fjs",
    "scheduler_named",
    "shop_bound",
    "timeline_of",
]
