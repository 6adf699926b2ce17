"""Where every task runs: policies that place the tasks of a workload on unequal machines.

`problem` is what is to be placed, `from_workload` makes one and explains why one has no solution; `evaluator` evaluates
placements; `policies` is the table of policies: those of `constructions` (`ifs`, `distdgl`, `spread` and `greedy`) make
a placement, `etp` (DGTP's) and `search` (ours) look for better ones.
"""

from penstock.plan.placement.budget import Budget, Found
from penstock.plan.placement.evaluator import Evaluator
from penstock.plan.placement.from_workload import placement_problem
from penstock.plan.placement.policies import PLACEMENTS, PlacedUnits, PlacementPolicy, place
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
