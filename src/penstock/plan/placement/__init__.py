"""Where every task runs: policies that place the tasks of a workload on machines of unequal means.

`problem` says what is to be placed, `from_workload` makes one and says why none can be solved; `evaluator` judges
placements; `policies` is the table of policies: those of `constructions` (`ifs`, `distdgl`, `spread` and `greedy`)
make a placement, `etp` and `search` (ours) look for better ones.
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
