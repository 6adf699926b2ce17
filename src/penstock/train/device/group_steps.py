"""What captured steps of workers have in common: the group, and a supply of this worker's shares of the batches."""

from penstock.pipeline.clock import Recorder
from penstock.pipeline.schedule import Position, Schedule
from penstock.train.device.captured import CapturedSteps
from penstock.train.device.placed import Placed
from penstock.train.device.share_supply import SharedSupply
from penstock.train.device.supply import Supply
from penstock.train.execution.worker_group import WorkerGroup
from penstock.train.session import Session
from penstock.train.steps import Pause


class GroupSteps(CapturedSteps):
    """Captured steps of a worker of a group."""

    def __init__(
        self,
        session: Session,
        placed: Placed,
        schedule: Schedule,
        start: Position,
        pause: Pause,
        recorder: Recorder,
        group: WorkerGroup,
    ) -> None:
        self._group = group
        super().__init__(session, placed, schedule, start, pause, recorder)


class ShareSteps(GroupSteps):
    """Captured steps on this worker's shares of the batches."""

    def _make_supply(self) -> Supply:
        return SharedSupply(self._session.task, self._schedule, self._placed, self._group.share)
