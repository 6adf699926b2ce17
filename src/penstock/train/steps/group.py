"""The interface of a group of workers that train one model together."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from penstock.nn.norm import SharedBatch
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.train.layerwise.inference import LayerPlan
from penstock.train.session import Session

PlaceWhole = Callable[[LayerPlan], LayerPlan | None]
"""Makes a plan for a device that has the whole graph from the plan of all workers; None where that has no room."""


class RegroupError(Exception):
    """A worker was lost: the others must regroup before the current step can be done."""


class DeviceSums(Protocol):
    """Sums over all workers that captured steps launch between their gradients and the step of the optimiser."""

    def launch(self, numbers: Tensor) -> None:
        """Launch an in-place sum over all workers of numbers in the device's memory; later launches read the sums."""

    def finish(self, is_done: Callable[[], bool]) -> None:
        """Wait until everything launched is done. Raises RegroupError when a worker was lost before that."""

    def abandon(self) -> None:
        """End sums that others have not joined, with whatever numbers; no other can be launched."""


class WorkerGroup(Protocol):
    """The workers of a run, as seen by one of them. All do the same steps, each on its share of every batch."""

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0; the first one writes the run folder."""

    @property
    def world(self) -> int:
        """The number of workers that share each batch, this one among them."""

    def share(self, planned: Planned) -> Planned:
        """A planned batch with this worker's seeds only."""

    def normalising(self, session: Session, batch: Batch) -> AbstractContextManager[SharedBatch | None]:
        """A context for the forward pass of this worker's share of a batch: norms use all workers' rows."""

    def reduce_and_step(self, session: Session, loss: float) -> float:
        """Sum the gradients in all workers' parameters and make the optimiser's step.

        `loss` is this worker's part of the batch's loss; returns the batch's. When it returns, all workers have made
        the step. Raises RegroupError, and then has changed nothing.
        """

    def device_sums(self) -> DeviceSums | None:
        """How captured steps sum their gradients; None where the workers do not make the
        optimiser's step themselves.
        """

    def all_agree(self, own: bool) -> bool:
        """Whether `own` is true on all workers. Every worker must call it at the same point of the run."""

    def was_asked_to_stop(self) -> bool:
        """Whether this worker was asked to stop; other workers need not know of it."""

    def count_steps(self, session: Session, steps: int, stopping: bool) -> None:
        """Report steps that were done without `reduce_and_step`; `stopping` says whether a worker was asked to stop."""

    def inference(self, session: Session, place: PlaceWhole | None = None) -> Any:
        """Exact inference: computed by all workers together, or by each for itself if `place`
        succeeds on all of them.
        """

    def whole(self, session: Session) -> Any:
        """The interface of the workers for training on the whole graph
        (`train.whole.shared.interfaces.WholeWorkers`).
        """

    def explanations(self, session: Session) -> Any:
        """The explanations of the model that are made during training (`train.execution.loaded.Explanations`)."""

    def gather_optimiser(self, session: Session) -> None:
        """Collect the optimiser's state in this process before it is written, if it is kept elsewhere."""
