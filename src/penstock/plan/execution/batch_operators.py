"""The operators of one batch under a choice, priced by the cost model: their dependencies and what executes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from penstock.cost.model import CostModel
from penstock.cost.operators import OPERATORS
from penstock.cost.step_prediction import STEP, calls_by_layer
from penstock.hardware.machines import Network
from penstock.nn.operator_costs import Call, Sizes
from penstock.plan.execution.choice import BatchKind, ExecutionChoice
from penstock.plan.execution.first_layer import FirstLayerWork, WayWork, balanced_share, predicted_rates, row_calls

# What executes operators: threads of the host, streams of a device, and the bus in both directions. A lane executes one
# operator after the other. It uses resources, which lanes share: cores of the host in fractions, and the bus and the
# device in turns. For the simulator a resource is a link, and an operator is a flow over it.

CORES, UP, DOWN, GPU = "CPU cores", "bus up", "bus down", "GPU"
UNITS = 1e9
"""Units per second of a resource: the simulator counts whole bytes, and operators take microseconds."""


class OperatorLane(NamedTuple):
    """Executes operators one after the other."""

    name: str
    resources: tuple[str, ...]
    cores: float = 1.0
    """Cores that the operator keeps busy, on the host."""

    @property
    def title(self) -> str:
        """Its name, with the cores."""
        return f"{self.name} ({self.cores:g})"


def lane_network(lanes: Sequence[OperatorLane], cores: float) -> Network:
    """A network with a machine for each lane, and one that all operators start from; the lanes' resources are links."""
    capacities = {CORES: cores, UP: 1.0, DOWN: 1.0, GPU: 1.0}
    names, shared = ["start", *(lane.title for lane in lanes)], list(capacities)
    links = [*capacities.values(), *(lane.cores if CORES in lane.resources else 1.0 for lane in lanes), 1.0]
    paths = [[len(links) - 1]]
    paths += [[len(shared) + place, *map(shared.index, lane.resources)] for place, lane in enumerate(lanes)]
    # The path to a lane is the same from every machine; there is none from a machine to itself.
    ends = [[] if source == target else paths[target] for source in range(len(names)) for target in range(len(names))]
    starts = np.cumsum([0, *map(len, ends)])
    return Network(
        tuple(names),
        (*shared, *names[1:], "none"),
        np.array(links) * UNITS,
        starts.astype(np.int32),
        np.array([link for path in ends for link in path], np.int32),
    )


class BatchOperator(NamedTuple):
    """One operator of a batch. It waits for the one before it in its stage, and the first of a stage for the last of
    the stage before.
    """

    name: str
    lane: OperatorLane
    seconds: float
    sizes: Sizes
    device: str
    """The kind of device that it was measured on."""

    def use(self, resource: str) -> float:
        """Seconds of a resource: for cores, summed over those that it keeps busy."""
        if resource not in self.lane.resources:
            return 0.0
        return self.seconds * (self.lane.cores if resource == CORES else 1.0)


@dataclass(frozen=True)
class BatchOperators:
    """The operators of a batch by stage of the pipeline, sequential within each."""

    sample: list[BatchOperator]
    gather: list[BatchOperator]
    transfer: list[BatchOperator]
    compute: list[BatchOperator]

    @property
    def stages(self) -> list[list[BatchOperator]]:
        """The stages in the order of the pipeline."""
        return [self.sample, self.gather, self.transfer, self.compute]

    def use(self, resource: str) -> float:
        """Seconds of a resource that a batch takes."""
        return sum(each.use(resource) for stage in self.stages for each in stage)


def batch_operators(model: CostModel, kind: BatchKind, choice: ExecutionChoice, way: WayWork) -> BatchOperators:
    """The operators of a batch; an error where one that the choice needs was not measured."""
    work = way(_divided(model, kind))
    filled = choice.can_be_filled and bool(work.filled) and model.knows("host_gather", "cuda")
    prices = _Prices(model, choice, filled or (choice.captured and not work.ahead))
    sample = [prices.priced(Call("sample", kind.sample), choice.sampled_by, "sample")]
    if filled:
        gather = [prices.filled(call) for call in work.filled]
    else:
        gather = [prices.priced(call, "cpu", "gather") for call in work.ahead]
    gathered = _gathered_rows(kind, choice, work)
    if gathered:
        gather += [prices.filled(call) for call in row_calls(kind, gathered)]
    transfer = _transfer(prices, kind, choice, work, gathered)
    return BatchOperators(sample, gather, transfer, _compute(prices, kind, choice, work))


def _divided(model: CostModel, kind: BatchKind) -> BatchKind:
    """The kind of batch with the host's shares at which host and device end together, if both rates are known."""
    rates = predicted_rates(model, kind.blocks[0], kind.width, kind.table_rows, kind.number_bytes)
    if rates is None:
        return kind
    share = kind.gathered_share if rates.gather is None else rates.device / (rates.device + rates.gather)
    return replace(kind, host_share=balanced_share(kind.blocks[0], rates), gathered_share=share)


def _gathered_rows(kind: BatchKind, choice: ExecutionChoice, work: FirstLayerWork) -> float:
    """Rows of pinned features that the host gathers while the device reads the others."""
    if choice.features != "pinned":
        return 0.0
    return work.gathered_share * (1 - kind.hit_rate(choice.cache_rows)) * kind.rows


class _Prices:
    """Prices operators under a choice."""

    def __init__(self, model: CostModel, choice: ExecutionChoice, captured: bool) -> None:
        self.model, self._choice, self._captured = model, choice, captured

    def priced(self, call: Call, device: str, lane: str) -> BatchOperator:
        """An operator on the host's cores or on the GPU."""
        launched = device == "cpu" or not self._captured
        seconds = self.model.seconds(*call, device, launched=launched)
        if device == "cpu":
            # Lanes of similar operators are merged, so that there are few of them.
            cores = round(self.model.cores(*call), 1)
            return BatchOperator(call.operator, OperatorLane(lane, (CORES,), cores), seconds, call.sizes, device)
        return BatchOperator(call.operator, OperatorLane(f"GPU {lane}", (GPU,)), seconds, call.sizes, device)

    def filled(self, call: Call) -> BatchOperator:
        """An operator of all threads of the host that fills slots of captured steps."""
        seconds = self.model.seconds(*call, "cuda")
        lane = OperatorLane("fill", (CORES,), float(self.model.machine.cores))
        return BatchOperator(call.operator, lane, seconds, call.sizes, "cuda")

    def in_step(self, call: Call, device: str) -> BatchOperator:
        """An operator within a step: longer than alone by the factor measured for whole steps, if it was measured."""
        made = self.priced(call, device, "compute")
        if not self.model.knows(STEP, device):
            return made
        return made._replace(seconds=self.model.step_seconds({"operators": made.seconds, "calls": 1.0}, device))

    def copied(self, operator: str, size: float, resource: str, lane: str) -> list[BatchOperator]:
        """A copy over the bus; none where nothing is copied."""
        if not size or not self._choice.on_gpu:
            return []
        sizes = {"bytes": size}
        seconds = self.model.seconds(operator, sizes, "cuda")
        return [BatchOperator(operator, OperatorLane(lane, (resource,)), seconds, sizes, "cuda")]


def _transfer(
    prices: _Prices, kind: BatchKind, choice: ExecutionChoice, work: FirstLayerWork, gathered: float
) -> list[BatchOperator]:
    """The operators that bring a batch to the device: copies from the host, and rows that the device reads itself."""
    drawn_elsewhere = choice.sampled_by != choice.device
    copied = work.bytes_up + drawn_elsewhere * kind.list_bytes + 4 * kind.stored_width * gathered
    made = prices.copied("copy_up", copied, UP, "copy up")
    if choice.features == "host":
        return made
    hits = 1.0 if choice.features == "device" else kind.hit_rate(choice.cache_rows)
    sizes = {"width": kind.stored_width, "table_rows": kind.table_rows}
    rows = kind.rows if work.device_rows is None else work.device_rows
    if hits:
        made.append(prices.priced(Call("gather", {**sizes, "rows": hits * rows}), "cuda", "read"))
    if hits < 1:
        call = Call("pinned_read", {**sizes, "rows": (1 - hits) * rows - gathered})
        read = prices.priced(call, "cuda", "read")
        made.append(read._replace(lane=OperatorLane("GPU pinned read", (UP,))))
    return [*made, *(prices.priced(call, "cuda", "read") for call in work.on_device)]


def _compute(prices: _Prices, kind: BatchKind, choice: ExecutionChoice, work: FirstLayerWork) -> list[BatchOperator]:
    """Forward, loss, backward and the optimiser's step, one after the other."""
    first, *others = choice.order
    step = calls_by_layer(prices.model, kind.shape([work.order or first, *others]), choice.device)
    layers = [[call for call in step.layers[0] if call.operator not in work.done], *step.layers[1:]]
    loss, optimiser = ([prices.in_step(call, choice.device)] for call in step.end)

    def passed(number: int, backward: bool) -> list[BatchOperator]:
        found = []
        for call in layers[number]:
            entry = OPERATORS[call.operator]
            device = "cpu" if number == 0 and call.operator in work.on_host else choice.device
            # Operators that exist only on the host are part of others on a device.
            if entry.backward == backward and device in entry.devices:
                found.append(prices.in_step(call, device))
        return _with_copies(prices, found, work, backward) if number == 0 else found

    count = range(len(layers))
    forward = [each for number in count for each in passed(number, backward=False)]
    return [*forward, *loss, *(each for number in reversed(count) for each in passed(number, True)), *optimiser]


def _with_copies(
    prices: _Prices, found: list[BatchOperator], work: FirstLayerWork, backward: bool
) -> list[BatchOperator]:
    """The first layer's operators, with the copies between the host's part and the device's."""
    host = [each for each in found if each.name in work.on_host]
    device = [each for each in found if each.name not in work.on_host]
    if backward:
        return [*device, *prices.copied("copy_down", work.bytes_backward, DOWN, "copy down"), *host]
    return [*host, *prices.copied("copy_up", work.bytes_forward, UP, "copy up in step"), *device]
