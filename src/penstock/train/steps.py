"""What an execution mode does for the loop: draw batches, do steps, infer, and say what a checkpoint keeps of it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, Self

from penstock.pipeline.clock import Recorder, StageTime
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.train.layerwise.inference import Inference

Pause = Callable[[Position], int]
"""How many steps may be done from a position on before the loop must see the weights."""


class Step(NamedTuple):
    """A step that is done."""

    position: Position
    examples: int
    loss: float
    last: bool
    """Whether its epoch ends with it."""


class Steps(Protocol):
    """Iterate to do steps: each item is the list of those done since the last one, in order.

    Between two items the weights are those of the last step.
    """

    def __iter__(self) -> Iterator[list[Step]]:
        """Do steps until the schedule ends."""

    def __enter__(self) -> Self:
        """Get ready."""

    def __exit__(self, *_: object) -> None:
        """End every thread, whatever has happened."""

    def aside(self) -> AbstractContextManager[None]:
        """Around what is no part of a step: validation, checkpoints."""

    def times(self) -> dict[str, StageTime]:
        """Busy and waiting seconds of the stages so far."""


class Execution(Protocol):
    """How one session is executed. It belongs to that session for as long as the session lives."""

    name: str
    """Of its mode in the registry."""

    def sample(self, planned: Planned) -> Batch:
        """A planned batch, drawn by the host or the device."""

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """The steps of a schedule from a position on."""

    def inference(self) -> Inference:
        """Exact outputs with the weights of this moment."""

    def is_stopped(self, own: bool) -> bool:
        """Whether this process, or another worker, wants the run to end with this epoch; all workers ask together."""

    def prepare_checkpoint(self) -> None:
        """Bring to this process what a checkpoint needs and others keep."""

    def state(self) -> Any:
        """What a checkpoint keeps of the execution, or None."""

    def restore(self, state: Any) -> None:
        """Take what a checkpoint has kept."""

    def facts(self) -> dict[str, Any]:
        """What a result says of the processor: where the graph lies, and the device's memory."""
