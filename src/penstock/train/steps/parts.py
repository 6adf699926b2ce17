"""What a step is put together from: a source of batches, what computes gradients, and an update with them.

The fourth part, how a slot gets its inputs, is `first_layer.slots.SlotFill`. The engine knows nothing else of any.
Methods with a body are what most sources and updates do.
"""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from penstock.pipeline.schedule import Position


class Source(Protocol):
    """Where batches come from: memory for some of them at fixed places, and how the next one gets there."""

    stages: tuple[str, ...] = ("sample", "compute")
    """What is timed."""
    is_drawn: bool = False
    """Whether batches are drawn by launches of their own, beside the steps."""
    can_skip: bool = True
    """Whether a step can be left out on the device: then it is warmed up and recorded before the first."""

    @abstractmethod
    def fill(self, position: Position) -> None:
        """Make an epoch ready from one of its batches on; nothing behind the last epoch."""

    @abstractmethod
    def slot(self, number: int) -> Any:
        """Memory for a batch, in the ring's place `number`; its `slot`, where it is drawn, is what a fill is attached
        to."""

    def idle(self) -> None:
        """No step counts until `restart`: they are only warmed up and recorded."""
        return

    def first(self) -> None:
        """The next batch that is drawn to warm up is the first."""
        return

    def prepare(self, slot: Any, number: int) -> None:
        """Called before a batch's launches."""
        return

    def draw(self, slot: Any) -> None:
        """Launch the draw of the next batch; recorded."""
        return

    @abstractmethod
    def keep(self, slot: Any, loss: Tensor) -> None:
        """Launch the way of a loss to its place among the epoch's; recorded."""

    def restart(self, batch: int) -> None:
        """Batches are drawn in order from this one on; nothing is left of any other."""
        return

    @abstractmethod
    def look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """Losses of the batches [first, last) that were learned from, and the first that lacked room."""

    def lacks_room(self, batch: int) -> bool:
        """Whether it was this source's batch that lacked room, and not another worker's share."""
        return False

    def enlarge(self, failed: int) -> None:
        """Make room for a batch that lacked it: slots are made anew."""
        return

    def close(self) -> None:
        """End every thread."""
        return


class LearnedRows(Protocol):
    """Learnable rows that a step has read, with their gradients."""

    def learned_rows(self) -> list[Tensor]:
        """Those that are to be clipped with the parameters."""

    def learn(self) -> None:
        """Make their step."""


class Gradients(NamedTuple):
    """What a step knows when the parameters have their gradients; numbers are on the device."""

    loss: Tensor
    skip: Tensor | None = None
    """1 where the step must be left out."""
    rows: LearnedRows | None = None


class Compute(Protocol):
    """What is computed of a batch."""

    def gradients(self, slot: Any, inputs: Any) -> Gradients:
        """Forward and back, with what the slot's fill gives; recorded."""


class Update(Protocol):
    """What is done with gradients."""

    most: int
    """The longest burst."""
    is_apart: bool = False
    """Whether `apply` is launched behind a step, with something else in between."""

    def prepare(self) -> None:
        """Called before anything is recorded, where steps can be left out."""
        return

    @abstractmethod
    def take(self, slot: Any, found: Gradients) -> Any:
        """The last of a step's launches; recorded. Returns what is kept for the slot."""

    def launched(self, position: Position) -> None:
        """A step was launched; `apply` follows."""
        return

    def apply(self) -> None:
        """The optimiser's step, where it is apart; recorded."""
        return

    def burst(self, many: int) -> AbstractContextManager[Any]:
        """Around a burst of `many` steps, which counts as a whole."""
        return nullcontext()

    def look(self, source: Source, first: int, last: int) -> tuple[list[float], int | None]:
        """See `Source.look`; as all workers see it, where there are several."""
        return source.look(first, last)

    def settled(self, kept: Any, position: Position, losses: list[float]) -> list[float]:
        """The host has seen losses; `kept` and `position` are the last one's. Returns those of the whole batches."""
        return losses
