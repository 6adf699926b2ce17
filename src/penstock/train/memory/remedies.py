"""Whether a job fits a device, and what would make it fit one that is too small: changed jobs, each predicted as the
job itself is."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.sampling.sampler_table import SAMPLERS
from penstock.trace.libraries import library_memory
from penstock.traced import weights_only_counted
from penstock.train.assembly import session_of
from penstock.train.auto_values import decide_gather_threads, with_order_costs
from penstock.train.job import Job
from penstock.train.memory.device_forecast import DeviceForecast, forecast_device
from penstock.train.run_context import UNKNOWN, assumed_memory, is_host_full, run_context
from penstock.train.session import Session

_UNCOUNTABLE = ("verflow", "too large", "invalid shape", "invalid for input of size")
"""Parts of torch's and NumPy's messages about sizes that exceed 64 bits."""
_HALVINGS, _WHOLE_HALVINGS = 5, 3
"""How often a batch, or the whole graph's training vertices, are halved at most: smaller ones would be another job."""


@contextmanager
def counted_session(
    job: Job, graph: Graph | None, device_memory: int | None, module: torch.nn.Module | None
) -> Iterator[Session]:
    """A job's session on the host, whose weights are only counted; the device is taken to have `device_memory` bytes,
    or room for everything where that is None."""
    on_host = with_order_costs(job.model_copy(update={"device": "cpu"}), built=module is not None)
    room = UNKNOWN if device_memory is None else max(0, device_memory - library_memory().context)
    with _countable(), run_context(on_host), assumed_memory(room), weights_only_counted():
        session = session_of(on_host, torch.device("cpu"), graph, module)
        decide_gather_threads(session)
        yield session


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


def refusal(job: Job, graph: Graph | None, device_memory: int, module: torch.nn.Module | None = None) -> TooLargeError:
    """The error for a job that does not fit: what it needs, what there is, and which changes make it fit."""
    whole = _device_part(job, graph, UNKNOWN, module)
    usable = int(job.device_share * device_memory)
    fitting = list(_tried(job, graph, device_memory, module))
    needs = f"The job needs {_gb(whole.bytes)} of the device, and {_gb(usable)} of its memory may be used"
    if not fitting:
        drawn = SAMPLERS[job.sampler].makes_batches
        tried = "pinned features nor smaller batches" if drawn else "bins nor kept rows on the host"
        mend = f"neither {tried} nor bfloat16 make it fit; lower hidden or layers"
        return TooLargeError(f"{needs}: {mend}.", [])
    named = ", or ".join(f"{each.change} ({_gb(each.device_bytes)})" for each in fitting)
    return TooLargeError(f"{needs}: set {named}.", fitting)


def fits(reserved: int, context: int, job: Job, device_memory: int) -> bool:
    """Whether torch's reserved memory fits the job's share of what the CUDA context leaves."""
    return reserved <= job.device_share * (device_memory - context)


def _device_part(job: Job, graph: Graph | None, device_memory: int, module: torch.nn.Module | None) -> DeviceForecast:
    with counted_session(job, graph, device_memory, module) as session:
        return forecast_device(session)


def _tried(job: Job, graph: Graph | None, device_memory: int, module: torch.nn.Module | None) -> Iterator[Remedy]:
    """Changes that make the job fit by its own prediction; of one field's values only the first."""
    done: set[str] = set()
    for name, change, fields in _changes(job):
        if name in done:
            continue
        try:
            changed = job.model_copy(update=fields)
            found = _device_part(changed, graph, device_memory, module)
        except PenstockError:
            continue
        if fits(found.peak.reserved, found.context, job, device_memory):
            done.add(name)
            yield Remedy(change, fields, found.bytes)


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
