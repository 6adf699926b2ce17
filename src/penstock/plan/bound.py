"""A lower bound on the seconds of an iteration that no schedule can beat in the long run.

`placement_bound` holds for one placement under every flow policy: the busiest link must carry its mean bytes, and a
cycle of items that wait for each other takes at least its seconds for as many iterations as it spans. `cluster_bound`
holds for every placement: tasks are no faster than on the fastest machine, and a linear programme, in which tasks may
be split over machines, bounds what links must carry.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from penstock.graph.arrays import Array
from penstock.plan.placement import PlacementProblem
from penstock.plan.placement.packing import fits
from penstock.simulate.levels import durations_alone, heads
from penstock.simulate.simulation import Simulator
from penstock.simulate.state import Case, carried_by
from penstock.simulate.workload import Amounts

_UNROLLED = 24
"""Iterations in which the slowest cycle is searched; cycles span as many as a pipeline works ahead."""
_MOST_CHOICES = 20_000
"""The most pairs of a task and a machine for which the linear programme is solved."""
_ROUNDING = 1e-6
"""The relative error by which the solution of a linear programme may exceed the exact one."""


def placement_bound(case: Case, capacities: Array) -> float:
    """Seconds that an iteration of a placed workload takes at least, in the long run."""
    means = _means(case.amounts)
    busy = carried_by(case.routes, means.sizes[0])
    return max(float((busy / capacities).max(initial=0.0)), slowest_cycle(case._replace(amounts=means)))


def cluster_bound(problem: PlacementProblem, amounts: Amounts) -> float:
    """Seconds that an iteration takes at least wherever tasks are placed, in the long run."""
    means = _means(amounts)
    load, fastest = problem.workload, np.full(problem.machines, problem.speeds.max())
    # On one machine flows take no time, and one that tasks have for themselves is no slower.
    together = Simulator(load, replace(problem.network, free_cores=None), means, "fair", fastest).case(
        np.zeros(load.tasks, np.int32)
    )
    return max(slowest_cycle(together), _least_busy(problem, means.sizes[0]))


def slowest_cycle(case: Case) -> float:
    """Seconds per iteration of the slowest cycle of dependencies, without contention.

    The longest chain through some iterations with mean amounts is followed back; between two of its visits to one item
    is a cycle, and each cycle is a lower bound.
    """
    means = Amounts(*(np.repeat(each[:1], _UNROLLED, axis=0) for each in case.amounts))
    alone = durations_alone(case._replace(amounts=means))
    begins = heads(case, alone)
    before, lags, first = _waits(case)
    n, item = (int(each) for each in np.unravel_index(int(np.argmax(begins + alone)), begins.shape))
    seen: dict[int, tuple[int, float]] = {}
    slowest = 0.0
    while True:
        start = float(begins[n, item])
        if item in seen and seen[item][0] > n:
            last, at = seen[item]
            slowest = max(slowest, (at - start) / (last - n))
        seen[item] = (n, start)
        edges = np.arange(first[item], first[item + 1])
        edges = edges[lags[edges] <= n]
        if not len(edges) or start <= 0:
            return slowest
        ends = begins[n - lags[edges], before[edges]] + alone[n - lags[edges], before[edges]]
        edge = edges[int(np.argmax(ends))]
        n, item = n - int(lags[edge]), int(before[edge])


def _means(amounts: Amounts) -> Amounts:
    """One iteration of mean amounts."""
    return Amounts(amounts.seconds.mean(axis=0, keepdims=True), amounts.sizes.mean(axis=0, keepdims=True))


def _waits(case: Case) -> tuple[Array, Array, Array]:
    """What every item waits for and how many iterations back, and where an item's entries begin."""
    shape = case.shape
    items = len(shape.starts) - 1
    sources = np.repeat(np.arange(items), np.diff(shape.starts))
    order = np.argsort(shape.followers, kind="stable")
    first = np.searchsorted(shape.followers[order], np.arange(items + 1))
    return sources[order], np.asarray(shape.lags)[order], first


def _least_busy(problem: PlacementProblem, sizes: Array) -> float:
    """Seconds that the busiest link needs at least for what tasks that move exchange with those that do not."""
    movable, machines = problem.movable, problem.machines
    if not len(movable) or len(movable) * machines > _MOST_CHOICES:
        return 0.0
    carried = _carried(problem, sizes)
    seconds = carried.data / problem.network.capacities[carried.row]
    scale = float(seconds.max(initial=0.0))
    if scale == 0:
        return 0.0
    count = len(movable) * machines
    links = len(problem.network.capacities)
    held = problem.demands[movable]
    room = _capacity_rows(held, machines)
    # Variables: the share of each task on each machine, and the seconds of the busiest link.
    rows = np.concatenate([carried.row, np.arange(links), room.row + links])
    columns = np.concatenate([carried.col, np.full(links, count), room.col])
    values = np.concatenate([seconds / scale, np.full(links, -1.0), room.data])
    limits = np.concatenate([np.zeros(links), problem.free.ravel() * (1 + 1e-9) + 1e-9])
    whole = csr_array((np.ones(count), (np.repeat(np.arange(len(movable)), machines), np.arange(count))))
    whole.resize((len(movable), count + 1))
    allowed = np.array([fits(demand, free) for demand in held for free in problem.free], np.float64)
    found = linprog(
        np.append(np.zeros(count), 1.0),
        A_ub=csr_array((values, (rows, columns)), shape=(len(limits), count + 1)),
        b_ub=limits,
        A_eq=whole,
        b_eq=np.ones(len(movable)),
        bounds=np.stack([np.zeros(count + 1), np.append(allowed, np.inf)], axis=1),
        method="highs",
    )
    # If the solver fails, the bound is 0.
    return float(found.fun) * scale * (1 - _ROUNDING) if found.status == 0 else 0.0


def _carried(problem: PlacementProblem, sizes: Array) -> coo_array:
    """Bytes on every link [links, tasks x machines] with a task on a machine, from and to tasks that do not move."""
    load, network, machines = problem.workload, problem.network, problem.machines
    place = np.full(problem.units, -1)
    place[problem.movable] = np.arange(len(problem.movable))
    rows, columns, values = [], [], []
    everywhere = np.arange(machines)
    ends = zip(problem.unit_of[load.sources], problem.unit_of[load.targets], sizes, strict=True)
    totals: dict[tuple[int, int, bool], float] = {}
    for source, target, size in ends:
        outwards = place[source] >= 0
        moving, fixed = (source, target) if outwards else (target, source)
        if size > 0 and place[moving] >= 0 and problem.home[fixed] >= 0:
            key = (int(place[moving]), int(problem.home[fixed]), bool(outwards))
            totals[key] = totals.get(key, 0.0) + float(size)
    for (task, home, outwards), size in totals.items():
        pairs = everywhere * machines + home if outwards else home * machines + everywhere
        starts, stops = network.path_starts[pairs], network.path_starts[pairs + 1]
        crossed = np.concatenate([network.path_links[a:b] for a, b in zip(starts, stops, strict=True)])
        rows.append(crossed)
        columns.append(task * machines + np.repeat(everywhere, stops - starts))
        values.append(np.full(len(crossed), size))
    shape = (len(network.capacities), len(problem.movable) * machines)
    if not rows:
        return coo_array(shape)
    return coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape)


def _capacity_rows(held: Array, machines: int) -> coo_array:
    """What machines must hold [machines x resources, tasks x machines]."""
    tasks, resources = held.shape
    task, machine, resource = (each.ravel() for each in np.indices((tasks, machines, resources)))
    return coo_array((held[task, resource], (machine * resources + resource, task * machines + machine)))
