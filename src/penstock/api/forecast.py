"""`ps.memory`: what a run would take of memory."""

from typing import Any

import torch

from penstock.api.arguments import checked_model, opened_or_named
from penstock.formatting import parsed_bytes
from penstock.graph.graph import Graph
from penstock.store.device.shards import GpuGroup, shared_by_gpus
from penstock.train.job import Job, changed_job
from penstock.train.memory.forecast import MemoryForecast, fitting_forecast, forecast


def memory(
    graph: Any = None,
    model: torch.nn.Module | str | None = None,
    *,
    device_memory: int | str | None = None,
    gpus: int = 1,
    job: Job | None = None,
    **fields: Any,
) -> MemoryForecast:
    """What `train` with the same arguments would take of memory, on the device and on the host; nothing is trained.

    `device="cuda"` needs no GPU here. `device_memory` is what the GPU has, in bytes or as "24GB"; where it is not
    given, a GPU of this machine is asked, and without one everything is taken to fit. A job that is too large is
    refused, with changes that would make it fit. `gpus` is how many GPUs of a host train together: the forecast is of
    one of them.
    """
    module = checked_model(model)
    if isinstance(device_memory, str):
        device_memory = parsed_bytes(device_memory, "device_memory")
    if isinstance(model, str):
        fields["model"] = model
    opened = opened_or_named(graph, fields)
    return memory_of_job(changed_job(job, fields), opened, module, device_memory, gpus)[0]


def memory_of_job(
    job: Job,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    device_memory: int | None = None,
    gpus: int = 1,
) -> tuple[MemoryForecast, int | None]:
    """The forecast of a job for one of so many GPUs, and the memory that it was compared with, where that is known."""
    if device_memory is None and job.device != "cpu" and torch.cuda.is_available():
        device_memory = torch.cuda.mem_get_info()[1]
    with shared_by_gpus(GpuGroup(gpus) if gpus > 1 else None):
        if device_memory is None:
            return forecast(job, graph, module=module), None
        return fitting_forecast(job, graph, device_memory=device_memory, module=module), device_memory
