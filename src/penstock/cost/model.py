"""The cost model: predicted seconds of operators by a machine's fitted rates (this machine's own if measured), and of a
training step by the sizes of its blocks.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from penstock.cache_folders import cache_folder
from penstock.cost.operators import OPERATORS
from penstock.cost.operators.entry import block_sizes
from penstock.cost.profile import FittedOperator, MeasuredMachine, Profile, read_profile, this_machine
from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, read_yaml
from penstock.nn.layer_table import LAYERS
from penstock.nn.layers.entry import RELU, CalledLayer
from penstock.nn.operator_costs import (
    SHIPPED_MACHINES,
    USUAL_GPU,
    USUAL_HOST,
    Amounts,
    Call,
    LayerSizes,
    Order,
    OrderCosts,
    order_costs_of,
    seconds_of,
    shipped_order_costs,
)
from penstock.sampling import Block

# The cost model: predicted seconds of an operator of given sizes on a device, from a machine's fitted rates.

LAUNCHES = frozenset({"calls", "hops", "tensors"})
"""Kinds of work whose time on a GPU is that of launching from the host, whatever the sizes."""
BATCH, LAUNCHED_BATCH = "batch", "launched_batch"
"""The names of what was fitted to batches of whole runs; on a GPU with captured and with launched steps."""


def batch_work(simulated: float, operators: int) -> Amounts:
    """The work of a batch in a run: the simulated seconds of its operators, the batch itself, and each operator."""
    return {"simulated": simulated, "batches": 1.0, "operators": float(operators)}


class Extrapolation(NamedTuple):
    """A size outside the measured range."""

    operator: str
    device: str
    size: str
    value: float
    smallest: float
    largest: float

    @property
    def factor(self) -> float:
        """How many times smaller or larger than the nearest measured size."""
        if self.value < self.smallest:
            return self.smallest / max(self.value, 1e-12)
        return self.value / max(self.largest, 1e-12)


class CostModel:
    """Predictions from a machine's profile (`penstock profile --operators`)."""

    def __init__(self, profile: Profile) -> None:
        if profile.machine is None or not profile.fits:
            raise PenstockError(
                "The profile has no fitted operators: make one with `penstock profile --operators`.",
                code="missing-data",
            )
        self.profile, self.machine = profile, profile.machine
        self._fits: dict[tuple[str, str], FittedOperator] = {(each.name, each.device): each for each in profile.fits}

    def knows(self, operator: str, device: str = "cpu") -> bool:
        """Whether the operator was measured on a kind of device."""
        return (operator, device) in self._fits

    def fit(self, operator: str, device: str = "cpu") -> FittedOperator:
        """An operator's rates on a kind of device."""
        if operator not in OPERATORS:
            raise OPERATORS.unknown(operator)
        if (operator, device) not in self._fits:
            raise PenstockError(
                f"Operator {operator} was not measured on {device}: run `penstock profile --operators` on a machine"
                f" with {device}.",
                code="missing-data",
            )
        return self._fits[operator, device]

    def seconds(
        self, operator: str, sizes: Mapping[str, float], device: str = "cpu", *, launched: bool = True
    ) -> float:
        """Predicted seconds of one call, after the first.

        One that is not `launched` by itself but replayed with others takes the same without the time of launching.
        """
        rates = self.fit(operator, device).rates
        work = OPERATORS[operator].work(sizes, self.machine.processor_of(device))
        if not launched:
            work = {name: amount for name, amount in work.items() if name not in LAUNCHES}
        return seconds_of(rates, work)

    def cores(self, operator: str, sizes: Mapping[str, float]) -> float:
        """The mean number of host cores that one call keeps busy."""
        entry, processor = OPERATORS[operator], self.machine.processor_of("cpu")
        if not entry.divided:
            return entry.cores or float(self.machine.cores)
        rates = self.fit(operator).rates
        alone, divided = (
            seconds_of(rates, entry.work(sizes, given)) for given in (processor._replace(threads=1.0), processor)
        )
        return max(1.0, alone / divided) if divided else 1.0

    def batch_seconds(self, simulated: float, operators: int, device: str = "cpu", *, launched: bool = False) -> float:
        """Seconds of a batch in a run, from those of its simulated operators; unchanged if no run was measured."""
        found = self._fits.get((LAUNCHED_BATCH if launched else BATCH, device))
        return simulated if found is None else seconds_of(found.rates, batch_work(simulated, operators))

    def outside(self, operator: str, sizes: Mapping[str, float], device: str = "cpu") -> list["Extrapolation"]:
        """The sizes of a call outside the measured range."""
        found = self._fits.get((operator, device))
        ranges = {} if found is None else found.ranges
        return [
            Extrapolation(operator, device, name, float(sizes[name]), *bounds)
            for name, bounds in ranges.items()
            if name in sizes and not bounds[0] <= sizes[name] <= bounds[1]
        ]

    def step_seconds(self, work: Amounts, device: str = "cpu") -> float:
        """Predicted seconds of a step, from its work (`penstock.cost.model.step_work`)."""
        return seconds_of(self._fits["step", device].rates, work)


# Where the profile of a machine is kept once it was measured: in the user's cache folder under the machine's digest. A
# machine with another device, driver, number of cores or library has another digest, and no profile yet.


def cached_path(machine: MeasuredMachine) -> Path:
    """Where the profile of a machine is kept."""
    return cache_folder() / "operators" / f"{machine.digest}.json"


def cached_profile(machine: MeasuredMachine) -> Profile | None:
    """The profile of a machine; None if it was not measured yet, or by a release with another format."""
    path = cached_path(machine)
    if not path.is_file():
        return None
    try:
        found = read_profile(path)
    except PenstockError:
        # It can be measured again when it is needed.
        return None
    return found if found.machine is not None and found.machine.digest == machine.digest else None


# Cost models of machines: this one's, those that come with Penstock, those of files, and GPUs estimated from others.
# `shipped/machines` has an operator profile for each machine that was measured, and `gpus.yaml`, the data-sheet figures
# of GPUs that were not: these are estimated from one that was, by the ratios of what limits their operators.

VARIABLE = "PENSTOCK_OPERATORS"
"""The environment variable that names an operator profile to use instead of this machine's."""
THIS, ALL = "this", "all"
"""The names of this machine, and of it and all that come with Penstock."""
_HOSTS = {"x86-host": USUAL_GPU}
"""Machines without a GPU that are the host of one: by name, the profile whose CPU they have."""


def machine_model() -> CostModel:
    """The model of this machine if it was measured; else the one that comes with Penstock.

    The environment variable PENSTOCK_OPERATORS names another operator profile, or is `shipped`.
    """
    found = measured_model()
    return shipped_model() if found is None else found


def measured_model() -> CostModel | None:
    """The model of this machine, or of the profile that PENSTOCK_OPERATORS names; None if nothing was measured."""
    asked = os.environ.get(VARIABLE)
    if asked:
        return None if asked == "shipped" else CostModel(read_profile(Path(asked)))
    found = cached_profile(this_machine())
    return None if found is None else CostModel(found)


def shipped_model() -> CostModel:
    """The model for a machine without a GPU that was not measured: that of a host that comes with Penstock."""
    return _shipped_model(USUAL_HOST)


@cache
def _shipped_model(name: str) -> CostModel:
    return CostModel(read_profile(SHIPPED_MACHINES / f"{name}.json"))


def machine_order_costs() -> dict[str, OrderCosts]:
    """By device, the costs that decide the order of a layer's products here.

    Devices that were not measured on this machine have the costs that come with Penstock.
    """
    found = machine_model().profile.model_dump(mode="json", include={"machine", "fits"})
    return {**shipped_order_costs(), **order_costs_of(found)}


class DataSheet(StrictDocument):
    """A vendor's figures of a GPU."""

    gpu: str
    memory_gb: float = Field(gt=0, description="10^9 bytes of memory")
    bandwidth: float = Field(gt=0, description="GB/s of its memory")
    rate: float = Field(gt=0, description="10^12 operations/s in float32, without tensor cores")
    link: float = Field(gt=0, description="GB/s between host and device, in one direction")
    cache_mb: float = Field(gt=0, description="MB of its last cache")
    source: str = Field(description="where the figures are from")


@dataclass(frozen=True)
class KnownMachine:
    """A machine that a plan can be made for."""

    name: str
    model: CostModel
    basis: str
    """Whether its operators were measured or estimated, in words."""
    estimated: bool = False
    ratios: dict[str, float] | None = None
    """The ratios of an estimated GPU's figures to those of the measured GPU."""

    @property
    def device_memory(self) -> int | None:
        """Bytes of its GPU; None where it has none, or where that is not known."""
        return self.model.machine.gpu_memory


def machine_names() -> list[str]:
    """This machine and all that come with Penstock: hosts, the GPU that was measured, then the estimated ones."""
    return [THIS, USUAL_HOST, *_HOSTS, *data_sheets()]


@cache
def data_sheets() -> dict[str, DataSheet]:
    """The data sheets of GPUs, by the name of a machine that has one; the first is the GPU that was measured."""
    raw = read_yaml(SHIPPED_MACHINES / "gpus.yaml", "the data sheets of GPUs")
    found = {str(name): DataSheet.model_validate(fields) for name, fields in raw.items()}
    return {USUAL_GPU: found[USUAL_GPU], **found}


def known_machines(asked: str) -> list[KnownMachine]:
    """The machines of a list of names and of profiles' files, separated by commas."""
    names = [name.strip() for name in asked.split(",") if name.strip()]
    names = [each for name in names for each in (machine_names() if name == ALL else [name])]
    if not names:
        raise PenstockError(f"--machine names no machine: {_choices()}.", code="invalid-value")
    return [known_machine(name) for name in dict.fromkeys(names)]


def known_machine(name: str) -> KnownMachine:
    """A machine by its name, or by the file of its profile of operators."""
    if name == THIS:
        return _this_machine()
    if name in _HOSTS:
        return KnownMachine(name, CostModel(_host_alone(_shipped_model(_HOSTS[name]).profile)), "measured")
    if name in (USUAL_HOST, USUAL_GPU):
        return KnownMachine(name, _shipped_model(name), "measured")
    if name in data_sheets():
        return _estimated(name)
    if not (name.endswith(".json") or Path(name).exists()):
        raise PenstockError(f"There is no machine {name!r}: {_choices()}.", code="unknown-name")
    return KnownMachine(name, CostModel(read_profile(Path(name))), "measured")


def _choices() -> str:
    return (
        f"choose some of {', '.join(machine_names())} or {ALL}, or name the file that `penstock profile --operators -o"
        " FILE` wrote on another machine"
    )


def _this_machine() -> KnownMachine:
    found = measured_model()
    if found is not None:
        return KnownMachine(THIS, found, "measured")
    basis = f"figures of {USUAL_HOST}: this machine was not measured (penstock profile --operators)"
    return KnownMachine(THIS, shipped_model(), basis, estimated=True)


def _host_alone(profile: Profile) -> Profile:
    """The profile of a machine without its GPU."""
    assert profile.machine is not None
    processors = {name: found for name, found in profile.machine.processors.items() if name == "cpu"}
    alone = {"processors": processors, "gpu": None, "gpu_memory": None, "driver": None}
    fits = [fit for fit in profile.fits if fit.device == "cpu"]
    return profile.model_copy(update={"machine": profile.machine.model_copy(update=alone), "fits": fits})


@cache
def _estimated(name: str) -> KnownMachine:
    """A GPU by its data sheet: the measured GPU's operators, each slower by the ratio of what limits it."""
    sheet, known = data_sheets()[name], data_sheets()[USUAL_GPU]
    profile = _shipped_model(USUAL_GPU).profile
    assert profile.machine is not None
    ratios = {kind: getattr(sheet, kind) / getattr(known, kind) for kind in ("bandwidth", "rate", "link")}
    own: dict[str, Any] = {"gpu": sheet.gpu, "gpu_memory": int(sheet.memory_gb * 1e9), "driver": None}
    cache_size = sheet.cache_mb * 1e6
    own["processors"] = {**profile.machine.processors, "cuda": (cache_size, cache_size, 1.0)}
    machine = profile.machine.model_copy(update=own)
    fits = [fit if fit.device == "cpu" else _slower(fit, ratios) for fit in profile.fits]
    said = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items())
    basis = f"estimated from {USUAL_GPU} by ratios of {said}"
    model = CostModel(profile.model_copy(update={"machine": machine, "fits": fits}))
    return KnownMachine(name, model, basis, estimated=True, ratios=ratios)


_OF_HOST = frozenset({"host_gather", "host_aggregate", BATCH, LAUNCHED_BATCH})
"""Operators of a GPU whose time is that of the host's threads or of launching."""
_OVER_LINK = frozenset({"copy_up", "copy_down", "pinned_read"})


def _slower(fit: FittedOperator, ratios: dict[str, float]) -> FittedOperator:
    """A GPU's operator at other rates: products scale with the rate of operations, copies with the link, all else with
    memory.
    """
    if fit.name in _OF_HOST:
        return fit

    def factor(work: str) -> float:
        if work in LAUNCHES:
            return 1.0
        kind = "link" if fit.name in _OVER_LINK else "rate" if work == "flops" else "bandwidth"
        return 1 / ratios[kind]

    return fit.model_copy(update={"rates": {work: rate * factor(work) for work, rate in fit.rates.items()}})


STEP = "step"
"""The name of what was fitted to whole steps."""


class BlockSizes(NamedTuple):
    """The sizes of a block that affect the time of a layer on it."""

    src: int
    dst: int
    edges: int
    src_distinct: float | None = None
    """Source rows that windows of the edges read (`penstock.cost.operators.entry`); None: estimated."""
    dst_distinct: float | None = None
    """The same for destination rows, which gradients read."""
    src_passes: float | None = None
    """Passes of the backward kernel over source rows; None: estimated from rows and edges."""
    dst_passes: float | None = None
    """Passes of the forward kernel over destination rows; None: estimated."""


def counted_block(block: Block) -> BlockSizes:
    """The sizes of a block that affect the time of a layer on it, counted rather than estimated."""
    found = block_sizes(block)
    further = {name: found[name] for name in ("src_distinct", "dst_distinct", "src_passes", "dst_passes")}
    return BlockSizes(block.num_src, block.num_dst, block.num_edges, **further)


@dataclass(frozen=True)
class StepShape:
    """A training step: blocks, outermost first, each layer's widths in and out, and what the model is made of."""

    layer: str
    """Kind of layer, one that declares its calls."""
    blocks: Sequence[BlockSizes]
    widths: Sequence[tuple[int, int]]
    heads: int = 4
    order: Order | Sequence[Order] = "auto"
    first_kept: bool = False
    """Whether the first layer's aggregates, of inputs that never change, are kept from step to step."""
    first_density: float = 1.0
    """The share of the first layer's inputs that is not zero, if they are kept as a sparse matrix; 1: they are not."""


def predicted_layers() -> list[str]:
    """The kinds of layer whose steps can be predicted."""
    return [name for name, entry in LAYERS.items() if entry.calls is not None]


def step_seconds(model: CostModel, shape: StepShape, device: str = "cpu") -> float:
    """Predicted seconds of a step: forward, backward and the optimiser.

    If steps were measured as well, this includes what they take beyond the sum of their operators.
    """
    work = step_work(model, shape, device)
    return model.step_seconds(work, device) if model.knows(STEP, device) else work["operators"]


def step_work(model: CostModel, shape: StepShape, device: str = "cpu") -> Amounts:
    """The seconds of a step's operators, each alone, and their calls."""
    calls = step_calls(model, shape, device)
    return {"operators": sum(model.seconds(*call, device) for call in calls), "calls": float(len(calls))}


def step_calls(model: CostModel, shape: StepShape, device: str = "cpu") -> list[Call]:
    """All operators of a step; where the order of products is free, in the order that the model's costs decide."""
    layers, end = calls_by_layer(model, shape, device)
    return [*chain.from_iterable(layers), *end]


class StepCalls(NamedTuple):
    """The operators of a step by layer, forward and backward, and those at its end: the loss and the optimiser."""

    layers: list[list[Call]]
    end: list[Call]


def calls_by_layer(model: CostModel, shape: StepShape, device: str = "cpu") -> StepCalls:
    """The operators of a step, the outermost layer first. Norm and activation after a layer belong to it."""
    calls_of = LAYERS[shape.layer].calls if shape.layer in LAYERS else None
    if calls_of is None:
        raise PenstockError(
            f"The steps of layer {shape.layer!r} cannot be predicted: choose one of {', '.join(predicted_layers())}.",
            code="unknown-name",
        )
    if len(shape.blocks) != len(shape.widths):
        raise PenstockError(
            f"A step has {len(shape.blocks)} blocks and widths of {len(shape.widths)} layers: give one for each.",
            code="shape-mismatch",
        )
    costs = None
    if "auto" in (shape.order, *shape.order):
        costs = order_costs_of(model.profile.model_dump(mode="json", include={"machine", "fits"}))[device]
    layers, parameters, tensors, count = list[list[Call]](), 0, 0, len(shape.blocks)
    for number, (block, (width_in, width_out)) in enumerate(zip(shape.blocks, shape.widths, strict=True)):
        last = number == count - 1
        sizes = LayerSizes(block.src, block.dst, block.edges, width_in, width_out, input_gradient=number > 0)
        made = calls_of(CalledLayer(sizes, _further(block), _first(shape, number, sizes, costs), shape.heads, last))
        parameters, tensors = parameters + made.parameters, tensors + made.tensors
        behind = [] if last else [Call(name, {"rows": block.dst, "width": width_out}) for name in RELU]
        layers.append([*(made.calls if number else _of_inputs(made.calls, shape)), *behind])
    loss = Call("loss", {"rows": shape.blocks[-1].dst, "classes": shape.widths[-1][1]})
    return StepCalls(layers, [loss, Call("optimiser", {"tensors": tensors, "numbers": parameters})])


_AGGREGATES = frozenset({"aggregate", "aggregate_backward", "transpose"})
_SPARSE = {"dense": "aggregate", "dense_weight_gradient": "aggregate_backward"}
"""Products with rows, and what they are with sparse ones, which read the weight as a list reads its neighbours."""


def _of_inputs(calls: Sequence[Call], shape: StepShape) -> list[Call]:
    """The first layer's calls as they are in every step, where something of its inputs is kept."""
    if shape.first_density < 1:
        width = shape.widths[0][0]
        return [
            _sparse(call, shape.first_density) if call.operator in _SPARSE and call.sizes["in"] == width else call
            for call in calls
        ]
    return [call for call in calls if not shape.first_kept or call.operator not in _AGGREGATES]


def _sparse(call: Call, density: float) -> Call:
    rows, width_in, width_out = (call.sizes[name] for name in ("rows", "in", "out"))
    sizes = {"src": width_in, "dst": rows, "edges": density * rows * width_in, "width": width_out}
    return Call(_SPARSE[call.operator], sizes)


def _first(shape: StepShape, number: int, sizes: LayerSizes, costs: OrderCosts | None) -> bool:
    if number == 0 and (shape.first_kept or shape.first_density < 1):
        return shape.first_density == 1
    order = shape.order if isinstance(shape.order, str) else shape.order[number]
    if order != "auto":
        return order == "aggregate"
    assert costs is not None
    return costs.aggregates_first(sizes)


def _further(block: BlockSizes) -> dict[str, float]:
    """What is known of a block beside its rows and edges."""
    return {name: value for name, value in block._asdict().items() if name not in _COUNTS and value is not None}


_COUNTS = ("src", "dst", "edges")
