"""The budget of a search: so many steps, or until so many seconds have passed."""

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

_CHUNK = 250  # steps between two looks at the clock


@dataclass(frozen=True)
class Budget:
    """The number of steps (None: the policy's own); seconds, where given, may end a search earlier.

    `simulations` is how many placements a search may simulate beside those that it starts from (None: as many as it
    needs).
    """

    steps: int | None = None
    seconds: float | None = None
    simulations: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 0:
            raise PenstockError(f"The search's steps is {self.steps}: give 0 or more.", code="value-out-of-range")
        if self.simulations is not None and self.simulations < 0:
            raise PenstockError(
                f"The search's simulations is {self.simulations}: give 0 or more.", code="value-out-of-range"
            )
        if self.seconds is not None and not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise PenstockError(
                f"The search's seconds is {self.seconds:g}: give a number above 0.", code="value-out-of-range"
            )


class Found(NamedTuple):
    """The result of a policy."""

    units: Array  # int32 [U]: machine of every unit
    steps: int


class BudgetClock:
    """Steps taken and the rest of a budget."""

    def __init__(self, budget: Budget, default_steps: int) -> None:
        self.steps = 0
        self.most = budget.steps if budget.steps is not None else default_steps
        self.simulations = budget.simulations
        self._deadline = None if budget.seconds is None else time.monotonic() + budget.seconds

    @property
    def goes_on(self) -> bool:
        """Whether any of the budget is left."""
        return self.steps < self.most and (self._deadline is None or time.monotonic() < self._deadline)

    def up_to(self, wanted: int | None = None) -> int:
        """The step at which the next stretch ends: after `wanted` steps, or earlier."""
        most = self.most if wanted is None else min(self.most, self.steps + wanted)
        return most if self._deadline is None else min(most, self.steps + _CHUNK)


@dataclass(frozen=True, eq=False)
class PlacedUnits:
    """A placement that respects every limit, and the effort of finding it."""

    policy: str
    machine_of: Array  # int32 [T]
    makespan: float  # simulated seconds of the evaluator's iterations
    steps: int
    simulated: int  # placements that were simulated for it
    seconds: float
