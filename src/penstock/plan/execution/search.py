"""The predicted time of an execution, and all choices that a machine allows, the fastest first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from penstock.cost.model import BATCH, CostModel, Extrapolation
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.nn.operator_costs import LayerSizes, Order, order_costs_of
from penstock.plan.execution.choice import USUAL_DEPTHS, BatchKind, Device, ExecutionChoice, Features, PipelineDepths
from penstock.plan.execution.first_layer import (
    CORES,
    DOWN,
    GPU,
    UNITS,
    UP,
    BatchOperator,
    BatchOperators,
    OperatorLane,
    WayWork,
    batch_operators,
    lane_network,
    rows_of_place,
)
from penstock.simulate.simulation import simulate
from penstock.simulate.workload import Item, WorkloadBuilder

# The seconds of a batch in a sequence of many, by simulation; and what limits them.

_BATCHES = 24
"""The least number of simulated batches, of which the middle third counts: before it the pipeline fills, after it it
drains.
"""


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a choice."""

    seconds: float
    """Seconds per batch, in the middle of a run."""
    use: dict[str, float]
    """Share of the time that each resource is busy."""
    operators: int = 0
    """The number of operators of a batch."""

    @property
    def limit(self) -> str:
        """The resource that is busy for the largest share of the time."""
        return max(self.use, key=lambda name: self.use[name])


def predict(
    model: CostModel,
    kind: BatchKind,
    choice: ExecutionChoice,
    way: WayWork,
    depths: PipelineDepths = USUAL_DEPTHS,
) -> Prediction:
    """The seconds of a batch under a choice, on the machine that the model was fitted on."""
    operators, cores = batch_operators(model, kind, choice, way), float(model.machine.cores)
    batches = _Batches(operators, choice, depths, int(cores))
    load, size = batches.builder.build(), len(batches.made)
    repeats = max(6, -(-_BATCHES // size))
    timeline = simulate(load, lane_network(batches.lanes, cores), batches.placement(), repeats, "fair")
    ended = timeline.ends[:, load.tasks + batches.made[-1][-1].last.number]
    third = repeats // 3
    seconds = float(ended[2 * third - 1] - ended[third - 1]) / (third * size)
    capacity = {CORES: cores, UP: 1.0, DOWN: 1.0, GPU: 1.0}
    use = {name: operators.use(name) / (capacity[name] * seconds) for name in capacity}
    count = sum(map(len, operators.stages))
    return Prediction(seconds, {name: share for name, share in use.items() if share > 0}, count)


class _Stage(NamedTuple):
    """The first and the last operator of a batch's stage."""

    first: Item
    last: Item


class _Batches:
    """Some batches as flows over lanes, which are repeated: a group, or one for each thread that draws."""

    def __init__(self, operators: BatchOperators, choice: ExecutionChoice, depths: PipelineDepths, cores: int) -> None:
        self.builder, self._operators = WorkloadBuilder("batches"), operators
        self._grouped = choice.groups > 1
        drawing = cores if self._grouped else choice.sample_threads
        self._threads = 1 if choice.drawn_on_gpu else drawing
        self._places: dict[OperatorLane, Item] = {}
        self._start = self.builder.task("start", "lane", 0.0)
        size = choice.groups if self._grouped else self._threads
        self.made = [[self._sampled(number)] for number in range(size)]
        self._go_on()
        self._wait_for_lanes()
        self._wait_for_room(depths)

    @property
    def lanes(self) -> list[OperatorLane]:
        """All lanes that are used."""
        return list(self._places)

    def placement(self) -> Array:
        """The machine of every task: the start is on the first."""
        return np.arange(len(self._places) + 1, dtype=np.int32)

    def _sampled(self, number: int) -> _Stage:
        """Drawing by one of the threads, each of which is a lane."""
        lane = f"{self._operators.sample[0].lane.name} {number % self._threads}"
        drawn = [each._replace(lane=each.lane._replace(name=lane)) for each in self._operators.sample]
        return self._stage(number, drawn, [])

    def _go_on(self) -> None:
        """Add the other stages of every batch; a group is trained on when all of it is drawn."""
        drawn = [stages[0].last for stages in self.made]
        for number, stages in enumerate(self.made):
            after = drawn if self._grouped and number == 0 else [stages[0].last]
            for operators in filter(None, self._operators.stages[1:]):
                stages.append(self._stage(number, operators, after))
                after = [stages[-1].last]

    def _stage(self, number: int, operators: Sequence[BatchOperator], after: Sequence[Item]) -> _Stage:
        """Add operators one after the other, beginning when all of `after` have ended."""
        for each in operators:
            if each.lane not in self._places:
                self._places[each.lane] = self.builder.task(each.lane.title, "lane", 0.0)
        chain = self.builder.chain(
            self._start,
            [self._places[each.lane] for each in operators],
            [each.seconds * (each.lane.cores if CORES in each.lane.resources else 1.0) * UNITS for each in operators],
            [each.name for each in operators],
            [f"{each.lane.name} {place} of batch {number}: {each.name}" for place, each in enumerate(operators)],
            after,
        )
        return _Stage(*chain)

    def _wait_for_lanes(self) -> None:
        """A stage, or a drawing thread, begins a batch when it has ended the last one."""
        for number, stages in enumerate(self.made):
            for place, stage in enumerate(stages):
                before, lag = self._ago(number, self._threads if place == 0 else 1)
                self.builder.wait(self.made[before][place].last, stage.first, lag)

    def _wait_for_room(self, depths: PipelineDepths) -> None:
        """A stage begins a batch when the next stage has taken enough earlier ones.

        A group begins to be drawn when its first batch is needed.
        """
        rooms = [depth for depth, stage in zip(depths, self._operators.stages, strict=False) if stage]
        for number, stages in enumerate(self.made):
            for place, room in enumerate(rooms):
                ahead = room + 2
                if place == 0:
                    ahead += number if self._grouped else self._threads - 1
                before, lag = self._ago(number, ahead)
                self.builder.wait(self.made[before][place + 1].last, stages[place].first, lag)

    def _ago(self, number: int, batches: int) -> tuple[int, int]:
        """The batch so many before one: its number among the repeated ones, and how many repetitions ago that was."""
        repeats, place = divmod(number - batches, len(self.made))
        return place, -repeats


_ALIKE = 1.01
"""Predictions that differ by less count as equal; then the first choice is taken, which changes least."""
_BEYOND, _MATTERS = 1.25, 0.05
"""How far a size must be outside the measured range, and what share of a batch its operator must
take, to be reported.
"""
_BOTH: tuple[Order, Order] = ("aggregate", "transform")


@dataclass(frozen=True)
class PlannedWay:
    """A way of reading the first layer's inputs, as a plan sees it."""

    work: WayWork
    on_host: bool
    """Whether the host reads the features."""
    on_both: bool = False
    """Whether host and device read them, in pinned memory."""


@dataclass(frozen=True)
class Space:
    """The choices that a job and a machine leave open."""

    ways: Mapping[str, PlannedWay]
    devices: tuple[Device, ...] = ("cpu",)
    """Devices that may compute."""
    sampled_by: tuple[Device, ...] = ("cpu",)
    features: tuple[tuple[Features, int], ...] = (("host", 0),)
    """Places of the features, each with a number of cached rows."""
    sample_threads: tuple[int, ...] = (1,)
    groups: tuple[int, ...] = (1,)
    depths: PipelineDepths = USUAL_DEPTHS


@dataclass(frozen=True)
class Alternative:
    """A choice and its prediction."""

    choice: ExecutionChoice
    predicted: Prediction


@dataclass(frozen=True)
class ExecutionPlan:
    """The chosen execution and then all others, the fastest first; `unknown` lists what could not be predicted."""

    alternatives: list[Alternative]
    unknown: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> Alternative:
        """The fastest, or the first of those that are predicted to be as fast."""
        return self.alternatives[0]


def search(model: CostModel, kind: BatchKind, space: Space) -> ExecutionPlan:
    """Predict all choices of a space; an error where none can be predicted."""
    found, unknown = list[Alternative](), dict[str, None]()
    for choice in choices(model, kind, space):
        try:
            predicted = predict(model, kind, choice, space.ways[choice.first_layer].work, space.depths)
        except PenstockError as error:
            if error.code != "missing-data":
                raise
            unknown[str(error)] = None
        else:
            found.append(Alternative(choice, within_run(model, choice, predicted)))
    if not found:
        raise PenstockError(f"No execution can be predicted. {next(iter(unknown))}", code="missing-data")
    fastest = min(each.predicted.seconds for each in found)
    chosen = next(each for each in found if each.predicted.seconds <= _ALIKE * fastest)
    others = sorted((each for each in found if each is not chosen), key=lambda each: each.predicted.seconds)
    return ExecutionPlan([chosen, *others], list(unknown))


def within_run(model: CostModel, choice: ExecutionChoice, predicted: Prediction) -> Prediction:
    """The prediction of a batch within a run, if runs of the device were measured."""
    launched = choice.on_gpu and not choice.can_be_filled
    seconds = model.batch_seconds(predicted.seconds, predicted.operators, choice.device, launched=launched)
    shares = {name: min(1.0, share * predicted.seconds / seconds) for name, share in predicted.use.items()}
    return Prediction(seconds, shares, predicted.operators)


def outside_measured(model: CostModel, kind: BatchKind, chosen: Alternative, way: WayWork) -> list[Extrapolation]:
    """Sizes of an alternative outside the measured range, each once, the farthest first.

    Operators that take little of a batch do not count.
    """
    choice, device = chosen.choice, chosen.choice.device
    operators = [each for stage in batch_operators(model, kind, choice, way).stages for each in stage]
    least = _MATTERS * sum(each.seconds for each in operators)
    long = [each for each in operators if each.seconds >= least]
    found = [each for made in long for each in model.outside(made.name, made.sizes, made.device)]
    # Longer batches consist of more of the same; in shorter ones the overhead weighs more.
    seconds = {"seconds": chosen.predicted.seconds}
    found += [each for each in model.outside(BATCH, seconds, device) if each.value < each.smallest]
    by_size = {each.size: each for each in sorted(found, key=lambda each: each.factor) if each.factor > _BEYOND}
    return sorted(by_size.values(), key=lambda each: -each.factor)


def choices(model: CostModel, kind: BatchKind, space: Space) -> Iterator[ExecutionChoice]:
    """Every combination that can be carried out."""
    for device, sampled_by, (features, rows), (name, way), groups, threads in product(
        space.devices, space.sampled_by, space.features, space.ways.items(), space.groups, space.sample_threads
    ):
        # The host's own computing reads the host's memory, and a device reads by itself what the host does not.
        on_host = features == "host"
        if way.on_host != on_host or (device == "cpu" and (not on_host or sampled_by != "cpu")):
            continue
        if way.on_both and features != "pinned":
            continue
        if threads != space.sample_threads[0] and (groups > 1 or sampled_by != "cpu"):
            # Drawing a group takes all threads, and a device draws without any.
            continue
        for order in _orders(model, kind, way.work(kind).order, device):
            yield ExecutionChoice(device, sampled_by, features, name, order, rows, threads, groups)


def _orders(model: CostModel, kind: BatchKind, fixed: Order | None, device: Device) -> list[tuple[Order, ...]]:
    """The cheapest order of every layer's products, and one order for all layers; the first layer's may be fixed."""
    cheapest = cheapest_orders(model, kind, device)
    if not kind.has_orders:
        return [cheapest]
    alike = [tuple(order for _ in cheapest) for order in _BOTH]
    return list(dict.fromkeys((fixed or order[0], *order[1:]) for order in (cheapest, *alike)))


def cheapest_orders(model: CostModel, kind: BatchKind, device: Device) -> tuple[Order, ...]:
    """For every layer, the order of its products that is predicted to be faster on a device.

    Operators of a step run one after the other, so the cheapest order of each layer is the cheapest of all.
    """
    costs = order_costs_of(model.profile.model_dump(mode="json", include={"machine", "fits"})).get(device)
    if costs is None or not kind.has_orders:
        return tuple(_BOTH[0] for _ in kind.blocks)
    sizes = [
        LayerSizes(block.src, block.dst, block.edges, *widths, input_gradient=number > 0)
        for number, (block, widths) in enumerate(zip(kind.blocks, kind.widths, strict=True))
    ]
    return tuple(_BOTH[not costs.aggregates_first(each)] for each in sizes)


# Where a GPU's features lie if they do not fit on it, by predicted time.

_WORTH = 1.05
"""Another place is taken only if the usual one is predicted to be slower by at least this factor."""


@dataclass(frozen=True)
class FeaturePlace:
    """A place of features, and rows of them that are on the device too."""

    features: Features
    cache_rows: int
    seconds: float = 0.0
    """Predicted for each batch."""


def knows_transfers(model: CostModel) -> bool:
    """Whether a model includes how a GPU gets rows: by copies, and by reading pinned memory."""
    return all(model.knows(name, "cuda") for name in ("copy_up", "pinned_read", "gather"))


def fastest_place(
    model: CostModel,
    kind: BatchKind,
    sampled_by: Device,
    places: Sequence[tuple[Features, int]],
    gathers: bool = False,
) -> tuple[FeaturePlace, FeaturePlace]:
    """The place with which a GPU's batches are predicted to be fastest, and the usual one, which is the first.

    The usual one is taken unless another is clearly faster. On the host rows are gathered and copied; pinned ones are
    read by the GPU, or some of them gathered as well (`gathers`).
    """
    gathers = gathers and model.knows("host_gather", "cuda")
    order = cheapest_orders(model, kind, "cuda")
    found = list[FeaturePlace]()
    for features, rows in places:
        on_host = features == "host"
        choice = ExecutionChoice(
            "cuda", sampled_by, features, "gather" if on_host else "device", order, cache_rows=rows
        )
        way = rows_of_place(on_host, gathers)
        found.append(FeaturePlace(features, rows, predict(model, kind, choice, way).seconds))
    usual, best = found[0], min(found, key=lambda each: each.seconds)
    return (best if _WORTH * best.seconds < usual.seconds else usual), usual
