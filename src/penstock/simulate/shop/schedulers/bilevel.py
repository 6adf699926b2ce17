"""DAHA's bi-level heuristic (its Algorithm 1): jobs in small groups, each planned closely, groups improved in rounds.

The lower level plans a group: all orders of its jobs, and from the best of them a beam search over routes, machines and
orders. The upper level evaluates what grouping gained. A group whose plan is longer than (1 - mu) times the sum of its
jobs alone has failed; mu grows by `step` in every round. The jobs of failed groups are grouped anew, so that computing
and transferring balance in each: a job's ratio y is its time on other machines over its time on links, alone; the group
with the largest |log y| is joined with the one whose ratio is closest to 1/y, until no group may grow. Where DAHA
leaves it open, we decided:
- Groups that are left when all ratios are on one side of 1 are put together, at most `beta` jobs in each, so that the
  largest |log y| of them is small: two batches that both compute much still overlap.
- The best of all groupings that were seen is returned, not the last; and first in, first out where that is shorter, as
  it often is for similar batches.
- Groups are joined by placing their plans one after the other, with later operations filling gaps that earlier groups
  leave: this is DAHA's eager start of the next group.
- Where no machines are named as links, the one that the jobs need longest is taken.
"""

import math
from collections.abc import Callable, Sequence

from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument
from penstock.graph.hashing import key_of
from penstock.simulate.shop.schedule import NoOptions, Pick, Scheduler, ShopSchedule, in_order_of_arrival, placed
from penstock.simulate.shop.schedulers.enumeration import Search, best_order
from penstock.simulate.shop.shop import Shop, alone, best_route, quickest

Group = tuple[int, ...]
Total = Callable[[Group], float]


class BilevelOptions(StrictDocument):
    """DAHA's parameters, and what it leaves open."""

    mu: float = Field(0.5, gt=0, lt=1, description="the share that grouping is to save, at the end")
    step: float = Field(0.05, gt=0, le=1, description="by how much that share grows in each round")
    beta: int = Field(4, ge=1, le=10, description="jobs of a group at most")
    tau: int = Field(20, ge=1, description="rounds at most")
    links: list[int] = Field([], description="machines, from 1, that transfer and do not compute")
    width: int = Field(30, ge=1, description="plans of a group that are followed at once")
    seed: int = Field(0, ge=0, description="of the first grouping")


def bilevel(shop: Shop, options: BilevelOptions) -> ShopSchedule:
    """The best schedule over all groupings that the rounds come to, and first in, first out."""
    ratios = [_log_ratio(shop, job, _links(shop, options)) for job in range(len(shop.jobs))]
    plans: dict[Group, ShopSchedule] = {}
    order = sorted(range(len(shop.jobs)), key=lambda job: int(key_of(options.seed, "shop/{}", job)))
    groups = [tuple(sorted(order[at : at + options.beta])) for at in range(0, len(order), options.beta)]
    best = in_order_of_arrival(shop, NoOptions())
    mu, rounds = 0.0, 0
    while rounds < options.tau and mu < options.mu:
        mu, rounds = mu + options.step, rounds + 1
        for group in groups:
            if group not in plans:
                part = shop.part(group)
                plans[group] = Search(part, best_order(part), options.width).run()
        joined = _joined(shop, groups, plans)
        best = min(best, joined, key=lambda each: each.makespan)
        apart = {group: sum(min(map(alone, shop.jobs[job])) for job in group) for group in groups}
        failed = [group for group in groups if plans[group].makespan > (1 - mu) * apart[group]]
        if not failed:
            continue
        again = regrouped([(job,) for group in failed for job in group], ratios, options.beta)
        groups = sorted([*(group for group in groups if group not in failed), *again])
    return best


def regrouped(groups: Sequence[Group], ratios: Sequence[float], beta: int) -> list[Group]:
    """Groups joined so that the logarithms of their jobs' ratios cancel, at most `beta` jobs in each."""
    waiting, done = list(groups), []

    def total(group: Group) -> float:
        return sum(ratios[job] for job in group)

    while waiting:
        waiting.sort(key=lambda group: (total(group), group))
        if total(waiting[0]) >= 0 or total(waiting[-1]) <= 0:
            break
        far = max((waiting[0], waiting[-1]), key=lambda group: abs(total(group)))
        waiting.remove(far)
        fitting = [group for group in waiting if len(group) + len(far) <= beta]
        if not fitting:
            done.append(far)
            continue
        partner = min(fitting, key=lambda group: (abs(total(group) + total(far)), group))
        waiting.remove(partner)
        joined = tuple(sorted(far + partner))
        (done if len(joined) == beta else waiting).append(joined)
    return done + _settled(waiting, total, beta)


def _settled(groups: list[Group], total: Total, beta: int) -> list[Group]:
    """Merge groups whose ratios are all on one side of 1 into as few as possible, evenly."""
    few: list[list[int]] = [[] for _ in range(-(-sum(map(len, groups)) // beta))]
    for group in sorted(groups, key=lambda group: (-abs(total(group)), group)):
        open_groups = [each for each in few if len(each) + len(group) <= beta]
        if not open_groups:
            few.append([])
            open_groups = few[-1:]
        min(open_groups, key=lambda each: abs(total(tuple(each)))).extend(group)
    return [tuple(sorted(each)) for each in few if each]


def _links(shop: Shop, options: BilevelOptions) -> set[int]:
    for number in options.links:
        if not 1 <= number <= len(shop.machines):
            raise PenstockError(
                f"links names machine {number}, and {shop.name} has {len(shop.machines)}: give numbers from 1 on.",
                code="id-out-of-range",
            )
    if options.links:
        return {number - 1 for number in options.links}
    load = [0.0] * len(shop.machines)
    for job in shop.jobs:
        for operation in job[best_route(job)]:
            machine, time = quickest(operation)
            load[machine] += time
    return {load.index(max(load))}


def _log_ratio(shop: Shop, job: int, links: set[int]) -> float:
    """The logarithm of a job's time on other machines over its time on links, by the route that is shortest alone."""
    route = shop.jobs[job][best_route(shop.jobs[job])]
    chosen = [quickest(operation) for operation in route]
    transferring = sum(time for machine, time in chosen if machine in links)
    computing = sum(time for machine, time in chosen if machine not in links)
    # A job that does only one of the two has the largest finite imbalance.
    least = 1e-9 * max(transferring + computing, 1e-300)
    return math.log(max(computing, least) / max(transferring, least))


def _joined(shop: Shop, groups: Sequence[Group], plans: dict[Group, ShopSchedule]) -> ShopSchedule:
    routes = [0] * len(shop.jobs)
    picks = []
    for group in groups:
        plan = plans[group]
        for job, route in zip(group, plan.routes, strict=True):
            routes[job] = route
        picks += [Pick(group[pick.job], pick.machine) for pick in plan.picks]
    return placed(shop, tuple(routes), picks, filling=True)


BILEVEL = Scheduler("bilevel", bilevel, BilevelOptions)
