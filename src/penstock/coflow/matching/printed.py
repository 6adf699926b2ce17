"""`printed`: Algorithm 3 of the Hermod thesis as it is printed, for comparison.

Each phase is a matching that has the most bytes left, and lasts for the smallest positive entry of the whole matrix,
matched or not. Neither is that time optimal ([[0,1,1],[1,0,1],[0,0,0]] takes 3 where 2 is possible) nor are the phases
few: one small entry that is matched late cuts everything before it to its size. It is printed for real numbers, whose
rounding may leave entries of almost nothing; on whole numbers it ends, if not soon.
"""

import numpy as np

from penstock.coflow.matching.demand import Phase, matching
from penstock.errors import PenstockError
from penstock.graph.arrays import Array

LIMIT = 20_000
"""Phases; beyond them it is refused."""


def printed_phases(demand: Array, limit: int = LIMIT) -> list[Phase]:
    """The phases, all as long as what is left allows."""
    # Takes longer to import than most schedules to make.
    from scipy.optimize import linear_sum_assignment

    left, phases = demand.copy(), list[Phase]()
    while left.any():
        if len(phases) == limit:
            raise PenstockError(
                f"The printed schedule of {len(demand)} ranks has sent {demand.sum() - left.sum():,} of "
                f"{demand.sum():,} bytes after {limit:,} phases: use 'bvn', or larger units than bytes.",
                code="too-large",
            )
        rows, columns = linear_sum_assignment(left, maximize=True)
        weight = int(left[left > 0].min())
        sizes = np.minimum(left[rows, columns], weight)
        left[rows, columns] -= sizes
        phases.append(matching(columns, sizes, weight))
    return phases
