"""The interface of a group of workers that train one model together."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from penstock.nn.norm import SharedBatch
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.train.layerwise.plan import LayerPlan
from penstock.train.session import Session

PlaceWhole = Callable[[LayerPlan], LayerPlan | None]
"""From the plan of all workers to one for a device that has the whole graph; None where that has no room."""


class RegroupError(Exception):
    """A worker was lost: the others must meet again before the step under way can be done."""


class DeviceSums(Protocol):
    """Sums over all workers that captured steps launch between their gradients and the step of the optimiser."""

    def launch(self, numbers: Tensor) -> None:
        """Sum numbers in the device's memory over all workers, in place; what is launched next finds the sums."""

    def finish(self, is_done: Callable[[], bool]) -> None:
        """Wait until everything launched is done. Raises RegroupError when a worker was lost before that."""


class WorkerGroup(Protocol):
    """The workers of a run, as one of them sees them. All do the same steps, each on its share of every batch."""

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0; the first one writes the run folder."""

    @property
    def world(self) -> int:
        """The number of workers."""

    def share(self, planned: Planned) -> Planned:
        """This worker's seeds of a batch."""

    def normalising(self, session: Session, batch: Batch) -> AbstractContextManager[SharedBatch | None]:
        """Around the forward pass of this worker's share of a batch: norms are those of all workers' rows."""

    def reduce_and_step(self, session: Session, loss: float) -> float:
        """From every worker's gradients, which are in the parameters, to the weights after the step.

        `loss` is this worker's part of the batch's; returns the batch's. Whoever returns knows that all have come so
        far. Raises RegroupError, and has changed nothing then.
        """

    def device_sums(self) -> DeviceSums | None:
        """How captured steps sum their gradients; None where the workers do not make the step themselves."""

    def all_agree(self, own: bool) -> bool:
        """Whether this worker and all others say so. Every worker asks at the same place of the run."""

    def was_asked_to_stop(self) -> bool:
        """Whether this worker was asked to stop; the others may not know."""

    def count_steps(self, session: Session, steps: int, stopping: bool) -> None:
        """So many steps were done without `reduce_and_step`; `stopping`: some worker had been asked to stop."""

    def inference(self, session: Session, place: PlaceWhole | None = None) -> Any:
        """Exact outputs: computed by all workers together, or by each for itself if `place` succeeds on all of them."""

    def whole(self, session: Session) -> Any:
        """The workers as training on the whole graph sees them (`train.whole.shared.interfaces.WholeWorkers`)."""

    def explanations(self, session: Session) -> Any:
        """Explanations of the model beside training (`Explanations`)."""

    def gather_optimiser(self, session: Session) -> None:
        """Before the optimiser's state is written: bring it here if it is kept elsewhere."""
