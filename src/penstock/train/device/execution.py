"""Execution on a device, alone or among workers: steps one at a time, or captured."""

from collections.abc import Iterator
from typing import Any, Self

from torch import Tensor

from penstock.pipeline.grouped_batches import DrawingProcessor
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder
from penstock.train.device.captured import CapturedSlot, CapturedSteps
from penstock.train.device.host_filled_steps import HostFilledSteps
from penstock.train.device.placed import Placed, Shared
from penstock.train.device.summed import GroupSteps, ShareSteps, SummedSteps
from penstock.train.device.triple_steps import TripleSteps
from penstock.train.execution.loaded import LoadedExecution
from penstock.train.execution.shared import SharedExecution, WorkerGroup
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Pause, Session, Step, Steps
from penstock.wire.coflows import batch_order, within_batch

# Execution on a device, as the session's graph was placed there: steps one at a time, or captured.

_MB = 1 << 20


class DeviceExecution(LoadedExecution):
    """Steps are launched one at a time, on batches that the pipeline brings to the device."""

    name = "device"

    def __init__(self, session: Session, placed: Placed) -> None:
        super().__init__(session)
        self.placed = placed

    def sample(self, planned: Planned) -> Batch:
        """By the device where it can read the topology, else by the host."""
        draw = self._session.task.sample if self.placed.sample is None else self.placed.sample
        return draw(planned)

    def processors(self) -> list[DrawingProcessor]:
        """The device, the host's threads, or both, as `sample_on` says or was decided."""
        if self.placed.sample is None:
            return super().processors()
        device = DrawingProcessor("device", self.placed.sample)
        if not isinstance(self.placed.sample, Shared):
            return [device]
        draws = self.placed.sample
        threads = self._session.job.drawing_threads
        return [device._replace(draw=draws.on_device), *[DrawingProcessor("cpu", draws.on_host)] * threads]

    def inference(self) -> Inference:
        """On the device as a whole where there is room, else layer by layer."""
        session = self._session
        return session.whole_graph_inference(
            lambda host: self.placed.whole_graph(host, session.graph, session.job, session.inputs.scale)
        )

    def facts(self) -> dict[str, Any]:
        """What lies where, and the device's memory: measured and predicted."""
        peak = 0.0 if self._session.device_peak is None else self._session.device_peak.read()
        return {
            "placement": self.placed.facts(),
            "device_peak_mb": round(peak / _MB, 1),
            "device_predicted_mb": round(self.placed.predicted_bytes / _MB, 1),
            **self.placed.path_facts(),
            **self.group_facts(),
        }


class TripleExecution(DeviceExecution):
    """Steps on triples are captured once and replayed; batches that are asked for one by one are the host's."""

    name = "captured triples"

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """In bursts: the loop sees the weights when it has to."""
        return TripleSteps(self._session, self.placed.device, schedule, start, pause, recorder)


class CapturedExecution(DeviceExecution):
    """Steps are captured once and replayed."""

    name = "captured"

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """In bursts: the loop sees the weights when it has to."""
        kind = CapturedSteps if self.placed.fill is None else HostFilledSteps
        return kind(self._session, self.placed, schedule, start, pause, recorder)

    def state(self) -> Any:
        """The room for batches, which sums round by: a run keeps it when it goes on."""
        room = self.placed.room
        return None if room is None else [list(room.rows), list(room.edges)]

    def restore(self, state: Any) -> None:
        """The room of the run that was interrupted."""
        if state is not None:
            self.placed.take_room(state)


# Execution among workers that compute on devices: with the graph there, each captures its share of every batch.
#
# How steps are done depends on the group. A worker that is alone does what a lone device does. Workers that sum launch
# bursts of steps (`summed`). Where parameter servers make the step, or some worker has no room for the graph, each step
# ends with the gradients and the group does the rest.


class DeviceSharedExecution(SharedExecution):
    """Among workers that compute on devices. Steps are launched one by one."""

    name = "device-shared"

    def __init__(self, session: Session, alone: DeviceExecution, group: WorkerGroup) -> None:
        super().__init__(session, alone, group)
        self._placed = alone.placed

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """One at a time; workers that have captured theirs hear that not all have."""
        if self.group.device_sums() is not None:
            self.group.all_agree(False)
        return super().steps(schedule, start, pause, recorder)

    def inference(self) -> Inference:
        """By each worker for itself where all have the graph and room on their devices, else by all together."""
        session = self._session
        found: Inference = self.group.inference(
            session, lambda plan: self._placed.whole_graph(plan, session.graph, session.job, session.inputs.scale)
        )
        return found


class CapturedSharedExecution(DeviceSharedExecution):
    """Among workers, each of which has the graph on its device."""

    name = "captured-shared"

    def __init__(self, session: Session, alone: CapturedExecution, group: WorkerGroup) -> None:
        super().__init__(session, alone, group)

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """In bursts where the workers make the steps themselves; the loop sees the weights when it has to."""
        given = self._session, self._placed, schedule, start, pause, recorder, self.group
        sums = self.group.device_sums()
        if sums is None:
            return CapturedSharedSteps(*given)
        if self.group.world == 1:
            return GroupOfOneSteps(*given)
        if not self.group.all_agree(True):
            return CapturedSharedSteps(*given)
        return SummedSteps(*given, sums)

    def state(self) -> Any:
        """The room of this worker's shares."""
        return {"rank": self.group.rank, "room": self.alone.state()}

    def restore(self, state: Any) -> None:
        """Another worker's room is for its own shares."""
        if isinstance(state, dict) and state.get("rank") == self.group.rank:
            self.alone.restore(state.get("room"))


class GroupOfOneSteps(GroupSteps):
    """Does the steps of the only worker, as a device alone does; the group hears of them after each burst."""

    def _burst(self, many: int) -> list[Step]:
        done = super()._burst(many)
        self._group.count_steps(self._session, len(done), self._group.was_asked_to_stop())
        return done


class _GradientSlot(CapturedSlot):
    """A slot whose recorded step ends with the gradients, which it keeps."""

    gradients: list[Tensor | None]

    def _learn(self) -> None:
        self._gradients()
        self.gradients = [parameter.grad for parameter in self._session.learned.parameters()]


class CapturedSharedSteps(ShareSteps):
    """Does a session's steps together with other workers."""

    def __enter__(self) -> Self:
        self._supply.fill(self._position)
        self._capture()
        return self

    def __iter__(self) -> Iterator[list[Step]]:
        epochs = self._schedule.epochs
        while epochs is None or self._position.epoch < epochs:
            with within_batch(batch_order(*self._position)):
                done = self._shared_step()
            yield [done]

    def _make_slot(self, place: Tensor | None, pool: Any) -> CapturedSlot:
        assert self._placed.room is not None
        return _GradientSlot(self._session, self._supply, self._placed.room, place, self._drawing, pool)

    def _shared_step(self) -> Step:
        epoch, batch = self._position
        loss = self._gradients_of(epoch, batch)
        slot = self._slot_of(batch)
        assert isinstance(slot, _GradientSlot)
        for parameter, gradient in zip(self._session.learned.parameters(), slot.gradients, strict=True):
            parameter.grad = gradient
        total = self._group.reduce_and_step(self._session, loss)
        done = self._step(epoch, batch, total)
        self._position = Position(epoch + 1, 0) if done.last else Position(epoch, batch + 1)
        if done.last:
            self._supply.fill(self._position)
            self._drawn = 0
        return done

    def _gradients_of(self, epoch: int, batch: int) -> float:
        """This worker's part of a batch's loss; its gradients are in the batch's slot then."""
        while True:
            self._clock.start(self._computing)
            self._learn(epoch, batch)
            losses, failed = self._supply.look(batch, batch + 1)
            self._clock.read()
            if failed is None:
                return losses[0]
            self._enlarge(failed)
