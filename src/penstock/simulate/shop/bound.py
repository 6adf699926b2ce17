"""A time that no schedule of a shop beats."""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from penstock.simulate.shop.shop import Operation, Shop, alone, quickest


def shop_bound(shop: Shop) -> float:
    """The largest of three bounds: the longest job, machines with what they alone can do, and all work divided."""
    longest = max(min(map(alone, job)) for job in shop.jobs)
    return max(longest, _alone_at_machines(shop), _divided(shop))


def _alone_at_machines(shop: Shop) -> float:
    """Of every machine what it alone can do, behind the shortest way there and before the shortest way on."""
    best = 0.0
    for machine in range(len(shop.machines)):
        loads, heads, tails = 0.0, [], []
        for job in shop.jobs:
            if len(job) > 1:
                continue
            times = [quickest(operation).time for operation in job[0]]
            forced = [place for place, operation in enumerate(job[0]) if {c.machine for c in operation} == {machine}]
            if forced:
                loads += sum(times[place] for place in forced)
                heads.append(sum(times[: forced[0]]))
                tails.append(sum(times[forced[-1] + 1 :]))
        if heads:
            best = max(best, min(heads) + loads + min(tails))
    return best


def _divided(shop: Shop) -> float:
    """What all machines take if routes and operations could be divided among them at will: a linear program."""
    # Variables: a share of every route, a share of every choice, and the time.
    routes = [(job, route) for job, ways in enumerate(shop.jobs) for route in ways]
    operations: list[tuple[int, Operation]] = [
        (number, operation) for number, (_, route) in enumerate(routes) for operation in route
    ]
    choices = [(place, choice) for place, (_, operation) in enumerate(operations) for choice in operation]
    first_choice, time = len(routes), len(routes) + len(choices)
    equal = [(job, number, 1.0) for number, (job, _) in enumerate(routes)]
    for place, (number, _) in enumerate(operations):
        equal.append((len(shop.jobs) + place, number, -1.0))
    equal += [(len(shop.jobs) + place, first_choice + at, 1.0) for at, (place, _) in enumerate(choices)]
    most = [(choice.machine, first_choice + at, choice.time) for at, (_, choice) in enumerate(choices)]
    most += [(machine, time, -1.0) for machine in range(len(shop.machines))]
    sums = np.zeros(len(shop.jobs) + len(operations))
    sums[: len(shop.jobs)] = 1.0
    goal = np.zeros(time + 1)
    goal[time] = 1.0
    found = linprog(
        goal,
        A_ub=_matrix(most, len(shop.machines), time + 1),
        b_ub=np.zeros(len(shop.machines)),
        A_eq=_matrix(equal, len(sums), time + 1),
        b_eq=sums,
        method="highs",
    )
    # The solver's answer may be off by its tolerance: a bound must not be above the truth.
    return float(found.fun) * (1 - 1e-7) if found.status == 0 else 0.0


def _matrix(entries: list[tuple[int, int, float]], rows: int, columns: int) -> coo_matrix:
    row, column, value = zip(*entries, strict=True)
    return coo_matrix((value, (row, column)), shape=(rows, columns))
