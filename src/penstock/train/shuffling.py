"""When the seeds of an epoch are shuffled: always, never, or from the elbow of the validation curve on.

The elbow is found by one rule. Let b(t) be the best value of the first t validations. The curve has passed its elbow
when the last `WINDOW` validations brought less than `SHARE` of what all of them brought since the first:
b(t) - b(t - WINDOW) < SHARE * (b(t) - b(1)), or nothing at all. The rule has no unit, so it is the same for accuracy,
ranks and errors, and it asks for at least WINDOW + 1 validations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WINDOW = 3
"""Validations that are looked back on."""
SHARE = 0.1
"""The share of the whole gain below which these have gained little."""


@dataclass(frozen=True)
class Shuffling:
    """One value of the job field `shuffle`."""

    first: int | None
    """The first epoch that is shuffled before any validation is known; None: none is."""
    waits_for_elbow: bool = False
    """Whether shuffling begins at the elbow of the validation curve."""


SHUFFLINGS = {
    "always": Shuffling(0),
    "never": Shuffling(None),
    "adaptive": Shuffling(None, waits_for_elbow=True),
}
"""The values of the job field `shuffle`."""


def past_elbow(values: Sequence[float], better: Literal["higher", "lower"]) -> bool:
    """Whether a curve of validations, from the first to the newest, has passed its elbow."""
    if len(values) <= WINDOW:
        return False
    sign = 1.0 if better == "higher" else -1.0
    signed = [sign * value for value in values]
    now, before, first = max(signed), max(signed[:-WINDOW]), signed[0]
    return now == before or now - before < SHARE * (now - first)
