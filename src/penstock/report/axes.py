"""Axes: where a value lies between two ends, and which round values get a label."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_LOG_FROM = 30.0


@dataclass(frozen=True)
class Axis:
    """A range of values; `ticks` are values with their labels."""

    low: float
    high: float
    ticks: list[tuple[float, str]]
    log: bool = False

    def place(self, value: float) -> float:
        """Where `value` lies: 0 at the low end, 1 at the high one."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        if high <= low:
            # Numbers so large that nothing lies between two neighbours.
            return 0.5
        return min(max((value - low) / (high - low), 0.0), 1.0)


def fitted(values: Iterable[float], from_zero: bool = False, most: int = 5) -> Axis:
    """A linear axis over the values, ending on round ones."""
    seen = [*values, 0.0] if from_zero else list(values)
    low, high = min(seen), max(seen)
    size = max(abs(low), abs(high))
    if high - low <= size * 1e-6:
        # All alike: a band around them.
        low, high = (0.0, 1.0) if from_zero else (low - (size * 0.1 or 1.0), high + (size * 0.1 or 1.0))
    step = _round_step((high - low) / most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, [(n * step, _label(n * step, step)) for n in range(first, last + 1)])


def logarithmic(values: Iterable[float]) -> Axis:
    """A logarithmic axis over positive values, with labels at decades or, when there are few, at 1, 2 and 5."""
    seen = list(values)
    low, high = min(seen), max(seen)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1,) if last - first > 2 else (1, 2, 5)
    every = max(1, math.ceil((last - first) / 6))
    marks = [digit * 10.0**power for power in range(first, last + 1, every) for digit in digits]
    low, high = max(low * 0.9, 10.0**first), min(high * 1.1, 10.0**last)
    return Axis(low, high, [(mark, f"{mark:g}") for mark in marks if low <= mark <= high * 1.0001], log=True)


def spans_decades(values: Iterable[float]) -> bool:
    """Whether a linear axis would hide the small values."""
    seen = list(values)
    return bool(seen) and min(seen) > 0 and max(seen) / min(seen) >= _LOG_FROM


def exact(low: float, high: float, most: int = 6, whole: bool = False) -> Axis:
    """An axis that ends where the values end, with labels at the round values between."""
    if not high > low:
        return Axis(low - 0.5, low + 0.5, [(low, f"{low:g}")])
    step = _round_step((high - low) / most)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, [(n * step, _label(n * step, step)) for n in range(first, last + 1)])


def epoch_axis(places: Iterable[float]) -> Axis:
    """An axis over epochs or steps, with labels at whole numbers only."""
    seen = list(places)
    return exact(min(seen), max(seen), whole=True)


def time_unit(longest: float) -> tuple[float, str]:
    """Seconds in the unit that suits a duration, and its name."""
    for size, name in ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"), (1e-3, "milliseconds")):
        if longest >= 2 * size:
            return size, name
    return 1e-6, "microseconds"


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((digit * power for digit in (1, 2, 5) if rough <= digit * power * 1.0001), 10 * power)


def _label(value: float, step: float) -> str:
    place = math.floor(math.log10(step) + 1e-9)
    if abs(value) >= 1e6 or place < -5:
        digits = math.floor(math.log10(abs(value))) - place + 1 if value else 1
        return f"{value:.{max(digits, 1)}g}"
    return f"{value + 0.0:,.{max(0, -place)}f}"
