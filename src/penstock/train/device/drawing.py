"""Batches drawn one at a time on a device, or by host and device together."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.pipeline.loading import Batch
from penstock.pipeline.schedule import Planned
from penstock.sampling.device.neighbours import DeviceNeighbourSampler
from penstock.train.job import Job
from penstock.train.tasks import Task

if TYPE_CHECKING:
    from penstock.train.device.placed import Placed

Draw = Callable[[Planned], Batch]


def drawing_on_device(placed: "Placed", job: Job, task: Task) -> Draw:
    """How a job's batches are drawn when the lists are where a device reads them."""
    node_type = getattr(task, "node_type", "node")
    sampler = DeviceNeighbourSampler(
        placed.topology, placed.fanouts, placed.device, node_type, placed.replace, placed.totals
    )

    def on_device(planned: Planned) -> Batch:
        return sampler.sample(planned.seeds, planned.key)

    return Shared(on_device, task.sample) if job.sample_on == "hybrid" else on_device


class Shared:
    """Host and device draw together: the device one batch at a time, threads that find it busy on the host.

    A batch is the same whoever draws it, so the run does not depend on who was faster.
    """

    def __init__(self, on_device: Draw, on_host: Draw) -> None:
        self._on_device, self._on_host, self._device = on_device, on_host, threading.Lock()
        self.drawn = {"device": 0, "host": 0}

    def __call__(self, planned: Planned) -> Batch:
        """Draw a batch."""
        if self._device.acquire(blocking=False):
            try:
                self.drawn["device"] += 1
                return self._on_device(planned)
            finally:
                self._device.release()
        self.drawn["host"] += 1
        return self._on_host(planned)
