"""Steps on the whole graph among workers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from penstock.nn.layer_table import LAYERS
from penstock.nn.layers.entry import SourceScale
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import BatchKey
from penstock.train.job import Job
from penstock.train.session import Session, Step
from penstock.train.steps.one_by_one import running_figures_kept
from penstock.train.whole.levels import LevelGradients
from penstock.train.whole.shared.interfaces import WholeWorkers
from penstock.train.whole.shared.passes import BackwardPass, ForwardPass, LossPass
from penstock.train.whole.shared.shared_step import SharedStep
from penstock.train.whole.shared.state import BoundaryDraw, StepState
from penstock.train.whole.steps import RepeatedWork, learnable_rows
from penstock.wire.coflows import batch_order, within_batch

# The ways in which workers exchange rows, by the name that a job gives them, and what each does not support.


def _as_asked(job: Job) -> str:
    return job.pipeline


def _nothing_drawn(key: BatchKey, job: Job) -> BoundaryDraw | None:
    return None


def _draw(key: BatchKey, job: Job) -> BoundaryDraw | None:
    return BoundaryDraw(key.purpose("boundary"), job.boundary_share)


@dataclass(frozen=True)
class Exchange:
    """One way to exchange rows."""

    pipeline: Callable[[Job], str] = _as_asked
    """Which of the two levels of overlap it has: none, inter, intra or both."""
    draw: Callable[[BatchKey, Job], BoundaryDraw | None] = _nothing_drawn
    """The draw of the rows that take part in a step; None: all do."""
    replicates: bool = False
    """Whether rows of others may be computed here instead."""
    linear_only: bool = False
    """Whether it is for layers that are linear in their neighbours' rows."""
    sums: bool = True
    """Whether workers may send sums of rows instead of rows."""

    def source_scale(self, job: Job) -> SourceScale | None:
        """How a model's layers weigh the rows that workers sum for each other; None: they send every row."""
        found: SourceScale | None = LAYERS[job.model].source_scale(job) if self.sums else None
        return found

    def reasons_against(self, job: Job) -> list[str]:
        """The reasons why a job cannot exchange rows in this way; empty where it can."""
        reasons = []
        if self.linear_only and not LAYERS[job.model].linear(job):
            reasons.append(f"a share of rows estimates sums and means, and model {job.model} as it is set takes none")
        if self.replicates and job.norm == "batch":
            reasons.append("batch normalisation would count rows twice that several workers compute")
        if job.keep == "recompute":
            reasons.append("keep recompute would exchange all rows again")
        return reasons


EXCHANGES = {
    "bins": Exchange(),
    "layer": Exchange(pipeline=lambda job: "none"),
    "boundary": Exchange(draw=_draw, linear_only=True, sums=False),
    "replicate": Exchange(replicates=True),
}


class Exposure:
    """Seconds that a run has waited for other workers' rows."""

    seconds = 0.0


class ExchangedStep:
    """Does this worker's part of a step."""

    def __init__(
        self,
        session: Session,
        workers: WholeWorkers,
        prepared: Sequence[SharedStep],
        work: RepeatedWork,
        exposure: Exposure,
    ) -> None:
        self._session, self.workers, self._prepared, self._work = session, workers, prepared, work
        self._exposure = exposure

    def __call__(self, planned: Planned) -> Step:
        """Do it; should it fail, it is done again."""
        with within_batch(batch_order(*planned.position)), running_figures_kept(self._session):
            loss = self.exchanged(planned, self._prepared[planned.key.batch])
        return Step(planned.position, len(planned.seeds), loss, planned.last)

    def exchanged(self, planned: Planned, step: SharedStep) -> float:
        """The passes with rows of other workers, and the step that all make; the loss of all examples."""
        record, clocks = self._work.record, self._work.clocks
        session, workers = self._session, self.workers
        session.optimiser.zero_grad(set_to_none=True)
        how = EXCHANGES[session.job.exchange]
        stage = ["forward"]

        def waited(began: float) -> None:
            taken = time.perf_counter() - began
            self._exposure.seconds += taken
            clocks["exchange"].worked(0, began, planned)
            clocks[stage[0]].rest(taken)

        began = time.perf_counter()
        workers.mail.begin(planned.position)
        draw = how.draw(planned.key, session.job)
        state = StepState(session, step, workers, planned.key, how.pipeline(session.job), draw, waited)
        with session.drawing(planned.key.purpose("dropout")):
            ForwardPass(state).run()
            loss = LossPass(state, step.loss_rows.of(planned.key))
            value = loss.forward()
        began = record(stage[0], began, planned)
        stage[0] = "backward"
        inputs = _backward(state, loss)
        began = record(stage[0], began, planned)
        # Gradients of learnable rows first: once the workers agree, all of them have been handed in.
        _learn(session, step, inputs)
        workers.mail.end()
        total = workers.reduce_and_step(session, value)
        record("update", began, planned)
        return total


def _backward(state: StepState, loss: LossPass) -> LevelGradients:
    """Compute gradients of the parameters; returns those of the input rows."""
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
    """Send the gradients of learnable rows to their owners."""
    read: Any = SimpleNamespace(vertices=step.plan.levels[0].vertices)
    session.inputs.learn(read, learnable_rows(session, gradients))
