"""Steps one at a time, on batches that the pipeline makes ready: the mode that can do everything, alone or shared by
workers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.pipeline.grouped_batches import DrawingProcessor, GroupedBatches, ReusedBatches
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import AheadLoader, Batch, Loaded, Loader, OfBatch, Recorder, no_context
from penstock.processes import default_threads
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Execution, Pause, Session, Steps
from penstock.train.steps.group import WorkerGroup
from penstock.train.steps.one_by_one import LearnAlone, LearnTogether, LoadedStep, OneByOne, StaleWeights
from penstock.wire.coflows import batch_order, within_batch


class LoadedExecution:
    """The execution by one process on the host."""

    name = "loaded"
    of_batch: OfBatch = staticmethod(no_context)

    def __init__(self, session: Session) -> None:
        self._session = session
        self.stale = StaleWeights(session.learned, session.job.staleness)
        self._grouped: GroupedBatches | None = None

    def sample(self, planned: Planned) -> Batch:
        return self._session.task.sample(planned)

    def prepare(self, schedule: Schedule) -> dict[str, Any]:
        """Nothing: every step makes ready what it needs."""
        return {}

    def follow(self, decided: Mapping[str, Any]) -> None:
        """Do nothing: the job's fields decide all."""

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps one at a time, so that the loop sees the weights after each."""
        planned = schedule.from_position(start), schedule.from_position(start)
        loader = self.loader(self.sampling(schedule, planned[0]), planned[1], recorder)
        return OneByOne(loader, LoadedStep(LearnAlone(self._session, self.stale)))

    def loader(
        self, sample: Callable[[Planned], Batch], planned: Iterable[Planned], recorder: Recorder
    ) -> Loader | AheadLoader:
        """The pipeline that makes planned batches ready."""
        session = self._session
        return Loader(planned, sample, session.inputs.carrier, session.task.label, session.job, recorder, self.of_batch)

    def processors(self) -> list[DrawingProcessor]:
        """All that can draw batches at the same time: the threads of the host."""
        threads = self._session.job.threads or default_threads()
        return [DrawingProcessor("cpu", self.sample)] * threads

    def sampling(self, schedule: Schedule, planned: Iterator[Planned]) -> Callable[[Planned], Batch]:
        """The function that draws the planned batches of a schedule: one at a time or in groups;
        reused ones only once.
        """
        job = self._session.job
        reused = ReusedBatches(schedule, job.reuse_mb) if job.reuse_batches else None
        if job.groups == 1:
            return self.sample if reused is None else reused.drawn_by(self.sample)
        processors = self.processors()
        if reused is not None:
            processors = [each._replace(draw=reused.drawn_by(each.draw)) for each in processors]
        self._grouped = GroupedBatches(planned, processors, job.groups)
        return self._grouped

    def inference(self) -> Inference:
        return self._session.whole_graph_inference()

    def is_stopped(self, own: bool) -> bool:
        return own

    def prepare_checkpoint(self) -> None:
        """Do nothing: this process has everything that a checkpoint needs."""

    def state(self) -> Any:
        """Older weights, where gradients are computed on them."""
        return self.stale.state()

    def restore(self, state: Any) -> None:
        self.stale.restore(state)

    def facts(self) -> dict[str, Any]:
        """The graph's place: the host."""
        return {
            "placement": {"topology": "host", "features": "host", "cache_rows": 0},
            "device_peak_mb": None,
            "device_predicted_mb": None,
            **self.group_facts(),
        }

    def group_facts(self) -> dict[str, Any]:
        """Figures of batches that were drawn in groups; empty where none were."""
        return {} if self._grouped is None else {"groups": self._grouped.facts()}


# Steps that several workers share: each computes its part of every batch, and all make the same update.


def requests_of_batch(planned: Planned) -> AbstractContextManager[None]:
    """A context in which this thread's requests belong to the batch."""
    return within_batch(batch_order(*planned.position))


class SharedExecution(LoadedExecution):
    """The execution among workers. Drawing and placement are those of the execution of one worker alone."""

    name = "shared"
    of_batch = staticmethod(requests_of_batch)

    def __init__(self, session: Session, alone: Execution, group: WorkerGroup) -> None:
        super().__init__(session)
        self.alone, self.group = alone, group

    def sample(self, planned: Planned) -> Batch:
        return self.alone.sample(planned)

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps one at a time: the workers sum their gradients in each."""
        learn = LearnTogether(self._session, self.group)
        return OneByOne(self.shares(schedule, start, recorder), LoadedStep(learn, self.of_batch))

    def shares(self, schedule: Schedule, start: Position, recorder: Recorder) -> Loader | AheadLoader:
        """The pipeline of this worker's shares of the batches."""
        drawn, planned = (map(self.group.share, schedule.from_position(start)) for _ in range(2))
        return self.loader(self.sampling(schedule, drawn), planned, recorder)

    def inference(self) -> Inference:
        """Exact inference by all workers together."""
        found: Inference = self.group.inference(self._session)
        return found

    def is_stopped(self, own: bool) -> bool:
        return not self.group.all_agree(not own)

    def prepare_checkpoint(self) -> None:
        """Collect the optimiser's state, which parameter servers may have."""
        self.group.gather_optimiser(self._session)

    def state(self) -> Any:
        return self.alone.state()

    def restore(self, state: Any) -> None:
        self.alone.restore(state)

    def facts(self) -> dict[str, Any]:
        return {**self.alone.facts(), **self.group_facts()}


# Steps among workers whose samplers use explanations of the model, which are made during training.


class Explanations(Protocol):
    """Explanations of the model. Batches wait for their explanation in their own threads."""

    def start(self, step: int) -> None:
        """Start explaining; training continues with the batch of a step, counted from 0."""

    def step_done(self, step: int) -> None:
        """Report that `step` steps of the run are done; the model has the weights after the last of them."""

    def stop(self) -> None:
        """Stop explaining when training pauses: end all threads and release batches that wait."""

    def state(self) -> Any:
        """The state for a checkpoint, from which the same explanations are made again."""

    def restore(self, state: Any) -> None:
        """Load the state of a checkpoint."""

    def facts(self) -> dict[str, Any]:
        """Figures for the run's result."""


class ExplainedExecution(SharedExecution):
    """The execution among workers in which a copy of the model is explained at intervals."""

    name = "explained"

    def __init__(self, session: Session, group: WorkerGroup) -> None:
        super().__init__(session, LoadedExecution(session), group)
        self.explanations: Explanations = group.explanations(session)

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps one at a time, each of which is reported to the explanations."""
        explanations, together = self.explanations, LearnTogether(self._session, self.group)

        def learn(loaded: Loaded) -> float:
            loss = together(loaded)
            explanations.step_done(loaded.position.epoch * schedule.batches + loaded.position.batch + 1)
            return loss

        shares = self.shares(schedule, start, recorder)
        explanations.start(start.epoch * schedule.batches + start.batch)
        # Explanations are stopped first: a batch that waits for one would keep its thread from ending.
        return OneByOne(shares, LoadedStep(learn, self.of_batch), explanations.stop)

    def state(self) -> Any:
        """The workers' state and that of the explanations."""
        return {"alone": self.alone.state(), "explanations": self.explanations.state()}

    def restore(self, state: Any) -> None:
        if isinstance(state, dict):
            self.alone.restore(state.get("alone"))
            self.explanations.restore(state.get("explanations"))

    def facts(self) -> dict[str, Any]:
        """The worker's figures and those of its explanations."""
        return {**super().facts(), "explanations": self.explanations.facts()}
