"""Steps on the whole graph: every layer's bins forward, the loss, and the bins backward."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, Self, cast

import torch
from torch import Tensor

from penstock.pipeline.clock import Recorder, StageClock, StageTime, times_in_turn
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.train.session import Session
from penstock.train.steps import Step
from penstock.train.whole.schedule import repeated_epochs


class RepeatedSteps:
    """Does the steps of a schedule one at a time, the same ones in every epoch."""

    stages: ClassVar[tuple[str, ...]] = ("forward", "backward", "update")

    def __init__(self, session: Session, schedule: Schedule, start: Position, recorder: Recorder) -> None:
        self._session, self._planned = session, repeated_epochs(schedule, start)
        self._clocks = {name: StageClock(name, 1, 1, recorder) for name in self.stages}

    def __iter__(self) -> Iterator[list[Step]]:
        for planned in self._planned:
            loss = self._step(planned)
            yield [Step(planned.position, len(planned.seeds), loss, planned.last)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left running."""

    def aside(self) -> AbstractContextManager[None]:
        """Around what is no part of a step."""
        return nullcontext()

    def times(self) -> dict[str, StageTime]:
        """Of the stages, which take turns."""
        return times_in_turn(self._clocks)

    def _step(self, planned: Planned) -> float:
        """Do a step; its loss."""
        raise NotImplementedError

    def _record(self, stage: str, began: float, planned: Planned) -> float:
        self._clocks[stage].worked(0, began, planned)
        return time.perf_counter()


class WholeSteps(RepeatedSteps):
    """Steps on one machine; `passes` makes the forward and backward pass of a planned step."""

    def __init__(
        self,
        session: Session,
        passes: "Callable[[Planned], Passes]",
        schedule: Schedule,
        start: Position,
        recorder: Recorder,
    ) -> None:
        super().__init__(session, schedule, start, recorder)
        self._passes = passes

    def _step(self, planned: Planned) -> float:
        session = self._session
        session.optimiser.zero_grad(set_to_none=True)
        began = time.perf_counter()
        with session.drawing(planned.key.purpose("dropout")):
            passes = self._passes(planned)
            loss = passes.forward()
        value = float(loss.detach())
        began = self._record("forward", began, planned)
        if not math.isfinite(value):
            return value
        passes.backward(loss)
        began = self._record("backward", began, planned)
        self._update(passes)
        self._record("update", began, planned)
        return value

    def _update(self, passes: "Passes") -> None:
        session = self._session
        if session.job.clip:
            torch.nn.utils.clip_grad_norm_([*session.learned.parameters(), *passes.learned_rows()], session.job.clip)
        cast(Any, session.optimiser).found_inf = None
        session.optimiser.step()
        passes.learn()


class Passes(Protocol):
    """The forward and backward pass of one step."""

    def forward(self) -> Tensor:
        """The loss of the step's examples."""

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss in the parameters, and of learnable rows."""

    def learned_rows(self) -> list[Tensor]:
        """Learnable rows with their gradients, to be clipped with the others."""

    def learn(self) -> None:
        """Push the gradients of learnable rows."""
