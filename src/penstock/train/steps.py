"""Steps of training, one after the other: a batch in, the weights changed, the loss out."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, Self, cast

import torch

from penstock.nn.drop import dropping
from penstock.pipeline.clock import Recorder, StageTime
from penstock.pipeline.loader import Loaded, Loader
from penstock.pipeline.schedule import Position, Schedule
from penstock.train.session import Session
from penstock.train.worker_group import WorkerGroup
from penstock.turn import taking_turn, turn_of


class Step(NamedTuple):
    """A step that is done."""

    position: Position
    examples: int
    loss: float
    last: bool
    """Whether its epoch ends with it."""


class Steps(Protocol):
    """Iterate to do steps: what is given are those done since, in order. Between two the weights are the last one's."""

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


def steps_of(
    session: Session, schedule: Schedule, start: Position, pause: Callable[[Position], int], recorder: Recorder
) -> Steps:
    """The way to do steps that fits a session. `pause` says how many may be done before the loop must see them."""
    if session.device is not None and session.device.is_captured:
        from penstock.train.device.captured import CapturedSteps

        return CapturedSteps(session, schedule, start, pause, recorder)
    return LoadedSteps(session, schedule, start, recorder)


class LoadedSteps:
    """A step at a time, on batches that a pipeline makes ready."""

    def __init__(self, session: Session, schedule: Schedule, start: Position, recorder: Recorder) -> None:
        self._session = session
        inputs, task, worker_group = session.inputs, session.task, session.worker_group
        planned = schedule.from_position(start)
        self._loader = Loader(
            planned if worker_group is None else map(worker_group.share, planned),
            session.sample,
            inputs.carrier,
            task.label,
            session.job,
            recorder,
        )

    def __iter__(self) -> Iterator[list[Step]]:
        for loaded in self._loader:
            with taking_turn(turn_of(*loaded.position)):
                loss = self._step(loaded)
            examples = loaded.examples if loaded.whole is None else loaded.whole
            yield [Step(loaded.position, examples, loss, loaded.planned.last)]

    def __enter__(self) -> Self:
        self._loader.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()

    def aside(self) -> AbstractContextManager[None]:
        """Around what is no part of a step."""
        return self._loader.aside()

    def times(self) -> dict[str, StageTime]:
        """Of the five stages."""
        return self._loader.times()

    def _step(self, loaded: Loaded) -> float:
        session, batch = self._session, loaded.batch
        # Dropout draws belong to the batch: the same whether the run was interrupted or not. torch's generator is for
        # modules of the user's. (torch.manual_seed also formats a stack trace for each kind of device.)
        key = loaded.planned.key.purpose("dropout")
        torch.default_generator.manual_seed(int(key) & (1 << 63) - 1)
        if session.device is not None:
            torch.cuda.manual_seed(int(key) & (1 << 63) - 1)
        x = session.inputs.complete(batch)
        session.optimiser.zero_grad(set_to_none=True)
        if session.worker_group is not None:
            with _figures_kept(session):
                return self._step_together(loaded, x, session.worker_group)
        with dropping(key, batch.row_names), session.precision():
            loss = session.task.loss(session.encode(batch, x), batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            return value
        skip = session.backward(loss)
        if session.job.clip:
            rows = session.inputs.learned_rows(batch, x)
            torch.nn.utils.clip_grad_norm_([*session.learned.parameters(), *rows], session.job.clip)
        cast(Any, session.optimiser).found_inf = None if skip is None else skip[0]
        session.optimiser.step()
        session.inputs.learn(batch, x)
        return value

    def _step_together(self, loaded: Loaded, x: dict[str, torch.Tensor], worker_group: WorkerGroup) -> float:
        """The step of a batch that several workers share: the mean over its seeds is the sum of their parts."""
        session, planned, batch = self._session, loaded.planned, loaded.batch
        assert loaded.whole is not None
        names = planned.key.purpose("dropout"), batch.row_names
        with dropping(*names), session.precision(), worker_group.normalising(session, batch) as shared:
            loss = session.task.loss(session.encode(batch, x), batch)
        # Weighted losses are a sum over the seeds. A subgraph may hold no training vertex in any worker's share.
        share = 1.0 if batch.seed_weights is not None else loaded.examples / max(1, loaded.whole)
        part = (loss if shared is None else shared.joined(loss)) * share
        session.backward(part)
        # Gradients of learnable rows first: once the workers agree, all of them have been handed in.
        session.inputs.learn(batch, x)
        return worker_group.reduce_and_step(session, float(part.detach()))


@contextmanager
def _figures_kept(session: Session) -> Iterator[None]:
    """Should a step fail, running figures are again those before it: it is done again, and moves them then."""
    before = [(figure, figure.clone()) for figure in session.learned.buffers()]
    try:
        yield
    except BaseException:
        for figure, value in before:
            figure.copy_(value)
        raise
