"""What a worker's steps take of its GPU, before anything is there: traced, or tried where that is not possible.

A worker that has the whole graph computes as a GPU alone does whose batches are the worker's shares, so that is what is
traced. One whose graph stays with the stores launches steps on batches that the host draws and gathers.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from penstock.errors import PenstockError
from penstock.pipeline.schedule import Schedule
from penstock.plan import Residence
from penstock.plan.residence import Place
from penstock.sampling.device.room import Room
from penstock.train.device.decision import Decision, MemoryModel
from penstock.train.device.memory import TrialMemory, Working, loaded_working, row_type
from penstock.train.device.share_supply import ShareOfSchedule
from penstock.train.device.traced import TracedMemory
from penstock.train.device.trial import NOTHING, Load, StepMemory, tried_steps
from penstock.train.session import Session
from penstock.train.trace.untraceable import UntraceableError

_SUMMED_BYTES = 16
"""For each parameter: its place in the row that workers sum, and copies of it and of two moments."""
_EMBEDDINGS = "embeddings are at their owners, who answer real steps only"


class WorkerPrediction:
    """Predicts the memory of one worker.

    `part` is how much of the batches that its task samples the worker gets, and `fresh` whether the run has not begun.
    """

    def __init__(self, session: Session, shares: ShareOfSchedule, part: float, fresh: bool) -> None:
        self._session, self._shares, self._part, self._fresh = session, shares, part, fresh
        parameters = sum(each.numel() for each in session.learned.parameters())
        self._parameters, self._summed = parameters, _SUMMED_BYTES * parameters if part < 1 else 0

    def with_whole_graph(self, whole: Session, decide: Callable[[MemoryModel], Decision]) -> Decision:
        """The decision for a session that has the whole graph."""
        try:
            return decide(self._traced(whole))
        except UntraceableError as error:
            return decide(TrialMemory(whole, self._tried(), str(error)))

    def at_the_stores(self) -> tuple[Working, str, str]:
        """What steps take where the graph is elsewhere, by what that was found, and why not by a trace."""
        job, as_rows = self._session.job, row_type(self._session.job)
        nowhere = Residence("host", "host", 0, 0, 0, [])
        try:
            traced = self._traced(self._session)
            peak = traced.traced(Decision(nowhere, Working(0, as_rows, {}), None, False, False, []))
            return Working(peak.reserved + self._summed, as_rows, peak.categories), traced.method, ""
        except UntraceableError as error:
            step, ahead = self._tried(), job.transfer_depth + 1
            return loaded_working(step, None, 0, ahead, self._parameters, as_rows), TrialMemory.method, str(error)

    def _traced(self, session: Session) -> "_SharedTrace":
        if self._session.inputs.tables:
            raise UntraceableError(_EMBEDDINGS)
        alone = Schedule(session.task.items, self._shares.batch_size, session.job.draw_seed)
        # Without the graph a worker has a chunk of a validation at a time, which is less than a step.
        return _SharedTrace(session, alone, self._shares, self._summed, validated=session is not self._session)

    def _tried(self) -> StepMemory:
        """A worker's share of a step that is tried."""
        session, step = self._session, NOTHING
        if self._fresh:
            step = tried_steps(session, row_type(session.job))
        # Once a run has begun, learnable rows are past the step that a trial would read.
        elif not session.inputs.tables:
            # Whoever comes back does not wait for a store that is lost too: it only predicts less.
            with suppress(PenstockError):
                step = tried_steps(session, row_type(session.job))
        whole = Load(*(round(self._part * amount) for amount in step.whole))
        return step._replace(fixed=step.fixed + self._summed, whole=whole)


class _SharedTrace(TracedMemory):
    """A trace of a GPU alone, with the row that workers sum and the copies that a failed burst goes back to."""

    def __init__(
        self, session: Session, alone: Schedule, shares: ShareOfSchedule, summed: int, validated: bool
    ) -> None:
        super().__init__(session, alone, shares)
        self._summed, self.validated = summed, validated

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        """See `decision.MemoryModel`."""
        found = super().working(room, captured, in_place, features, gathers)
        return replace(found, bytes=found.bytes + self._summed, parts=found.parts | {"summed": self._summed})

    def predicted(self, decision: Decision) -> int:
        """See `decision.MemoryModel`."""
        return super().predicted(decision) + self._summed
