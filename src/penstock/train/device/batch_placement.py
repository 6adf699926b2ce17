"""A graph on a device for batches alone: the model is the user's own, and a share of the memory is left for it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.pipeline.device import DeviceCarrier
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import BatchPlan, Planned
from penstock.plan.residence import Place
from penstock.progress import SILENT, Progress
from penstock.sampling.device.room import Room
from penstock.train.device.decision import Decision, decide
from penstock.train.device.device_sampling import drawing_on_device
from penstock.train.device.drawn_ahead import DrawnAhead
from penstock.train.device.memory import Working, loaded_working, row_type
from penstock.train.device.placed_graph import bring_batches, place_as_decided
from penstock.train.device.trial import NOTHING
from penstock.train.device_memory import device_memory_of
from penstock.train.inputs import Inputs
from penstock.train.job import Job


@dataclass(frozen=True)
class BatchParts:
    """A loader's parts, as placement reads them (`Placeable`)."""

    job: Job
    graph: Graph
    inputs: Inputs
    task: Any
    model: None = None


class ReservedMemory:
    """What a model of the user's takes is not known: a share of the device's memory is left for it."""

    method, untraced = "reserved", ""

    def __init__(self, job: Job, vertices: int, device: torch.device, share: float, positions: bool) -> None:
        """`positions`: samplers keep the numbers of drawn edges."""
        if not 0 <= share < 1:
            raise PenstockError(f"reserve is {share}: give a share from 0 to 1.", code="value-out-of-range")
        self._job, self._vertices, self._reserved = job, vertices, int(share * device_memory_of(device)[1])
        self._positions = positions

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        """See `decision.MemoryModel`."""
        job = self._job
        ahead = job.transfer_depth + 1
        slots = max(job.drawing_threads, DrawnAhead.slots)
        own = loaded_working(
            NOTHING, room, self._vertices, ahead, 0, row_type(job), slots, self._positions, merges=True
        )
        return Working(own.bytes + self._reserved, own.row_type, {**own.parts, "model": self._reserved})

    def predicted(self, decision: Decision) -> int:
        """See `decision.MemoryModel`."""
        return decision.residence.device_bytes


@dataclass(frozen=True)
class PlacedBatches:
    """What draws batches, and what brings them to the device."""

    draw: Callable[[Planned], Batch]
    carrier: DeviceCarrier
    make_sampler: Callable[[threading.Event], DrawnAhead] | None
    """Makes a sampler that draws ahead in the thread that computes. None where the host draws batches or reads rows,
    which threads do."""


def place_batches(parts: BatchParts, plan: BatchPlan, reserve: float, progress: Progress = SILENT) -> PlacedBatches:
    """Put topology and features where they fit, as for training."""
    job, device = parts.job, parts.inputs.device
    memory = ReservedMemory(job, parts.graph.num_nodes, device, reserve, True)
    decision = decide(parts, plan, memory)
    placed = place_as_decided(parts, decision, plan, progress)
    parts.inputs.sources.update(placed.tables)
    bring_batches(parts, placed)
    carrier = parts.inputs.carrier
    assert isinstance(carrier, DeviceCarrier)
    if decision.residence.topology == "host":
        return PlacedBatches(parts.task.sample, carrier, None)
    if job.sample_on == "hybrid" or job.reuse_batches or carrier.reads_on_host:
        draw, _ = drawing_on_device(placed, job, parts.task, plan)
        return PlacedBatches(draw, carrier, None)
    make_sampler = partial(DrawnAhead, placed, plan.batch_size, getattr(parts.task, "node_type", "node"))
    return PlacedBatches(parts.task.sample, carrier, make_sampler)
