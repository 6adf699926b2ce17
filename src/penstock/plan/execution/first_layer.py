"""A batch's operators under a choice, priced by the cost model: their dependencies and what executes them.

What is done with features before the model are functions, each of a way of `penstock.train.first_layer`: it gives the
host's work ahead of the step, what is copied, and which operators of the first layer are done already or stay on the
host.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from penstock.cost.model import STEP, BlockSizes, CostModel, calls_by_layer
from penstock.cost.operators import OPERATORS
from penstock.hardware.machines import Network
from penstock.nn.operator_costs import Call, Order, Sizes
from penstock.plan.execution.choice import BatchKind, ExecutionChoice

# The share of a batch's edges that the host aggregates, so that host and device end together (`first_layer: divided`).
# The device has the first destinations and reads the rows of their neighbours, and all destinations' own rows; the host
# aggregates the lists of the others.


class DivisionRates(NamedTuple):
    """Seconds per edge or row of the host and of the device."""

    host: float
    """Seconds for each edge whose row the host sums."""
    device: float
    """Seconds for each row that the device reads."""
    gather: float | None = None
    """Seconds for each row that the host gathers; None where unknown."""


def balanced_share(block: BlockSizes, rates: DivisionRates) -> float:
    """The share of the edges, 0 to 1, that takes the host as long as the rest takes the device.

    With share s the host sums s * edges rows, and the device reads dst + (1 - s) * (src - dst): rows of a sampled block
    are numbered in the order of its edges.
    """
    met = max(0, block.src - block.dst)
    slower = block.edges * rates.host + met * rates.device
    return min(1.0, (block.dst + met) * rates.device / slower) if slower else 0.0


def rows_read(block: BlockSizes, share: float) -> float:
    """Rows that a device reads where the host has a share of the edges."""
    return block.dst + (1 - share) * max(0, block.src - block.dst)


def predicted_rates(
    model: CostModel, block: BlockSizes, width: int, table_rows: int, number_bytes: int = 4
) -> DivisionRates | None:
    """The rates by the cost model, for a table of values of so many bytes; None where it lacks one side."""
    if not model.knows("pinned_read", "cuda") or not block.edges:
        return None
    stored = {"width": width * number_bytes / 4, "rows": float(block.src)}
    device = model.seconds("pinned_read", {**stored, "table_rows": float(table_rows)}, "cuda") / block.src
    known = {name: float(size) for name, size in block._asdict().items() if size is not None}
    if model.knows("host_gather", "cuda") and model.knows("host_aggregate", "cuda"):
        gather = model.seconds("host_gather", stored, "cuda") / block.src
        return DivisionRates(model.seconds("host_aggregate", {**known, **stored}, "cuda") / block.edges, device, gather)
    if not model.knows("aggregate_table"):
        return None
    sizes = {**known, "width": float(width), "table_rows": float(table_rows)}
    return DivisionRates(model.seconds("aggregate_table", sizes) / block.edges, device)


@dataclass(frozen=True)
class FirstLayerWork:
    """The work of a way on a batch's features."""

    ahead: tuple[Call, ...] = ()
    """Operators of the host while it reads the features."""
    bytes_up: float = 0.0
    """Bytes copied to a device before the step."""
    order: Order | None = None
    """The order of the first layer's products, if the way fixes it."""
    done: frozenset[str] = frozenset()
    """Operators of the first layer that are no longer needed."""
    on_host: frozenset[str] = frozenset()
    """Operators of the first layer that the host does within the step."""
    bytes_forward: float = 0.0
    """Bytes copied to a device within the step, after the host's part of the forward pass."""
    bytes_backward: float = 0.0
    """Bytes copied from a device within the step, before the host's part of the backward pass."""

    device_rows: float | None = None
    """Rows that a device reads by itself where features are pinned; None: all of the batch."""
    on_device: tuple[Call, ...] = ()
    """Operators of the device after it has read its rows."""
    filled: tuple[Call, ...] = ()
    """Operators of all threads of the host instead of `ahead`, where they fill the slots of captured steps."""
    gathered_share: float = 0.0
    """The share of uncached pinned rows that the host gathers while the device reads the others."""


WayWork = Callable[[BatchKind], FirstLayerWork]


def row_calls(kind: BatchKind, rows: float) -> tuple[Call, ...]:
    """Gathering so many rows for a device with all threads of the host."""
    return (Call("host_gather", {"rows": rows, "width": kind.stored_width}),)


def _sum_calls(kind: BatchKind, share: float, own: float) -> tuple[Call, ...]:
    """Summing a share of the first layer's lists with all threads of the host, and gathering `own` rows."""
    block = kind.blocks[0]
    sizes = {"src": share * block.src, "edges": share * block.edges, "dst": share * block.dst}
    sums = Call("host_aggregate", {**sizes, "width": kind.stored_width})
    return (sums, *row_calls(kind, own)) if own else (sums,)


def rows_read_by_device(kind: BatchKind) -> FirstLayerWork:
    """The host does nothing: the device reads rows in place."""
    return FirstLayerWork()


def rows_of_place(on_host: bool, gathers: bool) -> WayWork:
    """How a device gets plain rows: `gathers` says whether the host gathers some of the pinned ones."""
    if on_host:
        return rows_gathered
    return rows_along_paths if gathers else rows_read_by_device


def rows_along_paths(kind: BatchKind) -> FirstLayerWork:
    """Pinned rows: the device reads some by itself while the host gathers the others, so that both end together."""
    return FirstLayerWork(gathered_share=kind.gathered_share)


def rows_gathered(kind: BatchKind) -> FirstLayerWork:
    """The host gathers the rows of all vertices."""
    size = kind.number_bytes * kind.rows * kind.width
    return FirstLayerWork((_gather(kind, kind.rows),), size, filled=row_calls(kind, kind.rows))


def rows_aggregated(kind: BatchKind) -> FirstLayerWork:
    """The host aggregates rows directly from their table, and gathers the destinations' own."""
    block, own = kind.blocks[0], kind.blocks[0].dst * kind.own_rows
    known = {name: size for name, size in block._asdict().items() if size is not None}
    sums = Call("aggregate_table", {**known, "width": kind.width, "table_rows": kind.table_rows})
    ahead = (sums, _gather(kind, own)) if own else (sums,)
    return FirstLayerWork(
        ahead,
        (4.0 * block.dst + kind.number_bytes * own) * kind.width,
        "aggregate",
        frozenset({"aggregate"}),
        filled=_sum_calls(kind, 1.0, own),
    )


def rows_divided(kind: BatchKind) -> FirstLayerWork:
    """The host aggregates a share of the lists from their table; the device reads rows and aggregates the others."""
    share, block = kind.host_share, kind.blocks[0]
    known = {name: float(size) for name, size in block._asdict().items() if size is not None}
    parts = [{**known, "edges": part * block.edges, "dst": part * block.dst} for part in (share, 1 - share)]
    read = rows_read(block, share)
    sums = Call("aggregate_table", {**parts[0], "width": kind.width, "table_rows": kind.table_rows})
    return FirstLayerWork(
        (sums,),
        4.0 * share * block.dst * kind.width,
        "aggregate",
        frozenset({"aggregate"}),
        device_rows=read,
        on_device=(Call("aggregate", {**parts[1], "src": read, "width": kind.width}),),
        filled=_sum_calls(kind, share, 0.0),
    )


def rows_transformed(kind: BatchKind) -> FirstLayerWork:
    """The host gathers rows and multiplies them by the layer's weights, whose gradient it computes too."""
    numbers = (kind.rows + kind.blocks[0].dst * kind.own_rows) * kind.widths[0][1]
    return FirstLayerWork(
        (_gather(kind, kind.rows),),
        order="transform",
        on_host=frozenset({"dense", "dense_weight_gradient"}),
        bytes_forward=4.0 * numbers,
        bytes_backward=4.0 * numbers,
    )


def _gather(kind: BatchKind, rows: int) -> Call:
    return Call("gather", {"rows": rows, "width": kind.width, "table_rows": kind.table_rows})


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
