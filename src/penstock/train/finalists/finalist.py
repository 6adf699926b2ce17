"""What a field that a job leaves open declares, so that its values can be timed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.cost.model import CostModel
from penstock.train.session import Session

FEWEST = 8
"""Batches of a trial, of which the first quarter fills the pipeline and is not counted."""
ENOUGH = 60
"""Batches that a finalist is tried on at most, unless it says otherwise."""


@dataclass(frozen=True)
class Finalist:
    """A value of a field that may turn out to be the fastest."""

    value: Any
    predicted: float | None = None
    """Seconds of a batch, where the cost model knows its operators."""
    batches: int = FEWEST
    """That a trial must train at least."""
    enough: int = ENOUGH
    """More of them are not trained."""


@dataclass(frozen=True)
class OpenField:
    """A field of a job whose value may be left open, and is then decided when a run starts."""

    name: str
    is_open: Callable[[Session], bool]
    """Whether the job of a session leaves it open, and there is more than one value for such a session."""
    finalists: Callable[[Session, CostModel], list[Finalist]]
    """At most three; the first is the value that is taken without a trial."""
    take: Callable[[Session, Any], None]
    """Have the session use a value from its next step on."""
