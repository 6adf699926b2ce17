"""What would make a job fit a device that is too small for it: changed jobs, each predicted as the job itself is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.train.device_memory import UNKNOWN
from penstock.train.job import Job
from penstock.train.memory.forecast import MemoryForecast, forecast

_HALVINGS, _WHOLE_HALVINGS = 5, 3
"""How often a batch is halved at most, and the whole graph's training vertices: smaller ones are another job."""


@dataclass(frozen=True)
class Remedy:
    """A change of a job that makes it fit."""

    change: str
    """In words: `batch_size to 256`."""
    fields: dict[str, Any]
    device_bytes: int


class TooLargeError(PenstockError):
    """A job that does not fit its device; `remedies` are those that the sentence names."""

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
    """The forecast of a job for a GPU of so many bytes; one that is too large is refused with what would fit."""
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
    """The sentence for a job that does not fit: what it needs, what there is, and which changes make it fit."""
    whole = forecast(job, graph, device="cuda", device_memory=UNKNOWN, module=module)
    usable = int(job.device_share * device_memory)
    fitting = list(_tried(job, graph, device_memory, module))
    needs = f"The job needs {_gb(whole.device_bytes)} of the device, and {_gb(usable)} of its memory may be used"
    if not fitting:
        tried = "bins nor kept rows on the host" if job.sampler == "whole" else "pinned features nor smaller batches"
        mend = f"neither {tried} nor bfloat16 make it fit; lower hidden or layers"
        return TooLargeError(f"{needs}: {mend}.", [])
    named = ", or ".join(f"{each.change} ({_gb(each.device_bytes)})" for each in fitting)
    return TooLargeError(f"{needs}: set {named}.", fitting)


def _fits(found: MemoryForecast, job: Job, device_memory: int) -> bool:
    """Whether a job's share of what the CUDA context leaves holds what torch reserves."""
    return found.device_reserved <= job.device_share * (device_memory - found.context)


def _tried(job: Job, graph: Graph | None, device_memory: int, module: torch.nn.Module | None) -> Iterator[Remedy]:
    """Changes that really fit, each by its own prediction; of one field's values the first."""
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
    """Fields that take less memory with another value, in the order in which they cost least."""
    if job.sampler == "whole":
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
    if job.sampler != "whole":
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
