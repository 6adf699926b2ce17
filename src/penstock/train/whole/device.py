"""The whole graph on a GPU: a step captured once and replayed, and exact inference where the graph has room."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.pipeline.schedule import Position, Schedule
from penstock.sampling.block import BatchKey
from penstock.sampling.device.hops import Topology
from penstock.store.device.copies import to_device
from penstock.store.device.tables import ResidentTable
from penstock.train.device.placed import DeviceWholeGraph
from penstock.train.first_layer.slots import NoFill
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.inference import LayerPlan
from penstock.train.run_context import device_memory_of
from penstock.train.session import Session
from penstock.train.steps.engine import Course, Engine
from penstock.train.steps.parts import Source, StepCompute, StepGradients
from penstock.train.steps.update import LocalUpdate
from penstock.train.whole.prepared import PreparedStep
from penstock.train.whole.steps import StepPasses

# A step on the whole graph, captured once and replayed: its shapes and its batch never change.


@dataclass(eq=False)
class WholeSlot:
    """One step of an epoch, with what changes from epoch to epoch at fixed places."""

    step: PreparedStep
    number: int
    drawn: Tensor
    """The key of its dropout."""
    loss: Tensor
    skip: Tensor


class WholeSource(Source):
    """The steps of an epoch, each of them always in the same slot."""

    stages = ("compute",)

    def __init__(self, session: Session, prepared: Sequence[PreparedStep], schedule: Schedule) -> None:
        self._device, self._prepared, self._schedule = session.inputs.device, prepared, schedule
        self._slots: dict[int, WholeSlot] = {}
        self._epoch = 0

    def fill(self, position: Position) -> None:
        self._epoch = position.epoch

    def slot(self, number: int) -> WholeSlot:
        key = torch.zeros(1, dtype=torch.int64, device=self._device)
        loss = torch.zeros(1, device=self._device)
        # Nothing is learned by the warm-up.
        skip = torch.ones(1, device=self._device)
        self._slots[number] = WholeSlot(self._prepared[number], number, key, loss, skip)
        return self._slots[number]

    def prepare(self, slot: WholeSlot, number: int) -> None:
        key = BatchKey(self._schedule.seed, self._epoch, number).purpose("dropout")
        slot.drawn.fill_(int(np.uint64(key).astype(np.int64)))

    def keep(self, slot: WholeSlot, loss: Tensor) -> None:
        slot.loss.copy_(loss)

    def restart(self, batch: int) -> None:
        for slot in self._slots.values():
            slot.skip.zero_()

    def look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """Losses of the steps; no batch can lack room."""
        return [float(self._slots[number].loss) for number in range(first, last)], None


class WholeCompute(StepCompute):
    """Every layer's bins forward, the loss, and the bins backward."""

    def __init__(self, session: Session, seed: int) -> None:
        self._session, self._seed = session, seed

    def gradients(self, slot: WholeSlot, inputs: Any) -> StepGradients:
        """Where the loss is not finite, nothing is learned."""
        self._session.optimiser.zero_grad(set_to_none=True)
        passes = StepPasses(self._session, slot.step, BatchKey(self._seed, 0, slot.number), slot.drawn)
        loss = passes.forward()
        passes.backward(loss)
        found = loss.detach().float().view(1)
        return StepGradients(found, torch.maximum(slot.skip, (~found.isfinite()).float()))


def captured_whole_steps(session: Session, prepared: Sequence[PreparedStep], course: Course) -> Engine:
    """The steps of a schedule one at a time, all of them recorded before the first."""
    source, seed = WholeSource(session, prepared, course.schedule), course.schedule.seed
    return Engine(
        session, source, NoFill(len(prepared)), WholeCompute(session, seed), LocalUpdate(session, 0.0), course
    )


# Exact inference of a run on the whole graph, on a GPU that has room for the graph and every vertex's outputs.

_ARRAYS = 6
"""Arrays as large as every vertex's rows that a layer holds at once."""


def whole_on_device(session: Session) -> Callable[[HostPlan], LayerPlan | None]:
    """A function that makes the inference's plan on the device; it returns None where the graph must be read from the
    host.
    """
    device, job, graph = session.inputs.device, session.job, session.graph
    carried = session.list_weight is not None or bool(session.inputs.exact_edges)
    if session.inputs.no_table or carried or graph.num_edges >= 1 << 31:
        return lambda host: None
    ((name, nodes),), (edges,) = graph.nodes.items(), graph.edges.values()
    features = nodes.fields[session.inputs.fields[name]]
    free, _ = device_memory_of(device)
    width = max(job.hidden, features.shape[1])
    if 4 * (_ARRAYS * width * nodes.count + graph.num_edges) > free // 2:
        return lambda host: None
    topology = Topology(to_device(edges.indptr, device), to_device(edges.indices, device).to(torch.int32))
    table = ResidentTable(to_device(features, device, torch.float32))
    return lambda host: DeviceWholeGraph(host, name, topology, table, False, session.inputs.scale)
