"""Whether a job fits a device, and what would make it fit one that is too small: changed jobs, each predicted as the
job itself is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.graph.folder import Graph
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.job import Job
from penstock.train.memory.device_forecast import DeviceForecast, forecast_device
from penstock.train.memory.host_forecast import counted_session
from penstock.train.run_context import UNKNOWN

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
