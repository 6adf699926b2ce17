"""`etp`: the exploration of DGTP (Algorithm 3) from `ifs`, one random task to one random machine at a time.

Machines may be over-used up to (1 + mu) of their capacities; a step is accepted with probability min(1, exp(beta x
(cost - cost'))), costs (eq. 27) relative to the first one, so that beta means the same on every cluster. As in the
paper's text, every feasible placement within (1 + gamma) of the shortest feasible critical path is simulated, and the
best simulated one wins.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, key_of, unit
from penstock.kernels import njit
from penstock.plan.placement.constructions import initial_placement
from penstock.plan.placement.evaluator import Budget, BudgetClock, Evaluator, Found, Waits, critical_path
from penstock.plan.placement.problem import PlacementProblem, Tables, Walk, move, over_use, walk_from

STEPS = 10_000
_DRAWS = 3


class Exploring(NamedTuple):
    """The constants of the exploration, as in DGTP."""

    beta: float = 0.1
    gamma: float = 0.1
    mu: float = 1.0


EXPLORING = Exploring()


def explore(
    problem: PlacementProblem, evaluator: Evaluator, budget: Budget, seed: int, constants: Exploring = EXPLORING
) -> Found:
    """The best simulated placement of the walk; if simulations are limited, of those with the shortest paths."""
    best = initial_placement(problem, seed)
    lowest = evaluator.makespan(best)
    if not len(problem.movable):
        return Found(best, 0)
    key = ("etp", seed, budget.steps, budget.seconds, constants)
    worthy, steps = evaluator.walks.get(key, lambda: _walk(evaluator, best, budget, seed, constants))
    if budget.simulations is not None:
        worthy = sorted(worthy, key=lambda each: each[0])[: budget.simulations]
    deadline = BudgetClock(budget, STEPS)
    for _, units in worthy:
        if (makespan := evaluator.makespan(units)) < lowest:
            lowest, best = makespan, units
        if not deadline.goes_on:
            break
    return Found(best, steps)


def _walk(
    evaluator: Evaluator, start: Array, budget: Budget, seed: int, constants: Exploring
) -> tuple[list[tuple[float, Array]], int]:
    """The placements of a walk that are worth simulating, each once, with their critical paths; and its steps.

    The walk does not depend on the flow policy, so it is done once for all of them.
    """
    tables, waits, spending = evaluator.tables, evaluator.waits, BudgetClock(budget, STEPS)
    walk = walk_from(tables, start)
    first = critical_path(tables, walk, waits, evaluator.seconds, evaluator.sizes)
    costs = np.array([first, first, max(first, 1e-300), first])
    key = key_of(seed, "etp")
    found: dict[bytes, tuple[float, Array]] = {}
    while spending.goes_on:
        spending.steps, worthy = _explore(
            tables,
            walk,
            waits,
            evaluator.seconds,
            evaluator.sizes,
            key,
            spending.steps,
            min(spending.up_to(), spending.steps + evaluator.patience),
            constants,
            costs,
        )
        if worthy:
            found.setdefault(walk.units.tobytes(), (float(costs[3]), walk.units.copy()))
    return list(found.values()), spending.steps


@njit(nogil=True, cache=True)
def _explore(
    tables: Tables,
    walk: Walk,
    waits: Waits,
    seconds: Array,
    sizes: Array,
    key: np.uint64,
    first: int,
    last: int,
    constants: Exploring,
    costs: Array,
) -> tuple[int, bool]:
    """Walk until a placement is worth simulating: the step to continue from, and whether there is one.

    `costs`: the current cost, the shortest feasible path so far, the unit, and the path of what is worth simulating.
    """
    open_machines = np.empty(tables.capacities.shape[0], np.int32)
    for step in range(first, last):
        counter = np.uint64(step * _DRAWS)
        chosen = tables.movable[below(draw(key, counter), tables.movable.shape[0])]
        count = _with_room(tables, walk, chosen, constants.mu, open_machines)
        if count == 0:
            continue
        here = walk.units[chosen]
        move(tables, walk, chosen, open_machines[below(draw(key, counter + np.uint64(1)), count)])
        path = critical_path(tables, walk, waits, seconds, sizes)
        beyond = over_use(tables, walk)
        cost = path * (1 + beyond)
        chance = np.exp(constants.beta * (costs[0] - cost) / costs[2])
        if unit(draw(key, counter + np.uint64(2))) > chance:
            move(tables, walk, chosen, here)
            continue
        costs[0] = cost
        if beyond == 0 and path < (1 + constants.gamma) * costs[1]:
            costs[1], costs[3] = min(costs[1], path), path
            return step + 1, True
    return last, False


@njit(nogil=True, cache=True)
def _with_room(tables: Tables, walk: Walk, chosen: int, mu: float, machines: Array) -> int:
    """The machines other than its own that take the unit within (1 + mu) of their capacities (eq. 28); returns their
    number.
    """
    count = 0
    for machine in range(tables.capacities.shape[0]):
        room = machine != walk.units[chosen]
        for resource in range(tables.capacities.shape[1]):
            capacity = tables.capacities[machine, resource]
            used = walk.used[machine, resource] + tables.demands[chosen, resource]
            if used > (1 + mu) * capacity + 1e-9 * capacity:
                room = False
        if room:
            machines[count] = machine
            count += 1
    return count
