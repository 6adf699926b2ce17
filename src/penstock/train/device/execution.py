"""Execution on a device, as the session's graph was placed there: steps one at a time, or captured."""

from typing import Any

from penstock.pipeline.clock import Recorder
from penstock.pipeline.grouped_batches import DrawingProcessor
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.train.device.captured import CapturedSteps
from penstock.train.device.device_sampling import Shared
from penstock.train.device.host_filled_steps import HostFilledSteps
from penstock.train.device.placed import Placed
from penstock.train.device.triple_steps import TripleSteps
from penstock.train.execution.loaded import LoadedExecution
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Session
from penstock.train.steps import Pause, Steps

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
