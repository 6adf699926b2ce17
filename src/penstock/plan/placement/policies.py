"""The placement policies that construct a placement at once, and the function that calls any policy."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.graph.arrays import Array
from penstock.plan.placement import PLACEMENTS
from penstock.plan.placement.budget import Budget, Found
from penstock.plan.placement.constructions import (
    colocated_placement,
    even_placement,
    initial_placement,
    least_busy_placement,
)
from penstock.plan.placement.evaluator import Evaluator
from penstock.plan.placement.problem import PlacementProblem

PlacementPolicy = Callable[[PlacementProblem, Evaluator, Budget, int], Found]


def _constructed(construct: Callable[[PlacementProblem, int], Array]) -> PlacementPolicy:
    """A policy that makes one placement at once, from the problem and the seed."""
    return lambda problem, evaluator, budget, seed: Found(construct(problem, seed), 0)


initial = _constructed(initial_placement)
colocated = _constructed(colocated_placement)
even = _constructed(even_placement)
least_busy = _constructed(least_busy_placement)


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
