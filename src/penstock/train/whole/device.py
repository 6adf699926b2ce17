"""The whole graph on a GPU: a step captured once and replayed, and exact inference where the graph has room."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder
from penstock.sampling.device.hops import Topology
from penstock.sampling.device.streams import rest
from penstock.store.device.copies import to_device
from penstock.store.device.tables import ResidentTable
from penstock.train.compute_device import device_memory_of
from penstock.train.device.launches import Recorded, warm_up
from penstock.train.device.placed import DeviceWholeGraph
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.plan import LayerPlan
from penstock.train.optimisers import prepare_skipping
from penstock.train.session import Session
from penstock.train.whole.prepared import PreparedStep
from penstock.train.whole.steps import RepeatedSteps, StepPasses

# A step on the whole graph, captured once and replayed: its shapes and its batch never change.

_WARM_UPS = 3
"""Steps before the capture, in which kernels compile and libraries allocate what they keep."""


class CapturedWholeSteps(RepeatedSteps):
    """Does the steps of a schedule, each captured when it is first done."""

    stages = ("compute",)

    def __init__(
        self, session: Session, prepared: list[PreparedStep], schedule: Schedule, start: Position, recorder: Recorder
    ) -> None:
        super().__init__(session, schedule, start, recorder)
        self._prepared, self._captured = prepared, dict[int, CapturedWholeStep]()

    def __exit__(self, *_: object) -> None:
        for step in self._captured.values():
            step.close()
        self._captured.clear()

    def _step(self, planned: Planned) -> float:
        number = planned.key.batch
        if number not in self._captured:
            pool = next((step.pool for step in self._captured.values()), None)
            self._captured[number] = CapturedWholeStep(self._session, self._prepared[number], planned, pool)
        began = time.perf_counter()
        loss = self._captured[number].run(planned)
        self._record("compute", began, planned)
        return loss


class CapturedWholeStep:
    """Forward, backward and update of one step as one launch."""

    def __init__(self, session: Session, step: PreparedStep, planned: Planned, pool: Any = None) -> None:
        self._session, self._step, self._any = session, step, planned.key
        device = session.inputs.device
        self._key = torch.zeros(1, dtype=torch.int64, device=device)
        self._loss = torch.zeros(1, device=device)
        # A warm-up must not update the model.
        self._skip = torch.ones(1, device=device)
        prepare_skipping(session.optimiser)
        warm_up(self._learn, device, _WARM_UPS)
        self._recorded = Recorded(self._learn, device, pool=pool)
        self._skip.zero_()

    @property
    def pool(self) -> Any:
        """The memory pool of the captured step, which other steps may share."""
        return self._recorded.pool

    def run(self, planned: Planned) -> float:
        """Do the step; returns its loss. Where that is not finite, the weights are not updated."""
        self._key.fill_(int(np.uint64(planned.key.purpose("dropout")).astype(np.int64)))
        self._recorded.replay()
        return float(self._loss)

    def close(self) -> None:
        """Drop the gradients, which lie in the captured step's memory."""
        rest(self._session.inputs.device)
        self._session.optimiser.zero_grad(set_to_none=True)

    def _learn(self) -> None:
        session, optimiser = self._session, self._session.optimiser
        optimiser.zero_grad(set_to_none=True)
        passes = StepPasses(session, self._step, self._any, self._key)
        loss = passes.forward()
        passes.backward(loss)
        if session.job.clip:
            torch.nn.utils.clip_grad_norm_(session.learned.parameters(), session.job.clip, foreach=True)
        self._loss.copy_(loss.detach().float().view(1))
        fused: Any = optimiser
        fused.found_inf = torch.maximum(self._skip, (~self._loss.isfinite()).float())[0]
        optimiser.step()
        fused.found_inf = None


# Exact inference of a run on the whole graph, on a GPU that has room for the graph and every vertex's outputs.

_ARRAYS = 6
"""Arrays as large as every vertex's rows that a layer holds at once."""


def whole_on_device(session: Session) -> Callable[[HostPlan], LayerPlan | None]:
    """A function that makes the inference's plan on the device; it returns None where the graph must be read from the
    host.
    """
    device, job, graph = session.inputs.device, session.job, session.graph
    carried = session.list_weight is not None or bool(session.inputs.exact_edges)
    if not graph.is_homogeneous or session.inputs.tables or carried or graph.num_edges >= 1 << 31:
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
