"""Places units one by one such that the remaining ones still fit."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.plan.placement.packing import classes_of, fits, packs
from penstock.plan.placement.problem import PlacementProblem


class RemainingCapacity:
    """Units not yet placed and what machines have left; any order of `place` ends in a feasible placement."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.units = problem.home.copy()  # the placement so far, -1 where open
        self.free = problem.free.copy()
        self._demands = problem.demands
        self._kinds, movable_class = classes_of(problem.demands[problem.movable])
        self._class_of = np.full(problem.units, -1, np.int64)
        self._class_of[problem.movable] = movable_class
        self._wanted = np.bincount(movable_class, minlength=len(self._kinds))

    def place(self, units: Array, machine: int) -> bool:
        """Put open units on a machine if they fit and all others can still be packed; whether that was so."""
        free = self.free.copy()
        free[machine] -= self._demands[units].sum(axis=0)
        if not fits(self._demands[units].sum(axis=0), self.free[machine]):
            return False
        free[machine] = np.maximum(free[machine], 0)
        wanted = self._wanted - np.bincount(self._class_of[units], minlength=len(self._kinds))
        if not packs(self._kinds, wanted, free):
            return False
        self.free, self._wanted = free, wanted
        self.units[units] = machine
        return True

    def fits(self, units: Array, machine: int) -> bool:
        """Whether open units fit a machine by themselves."""
        return fits(self._demands[units].sum(axis=0), self.free[machine])
