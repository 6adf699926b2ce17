"""Steps on the whole graph among workers."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from penstock.coflow_context import batch_order, within_batch
from penstock.pipeline.clock import Recorder
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.train.execution.shared import running_figures_kept
from penstock.train.session import Session
from penstock.train.whole.levels import LevelGradients
from penstock.train.whole.shared.backward import BackwardPass
from penstock.train.whole.shared.exchanges import EXCHANGES
from penstock.train.whole.shared.forward import ForwardPass
from penstock.train.whole.shared.interfaces import WholeWorkers
from penstock.train.whole.shared.loss import LossPass
from penstock.train.whole.shared.shared_step import SharedStep
from penstock.train.whole.shared.state import StepState
from penstock.train.whole.steps import RepeatedSteps


class Exposure:
    """Seconds that a run has waited for other workers' rows."""

    seconds = 0.0


class SharedWholeSteps(RepeatedSteps):
    """Does this worker's part of the steps of a schedule."""

    stages = ("forward", "exchange", "backward", "update")

    def __init__(
        self,
        session: Session,
        workers: WholeWorkers,
        prepared: Sequence[SharedStep],
        schedule: Schedule,
        start: Position,
        recorder: Recorder,
        exposure: Exposure,
    ) -> None:
        super().__init__(session, schedule, start, recorder)
        self._workers, self._prepared, self._exposure = workers, prepared, exposure

    def _step(self, planned: Planned) -> float:
        with within_batch(batch_order(*planned.position)), running_figures_kept(self._session):
            return self._exchanged_step(planned, self._prepared[planned.key.batch])

    def _exchanged_step(self, planned: Planned, step: SharedStep) -> float:
        session, workers = self._session, self._workers
        session.optimiser.zero_grad(set_to_none=True)
        how = EXCHANGES[session.job.exchange]
        stage = ["forward"]

        def waited(began: float) -> None:
            taken = time.perf_counter() - began
            self._exposure.seconds += taken
            self._clocks["exchange"].worked(0, began, planned)
            self._clocks[stage[0]].rest(taken)

        began = time.perf_counter()
        workers.mail.begin(planned.position)
        draw = how.draw(planned.key, session.job)
        state = StepState(session, step, workers, planned.key, how.pipeline(session.job), draw, waited)
        with session.drawing(planned.key.purpose("dropout")):
            ForwardPass(state).run()
            loss = LossPass(state, step.loss_rows.of(planned.key))
            value = loss.forward()
        began = self._record(stage[0], began, planned)
        stage[0] = "backward"
        inputs = _backward(state, loss)
        began = self._record(stage[0], began, planned)
        # Gradients of learnable rows first: once the workers agree, all of them have been handed in.
        _learn(session, step, inputs)
        workers.mail.end()
        total = workers.reduce_and_step(session, value)
        self._record("update", began, planned)
        return total


def _backward(state: StepState, loss: LossPass) -> LevelGradients:
    """Gradients into the parameters; returns those of the input rows."""
    gradients = [LevelGradients(level.counts, state.step.device) for level in state.plan.levels]
    loss.backward(gradients)
    sums: dict[Parameter, Tensor] = {}
    for parameter in state.session.learned.parameters():
        if parameter.grad is not None:
            sums[parameter], parameter.grad = parameter.grad, None
    BackwardPass(state, gradients, sums).run()
    for parameter, total in sums.items():
        parameter.grad = total
    return gradients[0]


def _learn(session: Session, step: SharedStep, gradients: LevelGradients) -> None:
    """Hand in the gradients of learnable rows."""
    vertices = {kind: step.plan.levels[0].vertices[kind] for kind in session.inputs.tables}
    rows = {}
    for kind in vertices:
        found = gradients.of(kind, slice(None))
        if found is not None:
            rows[kind] = torch.empty_like(found)
            rows[kind].grad = found
    session.inputs.learn(_Vertices(vertices), rows)  # type: ignore[arg-type]


class _Vertices:
    """As much of a batch as learning from it reads."""

    def __init__(self, vertices: dict[str, Any]) -> None:
        self.vertices = vertices
