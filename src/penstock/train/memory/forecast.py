"""The memory of a job, predicted before it runs; shown as JSON or text, with changes that make the job fit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.sampling.sampler_table import SAMPLERS
from penstock.traced import weights_only_counted
from penstock.train.assembly import session_of
from penstock.train.auto_values import with_order_costs
from penstock.train.compute_device import UNKNOWN, assumed_memory, is_host_full
from penstock.train.job import Job
from penstock.train.memory.device_forecast import DeviceForecast, forecast_device
from penstock.train.memory.host_forecast import HostForecast, forecast_host
from penstock.train.run_context import run_context
from penstock.train.trace.allocations import CATEGORIES, CONTEXT
from penstock.train.trace.libraries import library_memory

# The memory of a job, predicted before it runs and without touching a device.

_UNCOUNTABLE = ("verflow", "too large", "invalid shape", "invalid for input of size")
"""Parts of torch's and NumPy's messages about sizes that exceed 64 bits."""


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
    cores: int | None = None
    """Busy cores of the host while the job trains, if fewer than its threads; None: one for each thread."""

    @property
    def device_bytes(self) -> int:
        """All device memory of the job: torch's segments and the CUDA context."""
        return self.device_reserved + self.context if self.device == "cuda" else 0


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
    on_host = with_order_costs(job.model_copy(update={"device": "cpu"}), built=module is not None)
    room = UNKNOWN if device_memory is None else max(0, device_memory - library_memory().context)
    with _countable(), run_context(on_host), assumed_memory(room), weights_only_counted():
        session = session_of(on_host, torch.device("cpu"), graph, module)
        of_device: DeviceForecast | None = forecast_device(session) if kind == "cuda" else None
        of_host: HostForecast = forecast_host(session, of_device)
    found = _joined(kind, of_device, of_host)
    return replace(found, seconds=round(time.perf_counter() - began, 3))


@contextmanager
def _countable() -> Iterator[None]:
    """Turn errors about sizes beyond 64 bits, or beyond this machine's memory, into one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError, OverflowError, TypeError, ValueError) as error:
        if is_host_full(error):
            raise PenstockError(
                "The memory of the job cannot be forecast: batches of it do not fit into this machine's memory. Lower"
                " batch_size, fanouts or embedding.",
                code="out-of-memory",
            ) from error
        if not any(word in str(error) for word in _UNCOUNTABLE):
            raise
        raise PenstockError(
            "The job would need arrays of more than 2^63 bytes, which no machine has: lower hidden, layers or"
            " batch_size.",
            code="out-of-memory",
        ) from error


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


def _kind(device: str) -> str:
    """`auto` is a GPU where there is one, as in training."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] not in ("cuda", "cpu"):
        raise PenstockError(
            f"Memory is predicted for cuda or cpu, not for {device!r}: use one of them.", code="unknown-name"
        )
    return device.partition(":")[0]


# A forecast as one JSON object and as lines of text.

_BAR = 40
"""The width of a bar in characters."""


def forecast_fields(found: MemoryForecast, device_memory: int | None = None) -> dict[str, Any]:
    """What `penstock memory --json` prints; sizes are bytes."""
    device = None
    if found.device == "cuda":
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


# Changes that make a job fit a device that is too small for it, each predicted as the job itself is.

_HALVINGS, _WHOLE_HALVINGS = 5, 3
"""How often a batch, or the whole graph's training vertices, are halved at most: smaller ones would be another job."""


@dataclass(frozen=True)
class Remedy:
    """A change of a job that makes it fit."""

    change: str
    """The change in words: `batch_size to 256`."""
    fields: dict[str, Any]
    device_bytes: int


class TooLargeError(PenstockError):
    """A job that does not fit its device; `remedies` are the changes that the message names."""

    def __init__(self, sentence: str, remedies: list[Remedy]) -> None:
        super().__init__(sentence, code="out-of-memory")
        self.remedies = remedies


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
    if found.device == "cuda" and not _fits(found, job, device_memory):
        raise refusal(job, graph, device_memory, module)
    return found


def refusal(job: Job, graph: Graph | None, device_memory: int, module: torch.nn.Module | None = None) -> TooLargeError:
    """The error for a job that does not fit: what it needs, what there is, and which changes make it fit."""
    whole = forecast(job, graph, device="cuda", device_memory=UNKNOWN, module=module)
    usable = int(job.device_share * device_memory)
    fitting = list(_tried(job, graph, device_memory, module))
    needs = f"The job needs {_gb(whole.device_bytes)} of the device, and {_gb(usable)} of its memory may be used"
    if not fitting:
        drawn = SAMPLERS[job.sampler].makes_batches
        tried = "pinned features nor smaller batches" if drawn else "bins nor kept rows on the host"
        mend = f"neither {tried} nor bfloat16 make it fit; lower hidden or layers"
        return TooLargeError(f"{needs}: {mend}.", [])
    named = ", or ".join(f"{each.change} ({_gb(each.device_bytes)})" for each in fitting)
    return TooLargeError(f"{needs}: set {named}.", fitting)


def _fits(found: MemoryForecast, job: Job, device_memory: int) -> bool:
    """Whether torch's reserved memory fits the job's share of what the CUDA context leaves."""
    return found.device_reserved <= job.device_share * (device_memory - found.context)


def _tried(job: Job, graph: Graph | None, device_memory: int, module: torch.nn.Module | None) -> Iterator[Remedy]:
    """Changes that make the job fit by its own prediction; of one field's values only the first."""
    done: set[str] = set()
    for name, change, fields in _changes(job):
        if name in done:
            continue
        try:
            changed = job.model_copy(update=fields)
            found = forecast(changed, graph, device="cuda", device_memory=device_memory, module=module)
        except PenstockError:
            continue
        if _fits(found, job, device_memory):
            done.add(name)
            yield Remedy(change, fields, found.device_bytes)


def _changes(job: Job) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Changes of fields that save memory, the one with the least cost first."""
    drawn = SAMPLERS[job.sampler].makes_batches
    if not drawn:
        if job.bins:
            yield "bins", "bins to 0 (as many as fit)", {"bins": 0}
        if job.keep_type != "bfloat16":
            yield "keep_type", "keep_type to bfloat16", {"keep_type": "bfloat16"}
        if job.keep not in ("auto", "host"):
            yield "keep", "keep to host", {"keep": "host"}
    elif job.placed.features != "pinned":
        placement = job.placed.model_dump(exclude_defaults=True) | {"features": "pinned"}
        yield "placement", "placement to {features: pinned}", {"placement": placement}
    if job.compute_type in ("float32", "tf32"):
        yield "compute_type", "compute_type to bfloat16", {"compute_type": "bfloat16"}
    if drawn:
        for power in range(1, _HALVINGS + 1):
            size = job.batch_size >> power
            if size:
                yield "batch_size", f"batch_size to {size:,}", {"batch_size": size}
    else:
        for power in range(1, _WHOLE_HALVINGS + 1):
            steps = job.steps_per_epoch << power
            yield "steps_per_epoch", f"steps_per_epoch to {steps:,}", {"steps_per_epoch": steps}


def _gb(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
