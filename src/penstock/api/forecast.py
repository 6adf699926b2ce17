"""`ps.memory`: what a run would take of memory."""

from typing import Any

import torch

from penstock.api.arguments import checked_model, opened_or_named
from penstock.formatting import parsed_bytes
from penstock.graph.graph import Graph
from penstock.train.job import Job, changed_job
from penstock.train.memory.forecast import MemoryForecast, fitting_forecast, forecast


def memory(
    graph: Any = None,
    model: torch.nn.Module | str | None = None,
    *,
    device_memory: int | str | None = None,
    job: Job | None = None,
    **fields: Any,
) -> MemoryForecast:
    """What `train` with the same arguments would take of memory, on the device and on the host; nothing is trained.

    `device="cuda"` needs no GPU here. `device_memory` is what the GPU has, in bytes or as "24GB"; where it is not
    given, a GPU of this machine is asked, and without one everything is taken to fit. A job that is too large is
    refused, with changes that would make it fit.
    """
    module = checked_model(model)
    if isinstance(device_memory, str):
        device_memory = parsed_bytes(device_memory, "device_memory")
    if isinstance(model, str):
        fields["model"] = model
    opened = opened_or_named(graph, fields)
    return memory_of_job(changed_job(job, fields), opened, module, device_memory)[0]


def memory_of_job(
    job: Job, graph: Graph | None = None, module: torch.nn.Module | None = None, device_memory: int | None = None
) -> tuple[MemoryForecast, int | None]:
    """The forecast of a job, and the memory of the GPU that it was compared with, where that is known."""
    if device_memory is None and job.device != "cpu" and torch.cuda.is_available():
        device_memory = torch.cuda.mem_get_info()[1]
    if device_memory is None:
        return forecast(job, graph, module=module), None
    return fitting_forecast(job, graph, device_memory=device_memory, module=module), device_memory
