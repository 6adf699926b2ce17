"""The operators of one batch under a choice, priced by the cost model: what waits for what, and who does it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from penstock.cost.model import CostModel
from penstock.cost.operators import OPERATORS
from penstock.cost.step_prediction import STEP, Call, calls_by_layer
from penstock.hardware.machines import Network
from penstock.nn.operator_work import Sizes
from penstock.plan.execution.choice import BatchKind, ExecutionChoice
from penstock.plan.execution.first_layer import FirstLayerWork, WayWork, balanced_share, predicted_rates, row_calls

# Who carries out operators: threads of the host, streams of a device, and the bus in both directions.
#
# A lane does one operator after the other. It uses resources, which lanes share: cores of the host in parts, and the
# bus and the device in turns. For the simulator a resource is a link, and an operator is a flow over it.

CORES, UP, DOWN, GPU = "CPU cores", "bus up", "bus down", "GPU"
UNITS = 1e9
"""Of a second of a resource: the simulator counts in whole bytes, so to speak, and operators take microseconds."""


class OperatorLane(NamedTuple):
    """What carries out an operator."""

    name: str
    resources: tuple[str, ...]
    cores: float = 1.0
    """Cores that the operator keeps busy, where it is the host's."""

    @property
    def title(self) -> str:
        """Its name, with the cores."""
        return f"{self.name} ({self.cores:g})"


def lane_network(lanes: Sequence[OperatorLane], cores: float) -> Network:
    """A machine for each lane, behind one that all operators start from; lanes' resources are links to them."""
    capacities = {CORES: cores, UP: 1.0, DOWN: 1.0, GPU: 1.0}
    names, shared = ["start", *(lane.title for lane in lanes)], list(capacities)
    links = [*capacities.values(), *(lane.cores if CORES in lane.resources else 1.0 for lane in lanes), 1.0]
    paths = [[len(links) - 1]]
    paths += [[len(shared) + place, *map(shared.index, lane.resources)] for place, lane in enumerate(lanes)]
    # Every path to a lane is the same, wherever it begins; none leads from a machine to itself.
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
    the stage before."""

    name: str
    lane: OperatorLane
    seconds: float
    sizes: Sizes
    device: str
    """The kind of device that it was measured on."""

    def use(self, resource: str) -> float:
        """Seconds of a resource: of the cores, summed over those that it keeps busy."""
        if resource not in self.lane.resources:
            return 0.0
        return self.seconds * (self.lane.cores if resource == CORES else 1.0)


@dataclass(frozen=True)
class BatchOperators:
    """The operators of a batch by stage of the pipeline; in every stage one after the other."""

    sample: list[BatchOperator]
    gather: list[BatchOperator]
    transfer: list[BatchOperator]
    compute: list[BatchOperator]

    @property
    def stages(self) -> list[list[BatchOperator]]:
        """In the order in which a batch goes through them."""
        return [self.sample, self.gather, self.transfer, self.compute]

    def use(self, resource: str) -> float:
        """Seconds of a resource that a batch takes."""
        return sum(each.use(resource) for stage in self.stages for each in stage)


def batch_operators(model: CostModel, kind: BatchKind, choice: ExecutionChoice, way: WayWork) -> BatchOperators:
    """The operators of a batch; one that was not measured where the choice needs it is refused with a sentence."""
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
    """The kind of batch with the host's shares that make host and device end together, where both are known."""
    rates = predicted_rates(model, kind.blocks[0], kind.width, kind.table_rows, kind.number_bytes)
    if rates is None:
        return kind
    share = kind.gathered_share if rates.gather is None else rates.device / (rates.device + rates.gather)
    return replace(kind, host_share=balanced_share(kind.blocks[0], rates), gathered_share=share)


def _gathered_rows(kind: BatchKind, choice: ExecutionChoice, work: FirstLayerWork) -> float:
    """Rows of pinned features that the host gathers beside the device."""
    if choice.features != "pinned":
        return 0.0
    return work.gathered_share * (1 - kind.hit_rate(choice.cache_rows)) * kind.rows


class _Prices:
    """Operators with their seconds under a choice."""

    def __init__(self, model: CostModel, choice: ExecutionChoice, captured: bool) -> None:
        self.model, self._choice, self._captured = model, choice, captured

    def priced(self, call: Call, device: str, lane: str) -> BatchOperator:
        """An operator on the host's cores or on the GPU."""
        launched = device == "cpu" or not self._captured
        seconds = self.model.seconds(*call, device, launched=launched)
        if device == "cpu":
            # Lanes of alike operators are one, so that there are few of them.
            cores = round(self.model.cores(*call), 1)
            return BatchOperator(call.operator, OperatorLane(lane, (CORES,), cores), seconds, call.sizes, device)
        return BatchOperator(call.operator, OperatorLane(f"GPU {lane}", (GPU,)), seconds, call.sizes, device)

    def filled(self, call: Call) -> BatchOperator:
        """An operator of all threads of the host, for slots of captured steps."""
        seconds = self.model.seconds(*call, "cuda")
        lane = OperatorLane("fill", (CORES,), float(self.model.machine.cores))
        return BatchOperator(call.operator, lane, seconds, call.sizes, "cuda")

    def in_step(self, call: Call, device: str) -> BatchOperator:
        """An operator of a step: as much longer than alone as steps were measured to take, where they were."""
        made = self.priced(call, device, "compute")
        if not self.model.knows(STEP, device):
            return made
        return made._replace(seconds=self.model.step_seconds({"operators": made.seconds, "calls": 1.0}, device))

    def copied(self, operator: str, size: float, resource: str, lane: str) -> list[BatchOperator]:
        """A copy over the bus; none where nothing is copied."""
        if not size or self._choice.device == "cpu":
            return []
        sizes = {"bytes": size}
        seconds = self.model.seconds(operator, sizes, "cuda")
        return [BatchOperator(operator, OperatorLane(lane, (resource,)), seconds, sizes, "cuda")]


def _transfer(
    prices: _Prices, kind: BatchKind, choice: ExecutionChoice, work: FirstLayerWork, gathered: float
) -> list[BatchOperator]:
    """What brings a batch to the device: copies of what the host has made, and rows that the device reads itself."""
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
            # What only the host does is part of other operators on a device.
            if entry.backward == backward and device in entry.devices:
                found.append(prices.in_step(call, device))
        return _with_copies(prices, found, work, backward) if number == 0 else found

    count = range(len(layers))
    forward = [each for number in count for each in passed(number, backward=False)]
    return [*forward, *loss, *(each for number in reversed(count) for each in passed(number, True)), *optimiser]


def _with_copies(
    prices: _Prices, found: list[BatchOperator], work: FirstLayerWork, backward: bool
) -> list[BatchOperator]:
    """The first layer's operators, with the copies between what the host does of them and what the device does."""
    host = [each for each in found if each.name in work.on_host]
    device = [each for each in found if each.name not in work.on_host]
    if backward:
        return [*device, *prices.copied("copy_down", work.bytes_backward, DOWN, "copy down"), *host]
    return [*host, *prices.copied("copy_up", work.bytes_forward, UP, "copy up in step"), *device]
