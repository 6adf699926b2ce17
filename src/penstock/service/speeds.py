"""How fast jobs run beside each other, compared with how fast they ran alone."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_STEPS, _SECONDS = 5, 3.0
"""A rate is known after so many steps and so many seconds with the same neighbours."""


@dataclass
class SpeedMeter:
    """The rate of one job's steps since its neighbours last changed."""

    neighbours: frozenset[int] = frozenset()
    steps: int = 0
    _first_steps: int | None = None
    _first_time: float = field(default_factory=time.monotonic)

    def note(self, steps: int) -> None:
        """The job has done so many steps so far."""
        self.steps = steps
        if self._first_steps is None:
            self._first_steps, self._first_time = steps, time.monotonic()

    def beside(self, neighbours: frozenset[int]) -> None:
        """These jobs run on its device now; with others than before it is measured anew."""
        if neighbours != self.neighbours:
            self.neighbours, self._first_steps = neighbours, None

    def rate(self) -> float | None:
        """Steps per second beside its present neighbours, where it has run long enough."""
        if self._first_steps is None:
            return None
        done, took = self.steps - self._first_steps, time.monotonic() - self._first_time
        return done / took if done >= _STEPS and took >= _SECONDS else None


class Speeds:
    """Rates of jobs alone, kept for those alike, and what share of them jobs have now."""

    def __init__(self) -> None:
        self._alone: dict[str, float] = {}

    def of(self, meter: SpeedMeter, likeness: str) -> float | None:
        """The job's speed relative to running alone; None where one of the two rates is not known."""
        rate = meter.rate()
        if rate is None:
            return None
        if not meter.neighbours:
            self._alone[likeness] = rate
        alone = self._alone.get(likeness)
        return None if alone is None else min(1.0, rate / alone)

    def learn(self, together: Sequence[tuple[SpeedMeter, str]]) -> None:
        """Estimate rates alone of jobs that never ran alone, from those that share a device with them.

        Jobs on one device slow each other down alike: where all have a rate and the speed of some is known, the others
        have that speed. A rate that is measured alone replaces the estimate.
        """
        rates = [meter.rate() for meter, _ in together]
        known = [speed for speed in (self.of(*each) for each in together) if speed is not None]
        if not known or None in rates:
            return
        speed = sum(known) / len(known)
        for (_, likeness), rate in zip(together, rates, strict=True):
            if rate is not None and speed > 0:
                self._alone.setdefault(likeness, rate / speed)
