"""Steps that several workers share: each computes its part of every batch, and all make the same step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from penstock.nn.drop import dropping
from penstock.pipeline.clock import Recorder
from penstock.pipeline.loader import Batch, Loaded
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.train.execution.loaded import LoadedExecution, LoadedSteps, prepared_batch
from penstock.train.execution.worker_group import WorkerGroup
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Session
from penstock.train.steps import Execution, Pause, Steps


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
