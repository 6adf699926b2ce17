"""Steps that several workers share on batches of the pipeline, and those whose samplers follow explanations."""

from typing import Any, Protocol

from penstock.pipeline.loader import Batch, Loaded, Loader
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder
from penstock.train.execution.loaded import LoadedExecution
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Execution, Pause, Session, Steps
from penstock.train.steps.group import WorkerGroup
from penstock.train.steps.loaded import LearnTogether, LoadedStep
from penstock.train.steps.one_by_one import OneByOne

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
        learn = LearnTogether(self._session, self.group)
        return OneByOne(self.shares(schedule, start, recorder), LoadedStep(learn))

    def shares(self, schedule: Schedule, start: Position, recorder: Recorder) -> Loader:
        """The pipeline of this worker's shares of the batches."""
        drawn, planned = (map(self.group.share, schedule.from_position(start)) for _ in range(2))
        return self.loader(self.sampling(schedule, drawn), planned, recorder)

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
        """One at a time, with explanations beside them, which hear how far this worker has come."""
        explanations, together = self.explanations, LearnTogether(self._session, self.group)

        def learn(loaded: Loaded) -> float:
            loss = together(loaded)
            explanations.step_done(loaded.position.epoch * schedule.batches + loaded.position.batch + 1)
            return loss

        shares = self.shares(schedule, start, recorder)
        explanations.start(start.epoch * schedule.batches + start.batch)
        # A batch that waits for its explanation would never let its thread end.
        return OneByOne(shares, LoadedStep(learn), explanations.stop)

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
