"""The placement policies by name, and the function that calls them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.plan.placement.budget import Budget, Found
from penstock.plan.placement.constructions import (
    colocated_placement,
    even_placement,
    initial_placement,
    least_busy_placement,
)
from penstock.plan.placement.etp import explore
from penstock.plan.placement.evaluator import Evaluator
from penstock.plan.placement.problem import PlacementProblem
from penstock.plan.placement.search import search

PlacementPolicy = Callable[[PlacementProblem, Evaluator, Budget, int], Found]

PLACEMENTS: dict[str, PlacementPolicy] = {
    "ifs": lambda problem, evaluator, budget, seed: Found(initial_placement(problem, seed), 0),
    "distdgl": lambda problem, evaluator, budget, seed: Found(colocated_placement(problem), 0),
    "spread": lambda problem, evaluator, budget, seed: Found(even_placement(problem), 0),
    "greedy": lambda problem, evaluator, budget, seed: Found(least_busy_placement(problem), 0),
    "etp": explore,
    "search": search,
}


@dataclass(frozen=True, eq=False)
class PlacedUnits:
    """A placement that respects every limit, and the effort of finding it."""

    policy: str
    machine_of: Array  # int32 [T]
    makespan: float  # simulated seconds of the evaluator's iterations
    steps: int
    simulated: int  # placements that were simulated for it
    seconds: float


def place(evaluator: Evaluator, policy: str = "search", budget: Budget | None = None, seed: int = 0) -> PlacedUnits:
    """Place an evaluator's problem by a policy; the same seed and steps give the same placement anywhere."""
    if policy not in PLACEMENTS:
        raise PenstockError(
            f"No placement policy is called {policy!r}{nearest(policy, PLACEMENTS)}", code="unknown-name"
        )
    problem = evaluator.problem
    begin, simulated = time.perf_counter(), evaluator.simulated
    found = PLACEMENTS[policy](problem, evaluator, budget or Budget(), seed)
    makespan = evaluator.makespan(found.units)
    return PlacedUnits(
        policy,
        problem.machine_of(found.units),
        makespan,
        found.steps,
        evaluator.simulated - simulated,
        time.perf_counter() - begin,
    )
