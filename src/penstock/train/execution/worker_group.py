"""The interface of a group of workers that train one model together."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.nn.norm import SharedBatch
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.train.session import Session


class RegroupError(Exception):
    """A worker was lost: the others must meet again before the step under way can be done."""


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

    def inference(self, session: Session) -> Any:
        """Exact outputs, computed by all workers together."""

    def whole(self, session: Session) -> Any:
        """The workers as training on the whole graph sees them (`train.whole.shared.interfaces.WholeWorkers`)."""

    def gather_optimiser(self, session: Session) -> None:
        """Before the optimiser's state is written: bring it here if it is kept elsewhere."""
