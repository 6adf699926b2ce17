"""Checks a schedule against its shop, without knowing how it was made."""

from itertools import pairwise

from penstock.errors import PenstockError
from penstock.simulate.shop.schedule import Schedule, Step
from penstock.simulate.shop.shop import Shop

_ROUNDING = 1e-9
"""The share of a time by which sums of floating-point numbers may be off."""


def check_schedule(shop: Shop, schedule: Schedule) -> None:
    """Refuse a schedule that leaves something out, does it twice, elsewhere, too fast, too early or two at once."""
    if len(schedule.routes) != len(shop.jobs):
        raise _wrong(f"it chooses routes for {len(schedule.routes)} jobs of {len(shop.jobs)}")
    of_jobs: list[list[Step]] = [[] for _ in shop.jobs]
    on_machines: list[list[Step]] = [[] for _ in shop.machines]
    for step in schedule.steps:
        if not (0 <= step.job < len(shop.jobs) and 0 <= step.machine < len(shop.machines)):
            raise _wrong(f"it names job {step.job + 1} on machine {step.machine + 1}, which are not in the shop")
        of_jobs[step.job].append(step)
        on_machines[step.machine].append(step)
    for job, steps in enumerate(of_jobs):
        _check_job(shop, schedule, job, steps)
    for machine, steps in enumerate(on_machines):
        _check_machine(shop.machines[machine], steps)


def _check_job(shop: Shop, schedule: Schedule, job: int, steps: list[Step]) -> None:
    number = schedule.routes[job]
    if not 0 <= number < len(shop.jobs[job]):
        raise _wrong(f"job {job + 1} has no route {number + 1}")
    route = shop.jobs[job][number]
    steps = sorted(steps, key=lambda step: step.operation)
    if [step.operation for step in steps] != list(range(len(route))):
        raise _wrong(f"job {job + 1} needs each of its {len(route)} operations once")
    before = 0.0
    for step, operation in zip(steps, route, strict=True):
        what = f"operation {step.operation + 1} of job {job + 1}"
        times = dict(operation)
        if step.machine not in times:
            raise _wrong(f"{what} is on {shop.machines[step.machine]}, which cannot do it")
        slack = _ROUNDING * max(1.0, abs(step.end))
        if abs(step.end - step.start - times[step.machine]) > slack:
            raise _wrong(f"{what} takes {step.end - step.start:g} instead of {times[step.machine]:g}")
        if step.start < before - slack:
            raise _wrong(f"{what} starts at {step.start:g}, before its job is ready at {before:g}")
        before = step.end


def _check_machine(name: str, steps: list[Step]) -> None:
    steps = sorted((step for step in steps if step.end > step.start), key=lambda step: step.start)
    for one, other in pairwise(steps):
        if other.start < one.end - _ROUNDING * max(1.0, one.end):
            raise _wrong(
                f"{name} does operations of jobs {one.job + 1} and {other.job + 1} at once, from {other.start:g} to"
                f" {one.end:g}"
            )


def _wrong(what: str) -> PenstockError:
    return PenstockError(f"The schedule is not valid: {what}; make it again.", code="infeasible")
