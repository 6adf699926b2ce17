"""The parts of a step: a source of batches, and the computation of gradients.

The others are the fill of a slot's inputs (`first_layer.slots.SlotFill`), and the update with the gradients
(`update.Update`). The engine uses only these interfaces. Methods with a body are defaults that suit most of them.
"""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from penstock.pipeline.schedule import Position


class Source(Protocol):
    """Provides batches: memory for some of them at fixed addresses, and the drawing of the next one into it."""

    stages: tuple[str, ...] = ("sample", "compute")
    """The stages that are timed."""
    is_drawn: bool = False
    """Whether batches are drawn by launches of their own, concurrent with the steps."""
    can_skip: bool = True
    """Whether the device can skip a step: then steps are warmed up and recorded before the first."""

    @abstractmethod
    def fill(self, position: Position) -> None:
        """Prepare an epoch's batches from a position on; does nothing after the last epoch."""

    @abstractmethod
    def slot(self, number: int) -> Any:
        """Memory for a batch, at place `number` of the ring; where it is drawn, a fill is attached to its `slot`."""

    def idle(self) -> None:
        """Make all steps until `restart` be skipped, since they are only warm-ups and recordings."""
        return

    def first(self) -> None:
        """Make the next draw, of a warm-up, that of the first batch."""
        return

    def prepare(self, slot: Any, number: int) -> None:
        """Called before a batch's work is launched."""
        return

    def draw(self, slot: Any) -> None:
        """Launch the draw of the next batch; recorded."""
        return

    @abstractmethod
    def keep(self, slot: Any, loss: Tensor) -> None:
        """Launch the copy of a loss to its place among the epoch's losses; recorded."""

    def restart(self, batch: int) -> None:
        """Draw batches in order from this one on; the state of any other batch is cleared."""
        return

    @abstractmethod
    def look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """The losses of those of the batches [first, last) that were trained on, and the first that lacked room, if
        any.
        """

    def examples(self, batch: int) -> int | None:
        """How many examples a batch had, of those that were last looked at; None: its items."""
        return None

    def lacks_room(self, batch: int) -> bool:
        """Whether this source's batch lacked room, rather than another worker's share."""
        return False

    def enlarge(self, failed: int) -> None:
        """Enlarge the room for a batch that lacked it; slots must be made again."""
        return

    def close(self) -> None:
        """End every thread that was started for steps; by default there is none."""
        return


class LearnedRows(Protocol):
    """Learned embeddings that a step has read, with their gradients."""

    def learned_rows(self) -> list[Tensor]:
        """The rows whose gradients are clipped with the parameters'."""

    def learn(self) -> None:
        """Make the optimiser's step of the rows."""


class StepGradients(NamedTuple):
    """The results of a backward pass, on the device; the gradients themselves are in the parameters."""

    loss: Tensor
    skip: Tensor | None = None
    """1 on the device where the step must be skipped."""
    rows: LearnedRows | None = None


class StepCompute(Protocol):
    """The computation of a batch's gradients."""

    @abstractmethod
    def gradients(self, slot: Any, inputs: Any) -> StepGradients:
        """Do the forward and backward pass on the inputs that the slot's fill gives; recorded."""

    def drawing(self, position: Position) -> AbstractContextManager[None]:
        """A context in which the step of a batch is launched, for what it draws from torch's generators."""
        return nullcontext()

    def constants(self) -> Any:
        """What a recorded step holds fixed although it may change from one burst to the next."""
        return None
