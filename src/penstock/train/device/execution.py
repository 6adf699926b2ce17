"""Execution on a device, alone or among workers: steps one at a time, or captured."""

from collections.abc import Callable, Iterable
from typing import Any

from penstock.pipeline.grouped_batches import DrawingProcessor
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import AheadLoader, Batch, Loader, Recorder
from penstock.sampling.device.links import DrawnLinks
from penstock.train.device.placed import Placed, Shared
from penstock.train.execution.loaded import LoadedExecution, SharedExecution
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Pause, Session, Steps
from penstock.train.steps.engine import Course, Engine
from penstock.train.steps.group import WorkerGroup
from penstock.train.steps.host_drawn import HostDrawing
from penstock.train.steps.sources import (
    BatchDrawing,
    DeviceDrawing,
    EdgeSource,
    Order,
    ShareOrder,
    VertexCompute,
    VertexSource,
    WholeOrder,
)
from penstock.train.steps.triples import triple_steps
from penstock.train.steps.update import LocalUpdate, ServedUpdate, SummedUpdate, Update

# Execution on a device where the session's graph was placed: steps one at a time, or captured.

_MB = 1 << 20


class DeviceExecution(LoadedExecution):
    """Launches steps one at a time, on batches that the pipeline brings to the device."""

    name = "device"

    def __init__(self, session: Session, placed: Placed) -> None:
        super().__init__(session)
        self.placed = placed

    def sample(self, planned: Planned) -> Batch:
        """Draw the batch on the device where it can read the topology, else on the host."""
        draw = self._session.task.sample if self.placed.sample is None else self.placed.sample
        return draw(planned)

    def loader(
        self, sample: Callable[[Planned], Batch], planned: Iterable[Planned], recorder: Recorder
    ) -> Loader | AheadLoader:
        """Batches that the device draws ahead, launched by the thread that computes; else the pipeline's."""
        if self.placed.ahead is None:
            return super().loader(sample, planned, recorder)
        session = self._session
        return AheadLoader(planned, self.placed.ahead, session.inputs.carrier, session.task.label, recorder)

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
        """Exact inference on the device at once where there is room, else layer by layer."""
        session = self._session
        return session.whole_graph_inference(
            lambda host: self.placed.whole_graph(host, session.graph, session.job, session.inputs.scale)
        )

    def facts(self) -> dict[str, Any]:
        """The placement, and the device's memory as measured and predicted."""
        peak = 0.0 if self._session.device_peak is None else self._session.device_peak.read()
        return {
            "placement": self.placed.facts(),
            "device_peak_mb": round((peak + self.placed.shared_bytes) / _MB, 1),
            "device_predicted_mb": round(self.placed.predicted_bytes / _MB, 1),
            **self.placed.path_facts(),
            **self.group_facts(),
        }


class TripleExecution(DeviceExecution):
    """Captures a step on triples once and replays it; single batches are drawn by the host."""

    name = "captured triples"

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps in bursts: the weights are current between bursts only."""
        return triple_steps(self._session, Course(schedule, start, pause, recorder))


class CapturedExecution(DeviceExecution):
    """Captures steps once and replays them."""

    name = "captured"

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps in bursts: the weights are current between bursts only."""
        course = Course(schedule, start, pause, recorder)
        return engine_of(self._session, self.placed, course, LocalUpdate(self._session), WholeOrder(schedule))

    def state(self) -> Any:
        """The room for batches, which affects the rounding of sums: a resumed run must use the same."""
        room = self.placed.room
        return None if room is None else [list(room.rows), list(room.edges)]

    def restore(self, state: Any) -> None:
        """Use the room of the interrupted run."""
        if state is not None:
            self.placed.take_room(state)


# Execution among workers that compute on devices: with the graph there, each captures its share of every batch.
#
# A lone worker does what a lone device does. Workers that sum launch bursts of steps (`steps.update.SummedUpdate`).
# Where parameter servers make the step, or some worker has no room for the graph, each step ends with the gradients and
# the group makes the update.


class DeviceSharedExecution(SharedExecution):
    """The execution among workers that compute on devices, which launches steps one by one."""

    name = "device-shared"

    def __init__(self, session: Session, alone: DeviceExecution, group: WorkerGroup) -> None:
        super().__init__(session, alone, group)
        self._placed = alone.placed

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps one at a time; workers that have captured theirs learn here that not all have."""
        if self.group.device_sums() is not None:
            self.group.all_agree(False)
        return super().steps(schedule, start, pause, recorder)

    def inference(self) -> Inference:
        """Exact inference by each worker alone where all have the graph and room on their devices, else by all
        together.
        """
        session = self._session
        found: Inference = self.group.inference(
            session, lambda plan: self._placed.whole_graph(plan, session.graph, session.job, session.inputs.scale)
        )
        return found


class CapturedSharedExecution(DeviceSharedExecution):
    """The execution among workers each of which has the graph on its device."""

    name = "captured-shared"

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps in bursts where the workers make the update themselves; the weights are current between bursts only."""
        session, group, course = self._session, self.group, Course(schedule, start, pause, recorder)
        sums = group.device_sums()
        update: Update
        if sums is not None and group.world == 1:
            return engine_of(session, self._placed, course, LocalUpdate(session, group=group), WholeOrder(schedule))
        if sums is not None and group.all_agree(True):
            update = SummedUpdate(session, group, sums, schedule.batches)
        else:
            update = ServedUpdate(session, group)
        return engine_of(session, self._placed, course, update, ShareOrder(schedule, group.share))

    def state(self) -> Any:
        """The room of this worker's shares."""
        return {"rank": self.group.rank, "room": self.alone.state()}

    def restore(self, state: Any) -> None:
        """Use the room of the interrupted run, unless it was another worker's, whose shares differ."""
        if isinstance(state, dict) and state.get("rank") == self.group.rank:
            self.alone.restore(state.get("room"))


def engine_of(session: Session, placed: Placed, course: Course, update: Update, order: Order) -> Engine:
    """The engine for batches of vertices or edges in some order, drawn by the device where it has the lists,
    else by the host.
    """
    drawing: BatchDrawing = DeviceDrawing(course.schedule, placed)
    if placed.topology is None:
        needs_lists = placed.fill is None or placed.fill.numbers_rows
        drawing = HostDrawing(session, course.schedule, placed, needs_lists)
    kind = EdgeSource if isinstance(placed.program.seeds, DrawnLinks) else VertexSource
    source = kind(session, course.schedule, placed, drawing, order)
    fill = placed.slot_fill(session.inputs.tables, source.node_type)
    return Engine(session, source, fill, VertexCompute(session), update, course)
