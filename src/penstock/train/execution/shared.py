"""Steps that several workers share: the interface of their group, and the modes that make the same step on each."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.nn.drop import dropping
from penstock.nn.norm import SharedBatch
from penstock.pipeline.loader import Batch, Loaded
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder
from penstock.train.execution.loaded import LoadedExecution, LoadedSteps, prepared_batch
from penstock.train.layerwise.inference import Inference
from penstock.train.layerwise.plan import LayerPlan
from penstock.train.session import Execution, Pause, Session, Steps

# The interface of a group of workers that train one model together.

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


# Steps that several workers share: each computes its part of every batch, and all make the same step.


class SharedExecution(LoadedExecution):
    """Among workers. Where batches are drawn and the graph lies is as in the execution of one worker alone."""

    name = "shared"

    def __init__(self, session: Session, alone: Execution, group: WorkerGroup) -> None:
        super().__init__(session)
        self.alone, self.group = alone, group

    def sample(self, planned: Planned) -> Batch:
        """As a worker alone does."""
        return self.alone.sample(planned)

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """One at a time: between two the workers sum their gradients."""
        return SharedSteps(self._session, self, schedule, start, recorder)

    def inference(self) -> Inference:
        """Computed by all workers together."""
        found: Inference = self.group.inference(self._session)
        return found

    def is_stopped(self, own: bool) -> bool:
        """Whether some worker says so."""
        return not self.group.all_agree(not own)

    def prepare_checkpoint(self) -> None:
        """The optimiser's state may be with parameter servers."""
        self.group.gather_optimiser(self._session)

    def state(self) -> Any:
        """As a worker alone keeps it."""
        return self.alone.state()

    def restore(self, state: Any) -> None:
        """As a worker alone does."""
        self.alone.restore(state)

    def facts(self) -> dict[str, Any]:
        """Of this worker's processor."""
        return {**self.alone.facts(), **self.group_facts()}


class SharedSteps(LoadedSteps):
    """Does this worker's share of the batches of a schedule."""

    def __init__(
        self, session: Session, execution: SharedExecution, schedule: Schedule, start: Position, recorder: Recorder
    ) -> None:
        self._group = execution.group
        drawn, planned = (map(self._group.share, schedule.from_position(start)) for _ in range(2))
        super().__init__(session, execution.sampling(schedule, drawn), planned, recorder, execution.stale)

    def _step(self, loaded: Loaded) -> float:
        """The mean over the seeds of the whole batch is the sum of the workers' parts."""
        session, group, batch = self._session, self._group, loaded.batch
        assert loaded.whole is not None
        x = prepared_batch(session, loaded)
        key, normalising = loaded.planned.key.purpose("dropout"), group.normalising(session, batch)
        with running_figures_kept(session):
            drawing = session.drawing(key)
            with drawing, dropping(key, batch.row_names), session.precision(), normalising as shared:
                loss = session.task.loss(session.encode(batch, x), batch)
            # Weighted losses are a sum over the seeds. A subgraph may hold no training vertex in any worker's share.
            share = 1.0 if batch.seed_weights is not None else loaded.examples / max(1, loaded.whole)
            part = (loss if shared is None else shared.joined(loss)) * share
            session.backward(part)
            # Gradients of learnable rows first: once the workers agree, all of them have been handed in.
            session.inputs.learn(batch, x)
            return group.reduce_and_step(session, float(part.detach()))


@contextmanager
def running_figures_kept(session: Session) -> Iterator[None]:
    """Should a step fail, running figures are again those before it: it is done again, and moves them then."""
    before: list[tuple[torch.Tensor, torch.Tensor]] = [(each, each.clone()) for each in session.learned.buffers()]
    try:
        yield
    except BaseException:
        for figure, value in before:
            figure.copy_(value)
        raise


# Steps among workers whose samplers follow explanations of the model, which are made beside training.


class Explanations(Protocol):
    """What is explained of the model. Batches wait for their explanation in their own threads."""

    def start(self, step: int) -> None:
        """Training goes on with the batch of a step, counted from 0."""

    def step_done(self, step: int) -> None:
        """So many steps of the run are done, and the model has the weights after the last of them."""

    def stop(self) -> None:
        """Training pauses: nothing that was started is left running, and no batch waits any more."""

    def state(self) -> Any:
        """What a checkpoint keeps: from it, explanations come out as they were."""

    def restore(self, state: Any) -> None:
        """Take what a checkpoint has kept."""

    def facts(self) -> dict[str, Any]:
        """For the result."""


class ExplainedExecution(SharedExecution):
    """As among workers; and every so often a copy of the model is explained."""

    name = "explained"

    def __init__(self, session: Session, group: WorkerGroup) -> None:
        super().__init__(session, LoadedExecution(session), group)
        self.explanations: Explanations = group.explanations(session)

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """One at a time, with explanations beside them."""
        return ExplainedSteps(self._session, self, schedule, start, recorder)

    def state(self) -> Any:
        """With what explanations are made from."""
        return {"alone": self.alone.state(), "explanations": self.explanations.state()}

    def restore(self, state: Any) -> None:
        """From a checkpoint."""
        if isinstance(state, dict):
            self.alone.restore(state.get("alone"))
            self.explanations.restore(state.get("explanations"))

    def facts(self) -> dict[str, Any]:
        """With those of this worker's explanations."""
        return {**super().facts(), "explanations": self.explanations.facts()}


class ExplainedSteps(SharedSteps):
    """Does this worker's share of the batches, and tells explanations how far it has come."""

    def __init__(
        self, session: Session, execution: ExplainedExecution, schedule: Schedule, start: Position, recorder: Recorder
    ) -> None:
        super().__init__(session, execution, schedule, start, recorder)
        self._explanations, self._batches = execution.explanations, schedule.batches
        self._explanations.start(start.epoch * schedule.batches + start.batch)

    def __exit__(self, *_: object) -> None:
        # First: a batch that waits for its explanation would never let its thread end.
        self._explanations.stop()
        super().__exit__(*_)

    def _step(self, loaded: Loaded) -> float:
        loss = super()._step(loaded)
        self._explanations.step_done(loaded.position.epoch * self._batches + loaded.position.batch + 1)
        return loss
