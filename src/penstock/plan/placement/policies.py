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


def initial(problem: PlacementProblem, evaluator: Evaluator, budget: Budget, seed: int) -> Found:
    """IFS: the first placement that the searches begin with."""
    return Found(initial_placement(problem, seed), 0)


def colocated(problem: PlacementProblem, evaluator: Evaluator, budget: Budget, seed: int) -> Found:
    """As DistDGL places: what belongs together on one machine."""
    return Found(colocated_placement(problem), 0)


def even(problem: PlacementProblem, evaluator: Evaluator, budget: Budget, seed: int) -> Found:
    """Tasks of every kind spread evenly."""
    return Found(even_placement(problem), 0)


def least_busy(problem: PlacementProblem, evaluator: Evaluator, budget: Budget, seed: int) -> Found:
    """Each task on the machine that is least busy so far."""
    return Found(least_busy_placement(problem), 0)


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
