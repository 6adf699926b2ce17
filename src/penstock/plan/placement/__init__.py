"""Where every task runs: policies that place the tasks of a workload on unequal machines.

`problem` is what is to be placed, `from_workload` makes one and explains why one has no solution; `evaluator` evaluates
placements; `PLACEMENTS` has the policies: those of `constructions` (`ifs`, `distdgl`, `spread` and `greedy`) make
a placement, `etp` (DGTP's) and `search` (ours) look for better ones.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.registry import Registry, lazy_names

if TYPE_CHECKING:
    from penstock.plan.placement.constructions import PlacementPolicy
    from penstock.plan.placement.evaluator import Budget, Evaluator, Found, PlacedUnits
    from penstock.plan.placement.from_workload import placement_problem
    from penstock.plan.placement.problem import PlacementProblem

__all__ = [
    "PLACEMENTS",
    "Budget",
    "Evaluator",
    "Found",
    "PlacedUnits",
    "PlacementPolicy",
    "PlacementProblem",
    "place",
    "placement_problem",
]

PLACEMENTS: "Registry[PlacementPolicy]" = Registry(
    "placement policy",
    "penstock.placements",
    {
        "ifs": "penstock.plan.placement.constructions:initial",
        "distdgl": "penstock.plan.placement.constructions:colocated",
        "spread": "penstock.plan.placement.constructions:even",
        "greedy": "penstock.plan.placement.constructions:least_busy",
        "etp": "penstock.plan.placement.etp:explore",
        "search": "penstock.plan.placement.search:search",
    },
    Callable,
)


def place(
    evaluator: "Evaluator", policy: str = "search", budget: "Budget | None" = None, seed: int = 0
) -> "PlacedUnits":
    """Place an evaluator's problem by a policy; the same seed and steps give the same placement anywhere."""
    from penstock.plan.placement.evaluator import Budget, PlacedUnits

    problem, begin, simulated = evaluator.problem, time.perf_counter(), evaluator.simulated
    found = PLACEMENTS[policy](problem, evaluator, budget or Budget(), seed)
    return PlacedUnits(
        policy,
        problem.machine_of(found.units),
        evaluator.makespan(found.units),
        found.steps,
        evaluator.simulated - simulated,
        time.perf_counter() - begin,
    )


# Imported on first use: help lists the policies without loading kernels.
__getattr__, __dir__ = lazy_names(__name__)
