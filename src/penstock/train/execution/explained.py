"""Steps among workers whose samplers follow explanations of the model, which are made beside training."""

from typing import Any, Protocol

from penstock.pipeline.clock import Recorder
from penstock.pipeline.loader import Loaded
from penstock.pipeline.schedule import Position, Schedule
from penstock.train.execution.loaded import LoadedExecution
from penstock.train.execution.shared import SharedExecution, SharedSteps
from penstock.train.execution.worker_group import WorkerGroup
from penstock.train.session import Session
from penstock.train.steps import Pause, Steps


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
