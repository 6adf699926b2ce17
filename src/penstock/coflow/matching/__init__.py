"""An all-to-all of known sizes as a sequence of phases: a file per schedule, a line in the table.

A matrix says how many bytes rank i has for rank j; a phase (`Phase`) is a matching of senders and receivers, so that
no port has two flows. `schedule` gives the phases, `seconds` what they take alone, `bound` what no schedule can beat.
Who sends them is no matter of this folder.
"""

import math
from collections.abc import Callable
from typing import Any

from penstock.coflow.matching.bvn import bvn_phases
from penstock.coflow.matching.demand import Phase, bound, checked_demand, checked_rate
from penstock.coflow.matching.fair import fair_phases
from penstock.coflow.matching.matched import matched_phases
from penstock.coflow.matching.printed import printed_phases
from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array

__all__ = ["SCHEDULES", "Phase", "bound", "schedule", "schedule_named", "seconds"]

SCHEDULES: dict[str, Callable[[Array], list[Phase]]] = {
    "fair": fair_phases,
    "printed": printed_phases,
    "matched": matched_phases,
    "bvn": bvn_phases,
}


def schedule(matrix: Any, name: str = "bvn") -> list[Phase]:
    """The phases in which rank i's matrix[i, j] bytes (whole numbers) reach rank j; own data, i = j, is in none."""
    return schedule_named(name)(checked_demand(matrix))


def seconds(matrix: Any, name: str, rate: float, overhead_s: float = 0.0) -> float:
    """What the all-to-all takes alone at a line rate (bytes/s), with so many seconds more for every phase."""
    if not (overhead_s >= 0 and math.isfinite(overhead_s)):
        raise PenstockError(f"overhead_s is {overhead_s}: give 0 or more.", code="value-out-of-range")
    checked_rate(rate)
    phases = schedule(matrix, name)
    return sum(phase.weight for phase in phases) / rate + overhead_s * len(phases)


def schedule_named(name: str) -> Callable[[Array], list[Phase]]:
    """The schedule of that name."""
    if name not in SCHEDULES:
        raise PenstockError(f"No all-to-all schedule is called {name!r}{nearest(name, SCHEDULES)}", code="unknown-name")
    return SCHEDULES[name]
