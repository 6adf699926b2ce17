"""A schedule as a simulated workload, so that pages, traces and critical paths of simulations are made of it too."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.network import star
from penstock.simulate.shop.schedule import Schedule
from penstock.simulate.shop.shop import Shop
from penstock.simulate.simulation import simulate
from penstock.simulate.timeline import Timeline
from penstock.simulate.workload_builder import Item, WorkloadBuilder


def timeline_of(shop: Shop, schedule: Schedule) -> tuple[Timeline, Array]:
    """The timeline of a schedule in seconds, and the machine of every task.

    The simulator is given the orders of jobs and machines, not the times: it finds these by itself, and no operation
    waits longer than these orders make it.
    """
    builder = WorkloadBuilder(shop.name)
    of_job: dict[int, Item] = {}
    of_machine: dict[int, Item] = {}
    placement = []
    for step in schedule.steps:
        name = f"job {step.job + 1}, operation {step.operation + 1}"
        seconds = (step.end - step.start) * shop.unit
        item = builder.task(name, f"job {step.job + 1}", seconds)
        placement.append(step.machine)
        for before in (of_job.get(step.job), of_machine.get(step.machine)):
            if before is not None:
                builder.wait(before, item)
        of_job[step.job] = of_machine[step.machine] = item
    rates = np.ones(len(shop.machines))
    found = np.array(placement, np.int32)
    return simulate(builder.build(), star(rates, rates, shop.machines), found, segments=True), found
