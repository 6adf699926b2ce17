"""The memory and the seconds of a job, predicted before it runs; shown as JSON or text."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from penstock.cost.model import BlockSizes, CostModel, StepShape, machine_model, step_seconds
from penstock.errors import PenstockError
from penstock.graph.folder import Graph
from penstock.nn.layer_table import LAYERS
from penstock.nn.order import is_sparse
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution.choice import Device
from penstock.plan.execution.first_layer import rows_gathered
from penstock.sampling.sampler_table import SAMPLERS
from penstock.store.device.shards import current_gpu_group
from penstock.trace.allocations import CATEGORIES, CONTEXT
from penstock.train.batch_source import layers_of
from penstock.train.finalists import PredictedSteps
from penstock.train.job import Job
from penstock.train.job_batches import kind_of_batches, unknown_of, widths_of
from penstock.train.memory.device_forecast import DeviceForecast, forecast_device
from penstock.train.memory.host_forecast import HostForecast, counted_session, forecast_host
from penstock.train.memory.remedies import fits, refusal
from penstock.train.session import Session
from penstock.train.trace.fake_session import input_density
from penstock.train.whole.execution import levels_of, reach_of
from penstock.train.whole.memory import bin_sizes

APART_S = 2.0
"""Seconds of a run beside its steps and validations: start, preparation, writing."""
_FORWARD = 1 / 3
"""The part of a step that its forward pass takes: the backward pass computes two products for each of its."""


@dataclass(frozen=True)
class RunSeconds:
    """Predicted seconds of a run on a machine that does nothing else; all epochs are counted, also where a run may stop
    early.
    """

    steps: int
    step_s: float
    validations: int
    """Exact inferences: those after epochs, and the one of the test set."""
    validation_s: float
    apart_s: float = APART_S

    @property
    def total(self) -> float:
        """Seconds from the start of the run to its end."""
        return self.apart_s + self.steps * self.step_s + self.validations * self.validation_s

    def fields(self) -> dict[str, float]:
        """The parts and their sum, for JSON."""
        return {**vars(self), "total_s": self.total}


def predict_run(session: Session, device: Device) -> RunSeconds | str:
    """The seconds of a session's run on this machine, by what was measured of its operators, or else of the machine
    that comes with Penstock; or why they are not predicted. `session` has its parts on the host; nothing is computed.
    """
    job, model = session.job, machine_model()
    schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed)
    reasons = unknown_of(session, drawn=SAMPLERS[job.sampler].makes_batches)
    if device == "cuda" and not model.knows("optimiser", "cuda"):
        reasons.append("the operators of a GPU were not measured (`penstock profile --operators`)")
    if reasons:
        return ", ".join(reasons)
    try:
        step_s = (
            _drawn_s(session, model, device)
            if SAMPLERS[job.sampler].makes_batches
            else _whole_s(session, model, device)
        )
        everywhere = [BlockSizes(session.graph.num_nodes, session.graph.num_nodes, session.graph.num_edges)]
        validation_s = _FORWARD * step_seconds(model, _shape(session, everywhere * layers_of(job)), device)
    except PenstockError as error:
        if error.code != "missing-data":
            raise
        return str(error)
    every = job.evaluate_every
    # At the end the test set is judged, and what is best so far where no epoch was.
    validations = 0 if every < 0 else 1 + (-(-job.epochs // every) if every else 0)
    return RunSeconds(job.epochs * schedule.batches, step_s, validations, validation_s)


def _drawn_s(session: Session, model: CostModel, device: Device) -> float:
    """Seconds of a step on a sampled batch. Steps of a GPU are taken to be recorded, so that it does not wait for the
    host.
    """
    if device == "cpu":
        found = PredictedSteps(session, model).seconds(rows_gathered, "gather", in_run=True)
        if found is not None:
            return found
    return step_seconds(model, _shape(session, kind_of_batches(session).blocks), device)


def _whole_s(session: Session, model: CostModel, device: Device) -> float:
    """Seconds of a step on the whole graph, each layer computed at once."""
    reach, layers = reach_of(session), layers_of(session.job)
    planned = next(Schedule(session.task.items, session.task.batch_size, session.job.draw_seed).from_position())
    order, counts = levels_of(session, reach, planned)
    blocks = []
    for (size, *_), level in zip(bin_sizes(reach, layers, order, counts, 1), counts[1:], strict=True):
        blocks.append(BlockSizes(sum(size.inputs.values()), sum(level.values()), sum(size.edges.values())))
    job = session.job
    kept = LAYERS[job.model].aggregates(job) is not None and not job.input_dropout and not session.inputs.tables
    density = input_density(session) if kept else 1.0
    shape = replace(_shape(session, blocks), first_kept=kept, first_density=density if is_sparse(density) else 1.0)
    return step_seconds(model, shape, device)


def _shape(session: Session, blocks: Sequence[BlockSizes]) -> StepShape:
    return StepShape(session.job.model, blocks, widths_of(session), session.job.heads, session.job.order)


# The memory of a job, predicted before it runs and without touching a device.


@dataclass(frozen=True)
class MemoryForecast:
    """The predicted peak memory of a job. All sizes are bytes."""

    device: str
    """`cuda` or `cpu`: where the model is computed."""
    device_allocated: int
    """Device memory of tensors, as `torch.cuda.max_memory_allocated` will report it. 0 on a CPU."""
    device_reserved: int
    """Device memory of torch's allocator, as `torch.cuda.max_memory_reserved` will report it. 0 on a CPU."""
    context: int
    """Device memory of CUDA and its kernels, outside torch's allocator."""
    host: int
    """The peak resident memory of the process on the host, mapped files included."""
    categories: dict[str, int]
    """The memory allocated at the device's peak (on a CPU, at the host's), by purpose."""
    host_categories: dict[str, int]
    moment: str
    """When the peak is reached."""
    method: str
    """How it was predicted: `traced`; `trial` or `rule` where tracing is not possible."""
    reason: str
    """Why it was not traced; if it was, how the largest batch was found."""
    seconds: float = 0.0
    """Seconds that the prediction took."""
    why: list[str] = field(default_factory=list)
    """Where things are placed on the device, and how steps are done, as sentences."""
    share: float | None = None
    """The share of a GPU's throughput, 0 to 1, that the run uses when it runs alone; None where unknown."""
    run: RunSeconds | str = ""
    """The predicted seconds of the job's run, or why they are not predicted."""
    cores: int | None = None
    """Busy cores of the host while the job trains, if fewer than its threads; None: one for each thread."""

    @property
    def on_gpu(self) -> bool:
        """Whether the job computes on a GPU."""
        return self.device == "cuda"

    @property
    def device_bytes(self) -> int:
        """All device memory of the job: torch's segments and the CUDA context."""
        return self.device_reserved + self.context if self.on_gpu else 0


def forecast(
    job: Job,
    graph: Graph | None = None,
    *,
    device: str | None = None,
    device_memory: int | None = None,
    module: torch.nn.Module | None = None,
) -> MemoryForecast:
    """Predict the memory of a job. `graph` and `module` stand for the job's own where given.

    `device` is `cuda` or `cpu`; the job's if not given. No GPU is needed: `device_memory` is its size in bytes; if not
    given, everything is taken to fit.
    """
    began = time.perf_counter()
    kind = _kind(job.device if device is None else device)
    with counted_session(job, graph, device_memory, module) as session:
        of_device: DeviceForecast | None = forecast_device(session) if kind == "cuda" else None
        of_host: HostForecast = forecast_host(session, of_device)
        several = of_device is not None and current_gpu_group() is not None
        run = _OF_SEVERAL if several else predict_run(session, kind)
    found = _joined(kind, of_device, of_host)
    return replace(found, run=run, seconds=round(time.perf_counter() - began, 3))


def fitting_forecast(
    job: Job,
    graph: Graph | None,
    *,
    device: str | None = None,
    device_memory: int,
    module: torch.nn.Module | None = None,
) -> MemoryForecast:
    """The forecast of a job for a GPU of so many bytes; raises `TooLargeError`, with remedies,
    where it does not fit.
    """
    try:
        found = forecast(job, graph, device=device, device_memory=device_memory, module=module)
    except PenstockError as error:
        if error.code != "out-of-memory":
            raise
        raise refusal(job, graph, device_memory, module) from error
    if found.on_gpu and not fits(found.device_reserved, found.context, job, device_memory):
        raise refusal(job, graph, device_memory, module)
    return found


_OF_SEVERAL = "several GPUs share its batches"


def _joined(kind: str, of_device: DeviceForecast | None, of_host: HostForecast) -> MemoryForecast:
    if of_device is None:
        return MemoryForecast(
            kind, 0, 0, 0, of_host.bytes, of_host.categories, of_host.categories, of_host.moment, of_host.method,
            of_host.reason,
        )  # fmt: skip
    peak = of_device.peak
    return MemoryForecast(
        kind, peak.allocated, peak.reserved, of_device.context, of_host.bytes, peak.categories, of_host.categories,
        peak.moment, of_device.method, of_device.reason, why=of_device.why, share=peak.share,
        cores=1 if of_device.recorded else None,
    )  # fmt: skip


def _kind(device: str) -> Device:
    """`auto` is a GPU where there is one, as in training."""
    has_gpu = device == "auto" and torch.cuda.is_available()
    kinds: dict[str, Device] = {"cuda": "cuda", "cpu": "cpu", "auto": "cuda" if has_gpu else "cpu"}
    if (kind := device.partition(":")[0]) not in kinds:
        raise PenstockError(
            f"Memory is predicted for cuda or cpu, not for {device!r}: use one of them.", code="unknown-name"
        )
    return kinds[kind]


# A forecast as one JSON object and as lines of text.

_BAR = 40
"""The width of a bar in characters."""


def forecast_fields(found: MemoryForecast, device_memory: int | None = None) -> dict[str, Any]:
    """What `penstock memory --json` prints; sizes are bytes."""
    device = None
    if found.on_gpu:
        parts = listed(found.categories) | {CONTEXT: found.context}
        device = {
            "allocated": found.device_allocated,
            "reserved": found.device_reserved,
            "context": found.context,
            "total": found.device_bytes,
            "memory": device_memory,
            "categories": parts,
            "throughput_share": found.share,
        }
    return {
        "device": found.device,
        "device_memory": device,
        "host_memory": {"resident": found.host, "categories": listed(found.host_categories)},
        "moment": found.moment,
        "method": found.method,
        "reason": found.reason,
        "seconds": found.seconds,
        "run": found.run.fields() if isinstance(found.run, RunSeconds) else None,
        "run_unknown": found.run if isinstance(found.run, str) else None,
        "why": found.why,
    }


def listed(categories: dict[str, int]) -> dict[str, int]:
    """Categories in the order in which they are listed; those that take nothing are left out."""
    known = [name for name in CATEGORIES if categories.get(name)]
    return {name: categories[name] for name in [*known, *(each for each in categories if each not in CATEGORIES)]}


def bar_of(size: int, largest: int) -> str:
    """A bar whose length shows a size; the largest one's is full."""
    full, rest = divmod(8 * _BAR * size // max(1, largest), 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest].strip() if rest else "")


def size_text(size: int) -> str:
    """A size with about three digits: `1.23 GB`."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size} bytes"
