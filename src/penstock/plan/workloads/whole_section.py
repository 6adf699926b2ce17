"""The setup of a run on the whole graph, and the costs of its bins and messages: linear fits to measurements."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy.optimize import nnls

from penstock.cost.profile import OperatorCost, Profile
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument
from penstock.graph.folder import Graph
from penstock.graph.schema import is_about
from penstock.hardware.machines import machines_of
from penstock.nn.layer_table import LAYERS
from penstock.partition.assignment import parts_of
from penstock.partition.bins import BinCounts, LayerBins, count_bins, levels_reached, share_parts
from penstock.partition.problem import merged_relations, whole_of
from penstock.plan.workloads.entry import PlannedRun

# The seconds of a bin of a layer, forward and backward: linear fits to what a profile measured at several sizes.

FORWARD, BACKWARD = "forward", "backward"


class CostLine(NamedTuple):
    """Seconds of a bin by its rows, its edges, and the distinct rows that it reads."""

    fixed: float
    row: float
    edge: float
    input: float = 0.0

    def seconds(self, rows: float, edges: float, inputs: float = 0.0) -> float:
        """Seconds of a bin; 0 without rows."""
        return self.fixed + self.row * rows + self.edge * edges + self.input * inputs if rows else 0.0


class LayerCost(NamedTuple):
    """The costs of one layer of a model."""

    forward: CostLine
    backward: CostLine
    width_in: int
    width_out: int


def operator_name(direction: str, layer: int) -> str:
    """The profile's operator for one layer's pass over a bin in one direction."""
    return f"{direction} {layer}"


def layer_costs(profile: Profile, device: str) -> list[LayerCost]:
    """The layers of a profile's model on a kind of device, or on CPUs if they were measured only there."""
    found: list[LayerCost] = []
    names = {each.name for each in profile.operators}
    while operator_name(FORWARD, len(found)) in names:
        passes = [_measured(profile, operator_name(way, len(found)), device) for way in (FORWARD, BACKWARD)]
        sizes = passes[0][0].sizes
        forward, backward = map(fitted_line, passes)
        found.append(LayerCost(forward, backward, int(sizes["width_in"]), int(sizes["width_out"])))
    if not found:
        # Raises an error that says what is missing, and how to measure it.
        profile.operator(operator_name(FORWARD, 0), device)
    return found


def fitted_line(measured: list[OperatorCost]) -> CostLine:
    """The linear function with the least relative error to some measurements and non-negative terms."""
    # Profiles of earlier releases have no inputs.
    at = np.array([[1.0, each.sizes["rows"], each.sizes["edges"], each.sizes.get("inputs", 0.0)] for each in measured])
    return CostLine(*fitted_terms(at, np.array([each.seconds.mean for each in measured])))


def fitted_terms(at: Array, seconds: Array) -> list[float]:
    """Non-negative factors of the columns of `at`, whose products approximately sum to the seconds of each row."""
    # Columns are scaled to a similar size: those of rows, edges and bytes are millions.
    weights, scale = 1 / np.maximum(seconds, 1e-9), np.maximum(at.max(axis=0), 1e-300)
    terms, _ = nnls(at / scale * weights[:, None], seconds * weights)
    found: list[float] = (terms / scale).tolist()
    return found


def _measured(profile: Profile, name: str, device: str) -> list[OperatorCost]:
    profile.operator(name, device)
    found = profile.measurements(name, device) or profile.measurements(name, "cpu")
    for each in found:
        missing = {"rows", "edges", "width_in", "width_out"} - set(each.sizes)
        if missing:
            raise PenstockError(
                f"The profile's operator {name} has no size {min(missing)}: measure again with `penstock profile JOB`.",
                code="missing-data",
            )
    return found


# How a run on the whole graph is set up: bins of all workers, and the rows that they exchange.

_NUMBER = 4
"""Bytes of a value in a row that is sent."""
_ANY_DEGREE = 2**31 - 1
Table = list[list[int]]
Cube = list[list[list[int]]]


class PlannedLayer(StrictDocument):
    """One layer of all workers; see `penstock.partition.bins.LayerBins`."""

    rows: Table = Field(description="rows that each worker's bins compute")
    edges: Table
    inputs: Table = Field(default=[], description="different rows that they read; none in plans of earlier releases")
    remote_edges: Table = Field(description="of these, edges from vertices of other workers")
    halo: list[int] = Field(description="rows of others that each worker reads")
    again: Table = Field(description="rows of others, and their edges, that each worker computes itself")
    sent: Cube = Field(description="rows of each worker's bins that other workers read in the next layer")
    needed: Cube = Field(description="the last bin of each other worker's layer below that a bin reads; -1: none")
    onward: list[bool] = Field(
        default=[], description="for each worker, whether its bins are in the same order backward as forward"
    )
    returned: Cube = Field(description="rows of each other worker whose gradients are complete after a bin")
    awaited: Cube = Field(description="the bin of each other worker that completes the gradients of a bin's rows")

    @classmethod
    def of(cls, bins: LayerBins) -> "PlannedLayer":
        """A layer from its counts."""
        return cls.model_validate({name: getattr(bins, name).tolist() for name in cls.model_fields})

    def counted(self) -> LayerBins:
        """The layer's counts as arrays."""
        found = {name: np.array(getattr(self, name)) for name in type(self).model_fields}
        # Plans of earlier releases do not have these.
        found["inputs"] = found["inputs"] if self.inputs else np.zeros_like(found["rows"])
        found["onward"] = found["onward"] if self.onward else np.zeros(len(found["rows"]), np.bool_)
        return LayerBins(**found)


class WholeGraphExecution(StrictDocument):
    """The setup of a run, beside the costs of its bins."""

    stores: list[str] = Field(description="a task's name for every part")
    homes: list[int] = Field(description="for every worker, the number of the machine that holds its rows")
    servers: int = Field(default=0, ge=0, description="parameter servers; 0: the workers reduce around a ring")
    bins: int = Field(ge=1, description="of each layer and worker")
    exchange: Literal["bins", "layer", "boundary", "replicate"] = "bins"
    pipeline: Literal["none", "inter", "intra", "both"] = "both"
    boundary_share: float = Field(default=1.0, gt=0, le=1)
    replicate_costs: list[float] = Field(
        default=[], description="with exchange replicate: seconds of a row and of an edge for each layer, both passes"
    )
    number_bytes: int = Field(default=4, description="of numbers that wait for the backward pass")
    send_inputs: bool = Field(
        default=False, description="whether inputs of other workers are sent in every step; ours are kept"
    )
    inputs: Table = Field(description="inputs of each worker that every other one reads")
    layers: list[PlannedLayer]
    device: str = Field(default="cpu", description="kind of device that workers compute on")
    gpus: float = Field(default=0.0, ge=0, description="GPUs that each worker needs")

    @property
    def sends_early(self) -> bool:
        """Whether a bin's rows leave before its layer is done."""
        return self.exchange != "layer" and self.pipeline in ("intra", "both")

    @property
    def starts_early(self) -> bool:
        """Whether a bin starts before all rows of the layer below have arrived."""
        return self.exchange != "layer" and self.pipeline in ("inter", "both")

    @property
    def share(self) -> float:
        """The share of the rows that a worker reads from others which is sent."""
        return self.boundary_share if self.exchange == "boundary" else 1.0


class CountedRun:
    """A run with a partitioned graph, whose bins can be counted for several numbers of them."""

    def __init__(self, run: PlannedRun) -> None:
        for machine in run.cluster.machines:
            if not machine.workers:
                raise PenstockError(
                    f"Machine {machine.name} holds a part and has no worker to compute it: give it `workers` in the"
                    " cluster file, or leave it out.",
                    code="option-missing",
                )
        self._run = run
        machines = run.cluster.machines
        self.homes = [number for number, machine in enumerate(machines) for _ in range(machine.workers)]
        self.costs = layer_costs(run.profile, run.device)
        graph = run.open_graph()
        self._whole = whole = whole_of(graph)
        part_of = parts_of(graph, run.cluster.partition, len(machines), run.cluster.method)
        shared = np.bincount(self.homes, minlength=len(machines))
        self._owner = share_parts(part_of, shared, np.diff(whole.indptr) + 1)
        layers = len(self.costs)
        if run.job.scope == "all":
            self._last_level = np.full(whole.count, layers, np.int8)
        else:
            wanted = _read_by_loss(graph, run.job.task, whole.offsets)[:: run.job.steps_per_epoch]
            self._last_level = levels_reached(whole.indptr, whole.indices, wanted, layers)

    def section(self, bins: int) -> WholeGraphExecution:
        """The run with so many bins of each layer and worker."""
        run, job, cluster = self._run, self._run.job, self._run.cluster
        counts = self._count(bins)
        return WholeGraphExecution(
            stores=[f"store-{machine.name}" for machine in cluster.machines],
            homes=self.homes,
            servers=cluster.servers if cluster.reduce == "servers" else 0,
            bins=bins,
            exchange=job.exchange,
            pipeline=job.pipeline,
            boundary_share=job.boundary_share,
            replicate_costs=_replica_costs(self.costs) if job.exchange == "replicate" else [],
            number_bytes=2 if job.keep_type == "bfloat16" else 4,
            inputs=counts.inputs.tolist(),
            layers=[PlannedLayer.of(layer) for layer in counts.layers],
            device=run.device,
            gpus=run.gpus,
        )

    def _count(self, bins: int) -> BinCounts:
        job, whole = self._run.job, self._whole
        eager, by_bin = (job.exchange != "layer" and job.pipeline in (each, "both") for each in ("inter", "intra"))
        again = again_degree(self.costs[0], self._slowest_share()) if job.exchange == "replicate" else -1
        sums = job.exchange != "boundary" and LAYERS[job.model].source_scale(job) is not None
        lists = whole.indptr, whole.indices
        relations = self._relations if sums else None
        return count_bins(
            *lists, self._owner, len(self.homes), self._last_level, bins, eager, again, sums, by_bin, relations
        )

    @cached_property
    def _relations(self) -> Array | None:
        """The relation of every list entry; None: there is one."""
        return None if self._whole.graph.is_homogeneous else merged_relations(self._whole)

    def _slowest_share(self) -> float:
        """Bytes per second of the slowest worker's share of its machine's link."""
        rates = machines_of(self._run.cluster, self._run.profile.rate).rates
        return min(rates[home] / self.homes.count(home) for home in set(self.homes))


def _read_by_loss(graph: Graph, task: str, offsets: dict[str, int]) -> Array:
    """Numbers of the training vertices, type after type; all vertices for tasks on edges."""
    if is_about(task, "edges"):
        return np.arange(graph.num_nodes)
    split = {name: nodes.splits.get("train") for name, nodes in graph.nodes.items()}
    found = [np.asarray(rows) + offsets[name] for name, rows in split.items() if rows is not None]
    return np.concatenate(found) if found else np.arange(graph.num_nodes)


def _replica_costs(costs: Sequence[LayerCost]) -> list[float]:
    """For each layer, seconds of a row, including its reading, and of an edge."""
    found = []
    for cost in costs:
        passes = cost.forward, cost.backward
        found += [sum(line.row + line.input for line in passes), sum(line.edge for line in passes)]
    return found


def again_degree(first: LayerCost, rate: float) -> int:
    """The most neighbours with which computing a row of the first layer is faster than sending it
    both ways at a rate.
    """
    left = 2 * _NUMBER * first.width_out / rate - first.forward.row - first.backward.row
    edge = first.forward.edge + first.backward.edge
    if left < 0:
        return -1
    return int(min(left / edge, _ANY_DEGREE)) if edge else _ANY_DEGREE


# The CPU cost of messages of rows at both ends, as measured in a profile, and when it arises. A worker handles its
# messages with the CPU that computes its bins. So what a bin sends is handled with the bin, and what a layer receives
# is handled while the layer is computed, a share of it with each bin.

MESSAGE = "message"
"""The profile's operator for a message, both ends together."""


class MessageCost(NamedTuple):
    """CPU seconds of a message at both ends together, by its bytes."""

    fixed: float = 0.0
    byte: float = 0.0


def message_cost(profile: Profile) -> MessageCost:
    """A linear fit to a profile's measurements; 0 if messages were not measured."""
    measured = profile.measurements(MESSAGE, "cpu")
    if not measured:
        return MessageCost()
    at = np.array([[1.0, each.sizes["bytes"]] for each in measured])
    return MessageCost(*fitted_terms(at, np.array([each.seconds.mean for each in measured])))


class Handling(NamedTuple):
    """Seconds of handling messages, by layer [workers, bins], with each bin of either pass."""

    forward: list[Array]
    backward: list[Array]


def handling_of(execution: WholeGraphExecution, costs: Sequence[LayerCost], message: MessageCost) -> Handling:
    """The handling of rows that a layer sends forward and reads, and of gradients on the way back."""
    layers = [layer.counted() for layer in execution.layers]
    found = Handling([np.zeros(layer.rows.shape) for layer in layers], [np.zeros(layer.rows.shape) for layer in layers])
    in_one = not (execution.sends_early or execution.starts_early)
    for number in range(len(layers) - 1):
        row_bytes = execution.share * costs[number].width_out * _NUMBER
        rows = _seconds(layers[number].sent, row_bytes, message, in_one, last=-1)
        _share(found.forward[number], found.forward[number + 1], rows)
        gradients = _seconds(layers[number + 1].returned, row_bytes, message, in_one, last=0)
        _share(found.backward[number + 1], found.backward[number], gradients)
    return found


def _seconds(rows: Array, row_bytes: float, message: MessageCost, in_one: bool, last: int) -> Array:
    """[sender, bin, reader]: a message after each bin that has rows for a reader, or one after the last."""
    if in_one:
        whole = np.zeros_like(rows)
        whole[:, last] = rows.sum(axis=1)
        rows = whole
    return (rows > 0) * message.fixed + rows * row_bytes * message.byte


def _share(senders: Array, readers: Array, seconds: Array) -> None:
    """Half of the cost is the sender's and half the reader's, spread evenly over the reader's bins."""
    senders += seconds.sum(axis=2) / 2
    readers += seconds.sum(axis=(0, 1))[:, None] / 2 / readers.shape[1]
