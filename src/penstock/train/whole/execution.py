"""The execution mode of sampler `whole`, on one machine: exact steps over the whole graph, in bins."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.memory import available_mb
from penstock.partition.bins import breadth_first
from penstock.partition.problem import merged_lists
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder
from penstock.trace.allocations import UntraceableError
from penstock.trace.libraries import measure_libraries
from penstock.train.batch_source import layers_of
from penstock.train.execution.loaded import LoadedExecution
from penstock.train.layerwise.host import HostPlan, Reach
from penstock.train.layerwise.inference import Inference, LayerPlan
from penstock.train.run_context import device_peak
from penstock.train.session import Pause, Session, Steps
from penstock.train.steps.engine import Course
from penstock.train.steps.one_by_one import OneByOne
from penstock.train.whole.in_place import InPlaceStep
from penstock.train.whole.levels import Where
from penstock.train.whole.memory import (
    WHOLE_STEPS,
    BinSize,
    Decision,
    LayerSize,
    bin_sizes,
    decide,
    decided_sizes,
    edge_numbers,
    free_bytes,
    in_place_sizes,
    num_inputs,
    read_decisions,
    step_bytes,
)
from penstock.train.whole.own_module import (
    KeptNeighbourhood,
    OwnModulePasses,
    require_room,
    tried_bytes,
    whole_neighbourhood,
)
from penstock.train.whole.plan import (
    ListSizes,
    list_sizes,
    make_in_place_plan,
    make_plan,
    reads_in_place,
    vertices_by_level,
)
from penstock.train.whole.prepared import PreparedStep
from penstock.train.whole.steps import Passes, RepeatedWork, StepPasses, WholeStep, first_epoch, is_captured
from penstock.train.whole.traced import StepSizes, traced_step_memory

# The preparation of whole-graph steps, which is reported while it is done, and timed.


class Preparation:
    """Seconds of every part of the preparation, by name."""

    def __init__(self, session: Session) -> None:
        self._session, self._seconds = session, dict[str, float]()

    @contextmanager
    def phase(self, name: str, doing: str) -> Iterator[None]:
        """A context for one part of the preparation; parts of one name are added up. `doing` is shown as progress."""
        began = time.perf_counter()
        self._session.progress.status(f"whole graph: {doing}")
        yield
        took = time.perf_counter() - began
        self._seconds[name] = self._seconds.get(name, 0.0) + took
        self._session.progress.status(f"whole graph: {doing}: {took:.1f} s")

    def facts(self) -> dict[str, float]:
        """The seconds of each part, rounded for the result."""
        return {name: round(each, 3) for name, each in self._seconds.items()}


# The order of vertices in which bins read few rows: that of a breadth-first search, where neighbours are close.


def in_search_order(graph: Graph, order: dict[str, Array], counts: list[dict[str, int]]) -> dict[str, Array]:
    """The same vertices by node type, such that every level still is a prefix: the vertices that each level adds are in
    the order in which a search along the lists reaches them.
    """
    whole = merged_lists(graph)
    places = whole.by_type(breadth_first(whole.indptr, whole.indices, np.zeros(whole.count, np.int32)))
    found = {}
    for name, vertices in order.items():
        ends = sorted({0, len(vertices), *(level[name] for level in counts)})
        parts = [vertices[first:last] for first, last in pairwise(ends)]
        found[name] = np.concatenate([vertices[:0], *(some[np.argsort(places[name][some])] for some in parts)])
    return found


_MB = 1 << 20
_ITEM = {"float32": 4, "bfloat16": 2}
_NOT_IN_PLACE = "The checkpoint is of a run whose bins read rows in place, which this job's cannot: use its own job."


class WholeExecution(LoadedExecution):
    """The execution on one machine or one device."""

    name = "whole"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        device, inputs = session.inputs.device, session.inputs
        if inputs.on_gpu:
            # Imported here, because Triton is only needed with a device.
            from penstock.pipeline.device import DeviceCarrier

            measure_libraries(device)
            inputs.carrier = DeviceCarrier(device, inputs.sources, scale=inputs.scale, edges=inputs.edges)
            session.device_peak = device_peak(device)
        self._prepared: list[PreparedStep] = []
        """The steps of an epoch, for a model that is computed layer by layer."""
        self._whole: Callable[[HostPlan], LayerPlan | None] | None = None
        """Places the whole graph on a device, for exact inference."""
        self._kept: list[KeptNeighbourhood] = []
        """The steps of an epoch, for a module of the user's."""
        self._features_placed = 0
        """Bytes of features that were put on the device."""
        self._predicted_bytes = 0
        """The largest prediction for a step of a module of the user's."""
        self._predicted_by = MemoryPrediction()
        """How the memory of steps is predicted."""
        self._preparation = Preparation(session)
        self._known: list[Decision] = []
        """The decisions of an interrupted run for each step of an epoch: other bins would round sums differently."""

    def prepare(self, schedule: Schedule) -> dict[str, Any]:
        """Divide the steps of an epoch into bins; a module of the user's has none, and nothing is decided for it."""
        if not self._prepared and not self._kept:
            for planned in first_epoch(schedule):
                self._prepare(planned._replace(seeds=np.sort(planned.seeds)))
        return {WHOLE_STEPS: self.state()} if self._prepared else {}

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps one at a time; a module of the user's computes its whole neighbourhoods at once."""
        self.prepare(schedule)
        if self._is_captured():
            # Imported here, because Triton is only needed with a device.
            from penstock.train.whole.device import captured_whole_steps

            return captured_whole_steps(self._session, self._prepared, Course(schedule, start, pause, recorder))
        work = RepeatedWork(schedule, start, recorder)
        return OneByOne(work, WholeStep(self._session, self._passes, work))

    def inference(self) -> Inference:
        """Exact inference on the device at once where there is room, else layer by layer."""
        return self._session.whole_graph_inference(self._on_device)

    def _on_device(self, host: HostPlan) -> LayerPlan | None:
        if not self._session.inputs.on_gpu:
            return None
        if self._whole is None:
            from penstock.train.whole.device import whole_on_device

            self._whole = whole_on_device(self._session)
        return self._whole(host)

    def _is_captured(self) -> bool:
        """Whether steps are captured: where all that they read stays on a GPU and is the same in every epoch."""
        on_device = self._session.inputs.on_gpu and bool(self._prepared)
        return on_device and is_captured(self._session, [step.decision for step in self._prepared])

    def _passes(self, planned: Planned) -> Passes:
        if self._kept:
            return OwnModulePasses(self._session, self._kept[planned.key.batch], planned.key)
        return StepPasses(self._session, self._prepared[planned.key.batch], planned.key)

    def state(self) -> Any:
        """The decision on every step, which depends on the memory that was free when the run began."""
        return [asdict(step.decision) for step in self._prepared] or None

    def restore(self, state: Any) -> None:
        """Use the decisions of the interrupted run; there are none if it ended before its first step."""
        self._known = read_decisions(state, layers_of(self._session.job))

    def follow(self, decided: Mapping[str, Any]) -> None:
        """Use the plan's decisions for each step."""
        self.restore(decided.get(WHOLE_STEPS))

    def facts(self) -> dict[str, Any]:
        """How the step was divided into bins."""
        facts, task = super().facts(), self._session.task
        if task.messages is not None and task.messages is not self._session.graph:
            facts |= {"supervised_edges": len(task.items), "message_edges": task.messages.num_edges}
        if self._kept:
            facts["predicted_mb"] = round(self._predicted_bytes / _MB, 1)
        if self._prepared or self._kept:
            facts["predicted_by"] = self._predicted_by.method
            if self._predicted_by.reason:
                facts["predicted_reason"] = self._predicted_by.reason
        if self._prepared:
            decision = self._prepared[0].decision
            facts |= {
                "scope": self._session.job.scope,
                "bins": [len(layer) for layer in self._prepared[0].bins],
                "keep": "recompute" if decision.recompute_levels else decision.keep,
                "recomputed": not decision.retain,
                "in_place": decision.in_place,
                "captured": self._is_captured(),
                "predicted_mb": round((decision.predicted_bytes + self._features_placed) / _MB, 1),
                "preparation_s": self._preparation.facts(),
            }
            if self._session.device_peak is not None:
                features = "device" if decision.retain or decision.in_place or self._features_placed else "host"
                facts |= {
                    "placement": {"topology": "device", "features": features, "cache_rows": 0},
                    "device_peak_mb": round(self._session.device_peak.read() / _MB, 1),
                    "device_predicted_mb": facts["predicted_mb"],
                }
        return facts

    def _prepare(self, planned: Planned) -> None:
        session, phase, layers = self._session, self._preparation.phase, layers_of(self._session.job)
        with phase("graph", "reading the graph"):
            reach = reach_of(session)
        with phase("vertices", "finding the vertices that the loss reaches"):
            order, counts = levels_of(session, reach, planned)
        with phase("decision", "predicting the memory of bins"):
            order, decision = self._in_order(reach, order, counts, planned)
        if not getattr(session.model, "layerwise", False):
            require_room(session, bin_sizes(reach, layers, order, counts, 1), decision.predicted_bytes)
            self._predicted_bytes = max(self._predicted_bytes, decision.predicted_bytes)
            self._kept.append(KeptNeighbourhood(session, whole_neighbourhood(session, reach, planned), planned))
            return
        if decision.in_place:
            if (what := reads_in_place(session)) is None:
                raise PenstockError(_NOT_IN_PLACE, code="damaged-file")
            with phase("bins", "placing lists of neighbours"):
                lists = make_in_place_plan(reach, order, counts, decision.bins, session.inputs.device)
            with phase("features", "placing features"):
                self._prepared.append(InPlaceStep(session, lists, decision, planned, what))
            return
        with phase("features", "placing features"):
            if session.inputs.on_gpu and not decision.retain:
                self._place_features(decision)
        with phase("bins", "making bins"):
            plan = make_plan(reach, layers, order, counts, decision.bins)
        with phase("placing", "placing bins"):
            self._prepared.append(PreparedStep(session, plan, decision, planned))

    def _place_features(self, decision: Decision) -> None:
        """Put the features on the device where they fit next to the step: bins that are computed
        again read them often.
        """
        # Imported here, because Triton is only needed with a device.
        from penstock.store.device.copies import to_device
        from penstock.store.device.tables import ResidentTable
        from penstock.train.device.memory import stored_type

        session, inputs = self._session, self._session.inputs
        elsewhere = {
            name: session.graph.nodes[name].fields[field]
            for name, field in inputs.fields.items()
            if not inputs.sources[name].on_device
        }
        types = {name: stored_type(session.job, array) for name, array in elsewhere.items()}
        taken = sum(array.size * types[name].itemsize for name, array in elsewhere.items())
        if decision.predicted_bytes + taken > free_bytes(inputs.device, session.job.device_share):
            return
        for name, array in elsewhere.items():
            table = to_device(array, inputs.device, types[name], progress=session.progress)
            inputs.sources[name] = ResidentTable(table)
        self._features_placed += taken

    def _in_order(
        self, reach: Reach, order: dict[str, Array], counts: list[dict[str, int]], planned: Planned
    ) -> tuple[dict[str, Array], Decision]:
        """The order of vertices, and the decision on a step. A resumed run has those that it had."""
        place = len(self._prepared)
        if place < len(self._known):
            known = self._known[place]
            return in_search_order(reach.graph, order, counts) if known.searched else order, known
        order, decision, predicted = decide_step(self._session, reach, order, counts, planned)
        if predicted.reason and not self._predicted_by.reason:
            self._session.progress.note(f"Memory was not predicted by a trace: {predicted.reason}.")
        self._predicted_by = predicted
        return order, decision


class MemoryPrediction(NamedTuple):
    """How the memory of a step was predicted."""

    method: str = "trace"
    """`trace`; `trial` of small steps for a module of the user's that cannot be traced, `rule` for a layer."""
    reason: str = ""
    """Why a trace was not possible; empty for `trace`."""


def decided_steps(session: Session, schedule: Schedule) -> Iterator[tuple[StepSizes, MemoryPrediction]]:
    """The steps of an epoch, each with its bins' sizes and how its memory was predicted; nothing is made."""
    reach = reach_of(session)
    for planned in first_epoch(schedule):
        planned = planned._replace(seeds=np.sort(planned.seeds))
        order, counts = levels_of(session, reach, planned)
        order, decision, predicted = decide_step(session, reach, order, counts, planned)
        yield (
            StepSizes(order, counts, decided_sizes(reach, len(counts) - 1, order, counts, decision), decision, planned),
            predicted,
        )


def reach_of(session: Session) -> Reach:
    """What steps on the whole graph read."""
    messages = session.task.messages
    assert messages is not None
    hops = [list(messages.edges)] * layers_of(session.job)
    return Reach(messages, hops, session.list_weight, edges=bool(session.inputs.edges))


def levels_of(session: Session, reach: Reach, planned: Planned) -> tuple[dict[str, Array], list[dict[str, int]]]:
    """The order of a step's vertices and their number in each level. A module of the user's computes those that its
    items need; the loss of other models may need all.
    """
    everywhere = session.job.scope == "all" and bool(getattr(session.model, "layerwise", False))
    return vertices_by_level(reach, len(reach.hops), session.task.readable(planned.seeds), everywhere)


def decide_step(
    session: Session, reach: Reach, order: dict[str, Array], counts: list[dict[str, int]], planned: Planned
) -> tuple[dict[str, Array], Decision, MemoryPrediction]:
    """The order of vertices, the decision on a step within the available memory, and how its memory was predicted.

    The order is that of a search where several bins read rows of their own, and read fewer of them than in the order of
    numbers.
    """
    if not getattr(session.model, "layerwise", False):
        return order, *_at_once(session, reach, order, counts, planned)
    decided, bins = None, session.job.bins
    if bins < 2 or _may_read_in_place(session):
        decided = decision, predicted = _decided(session, reach, order, counts, planned)
        bins = max(decision.bins)
        if bins == 1 or decision.in_place:
            return order, decision, predicted
    layers, searched = len(counts) - 1, in_search_order(reach.graph, order, counts)
    before, after = (num_inputs(bin_sizes(reach, layers, each, counts, bins)) for each in (order, searched))
    if after < before:
        again, predicted = _decided(session, reach, searched, counts, planned)
        if max(again.bins) > 1:
            return searched, replace(again, searched=True), predicted
    decision, predicted = decided or _decided(session, reach, order, counts, planned)
    return order, decision, predicted


def _at_once(
    session: Session, reach: Reach, order: dict[str, Array], counts: list[dict[str, int]], planned: Planned
) -> tuple[Decision, MemoryPrediction]:
    """The only way to compute a module of the user's, which has no layers that could be divided, and its memory."""
    layers = len(counts) - 1
    where: Where = "device" if session.inputs.on_gpu else "host"
    decision, sizes = Decision([1] * layers, where, False, True, 0), bin_sizes(reach, layers, order, counts, 1)
    try:
        needed = traced_step_memory(session, order, counts, sizes, decision, planned).bytes
        predicted = MemoryPrediction()
    except UntraceableError as error:
        reason = f"the step cannot be traced ({error}); two small steps were scaled up"
        needed, predicted = tried_bytes(session, reach, planned, sizes), MemoryPrediction("trial", reason)
    return replace(decision, predicted_bytes=needed), predicted


def _may_read_in_place(session: Session) -> bool:
    """Whether bins may read levels in place.

    On the host, moving rows changes no bit, and rows may be kept in a file: there bins have rows of their own.
    """
    return session.inputs.on_gpu and reads_in_place(session) is not None


def _decided(
    session: Session, reach: Reach, order: dict[str, Array], counts: list[dict[str, int]], planned: Planned
) -> tuple[Decision, MemoryPrediction]:
    """The decision on a step within the available memory, and how its memory was predicted."""
    job, on_device = session.job, session.inputs.on_gpu
    sizes, item = layer_sizes(session, reach, order, counts), _ITEM[job.keep_type]
    spare, free = available_mb() << 20, free_bytes(session.inputs.device, job.device_share)
    loss = session.task.loss_bytes(len(planned.seeds))
    if loss > free:
        raise PenstockError(
            f"The loss of a step needs about {loss / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free: raise"
            " steps_per_epoch, or for tasks on edges lower supervision or negatives_per_edge.",
            code="out-of-memory",
        )
    predicted = MemoryPrediction()

    @cache
    def divided_into(bins: int) -> list[list[BinSize]]:
        return bin_sizes(reach, len(sizes), order, counts, bins)

    @cache
    def lists() -> ListSizes:
        return list_sizes(reach, order, counts)

    def predict(decision: Decision) -> int:
        nonlocal predicted
        if decision.in_place:
            divided = in_place_sizes(lists(), counts, decision.bins)
        else:
            divided = divided_into(decision.bins[0])
        try:
            return traced_step_memory(session, order, counts, divided, decision, planned).bytes
        except UntraceableError as error:
            # A layer of the user's may read values, which traced tensors do not have.
            predicted = MemoryPrediction("rule", f"the step cannot be traced ({error}); a rule counts rows and edges")
            place = "recompute" if decision.recompute_levels else decision.keep
            return step_bytes(sizes, decision.bins[0], place, item, decision.retain, on_device) + loss

    in_place = _may_read_in_place(session)
    decision = decide(sizes, job.bins, job.keep, item, free, spare, on_device, predict=predict, in_place=in_place)
    return decision, predicted


def layer_sizes(
    session: Session, reach: Reach, order: dict[str, Array], counts: list[dict[str, int]]
) -> list[LayerSize]:
    """The sizes of every layer's computation."""
    layers, widest = len(counts) - 1, max(session.inputs.widths.values())
    of_edges = edge_numbers(session.job.model, session.inputs.edges, session.job.hidden)
    sizes = []
    for number in range(layers):
        edges = 0
        for kind in reach.of_layer(number, layers):
            indptr, rows = reach.graph.edges[kind].indptr, order[kind[2]][: counts[number + 1][kind[2]]]
            edges += int((indptr[rows + 1] - indptr[rows]).sum())
        given, read = sum(counts[number + 1].values()), sum(counts[number].values())
        out = session.task.out if number == layers - 1 and session.job.jump == "none" else session.job.hidden
        sizes.append(LayerSize(given, read, edges, session.job.hidden if number else widest, out, *of_edges))
    return sizes
