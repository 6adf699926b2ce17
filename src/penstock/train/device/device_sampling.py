"""Batches drawn one at a time on a device, or by host and device together."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import BatchPlan, Planned
from penstock.sampling.device.neighbours import DeviceNeighbourSampler
from penstock.train.job import Job

if TYPE_CHECKING:
    from penstock.train.device.placed import Placed

Draw = Callable[[Planned], Batch]
_TIMED = 4
_WORTH = 0.2
"""Batches that are timed, the first not counted; and what the host must add to the device's rate to be asked."""


def drawing_on_device(placed: "Placed", job: Job, task: Any, schedule: BatchPlan) -> tuple[Draw, str]:
    """How a job's batches are drawn when the lists are where a device reads them; and why, where that was measured."""
    node_type = getattr(task, "node_type", "node")
    sampler = DeviceNeighbourSampler(
        placed.topology, placed.fanouts, placed.device, node_type, placed.replace, placed.totals,
        edges=placed.names_edges, room=placed.room,
    )  # fmt: skip

    def on_device(planned: Planned) -> Batch:
        return sampler.sample(planned.seeds, planned.key)

    if job.sample_on == "hybrid":
        return Shared(on_device, task.sample), ""
    if job.sample_on == "auto" and job.drawing_threads > 1:
        alone, host = (seconds_a_batch(draw, schedule) for draw in (on_device, task.sample))
        said = f"a batch takes the device {1000 * alone:.1f} ms and a thread of the host {1000 * host:.1f} ms."
        if (job.drawing_threads - 1) / host > _WORTH / alone:
            return Shared(on_device, task.sample), f"Host and device draw batches together: {said}"
        return on_device, f"The device draws batches alone: {said}"
    return on_device, ""


def seconds_a_batch(draw: Draw, schedule: BatchPlan) -> float:
    """How long a batch takes to draw, by some of the first ones."""
    began = time.perf_counter()
    drawn = 0
    for planned, number in zip(schedule.from_position(), range(_TIMED), strict=False):
        draw(planned)
        if number == 0:
            began = time.perf_counter()
        drawn = number
    return (time.perf_counter() - began) / max(1, drawn)


class Shared:
    """Host and device draw together: the device one batch at a time, threads that find it busy on the host.

    A batch is the same whoever draws it, so the run does not depend on who was faster.
    """

    def __init__(self, on_device: Draw, on_host: Draw) -> None:
        self.on_device, self.on_host, self._device = on_device, on_host, threading.Lock()

    def __call__(self, planned: Planned) -> Batch:
        """Draw a batch."""
        if self._device.acquire(blocking=False):
            try:
                return self.on_device(planned)
            finally:
                self._device.release()
        return self.on_host(planned)
