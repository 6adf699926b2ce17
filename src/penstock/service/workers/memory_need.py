"""The memory that a job will need, before it starts."""

from dataclasses import replace
from typing import Any

from penstock.trace.allocations import PROCESS
from penstock.train.job import Job
from penstock.train.memory.forecast import MemoryForecast, forecast
from penstock.train.memory.process_memory import program_file_bytes

_MARGIN, _MARGIN_BYTES = 0.02, 32 << 20
"""What is granted beyond the forecast: forecasts may be off by a percent, and a process's memory varies a little."""

_MOST = 1 << 62
"""An upper bound in bytes: more than any machine has, and no more than the database can hold."""

_HOST_MARGIN = 0.4
"""The margin for host memory beyond the process itself, which is forecast less exactly: freed memory of one thread is
not reused by another, and some jobs on whole graphs took a third more than was traced.
"""


def memory_need(job: Job, room: dict[str, int], held: int) -> dict[str, Any]:
    """Bytes to be granted on the device, None on a CPU, and on the host; and the details of the forecast.

    `room` has the memory of the device, 0 where it is not known. `held` are the bytes of a process before it begins, as
    a fork of the warm program, without pages of files.
    """
    found = _without_program_files(forecast(job, device=job.device, device_memory=room["bytes"] or None), held)
    on_device = found.device == "cuda"
    # The process itself is measured, and needs no margin.
    process = found.host_categories[PROCESS]
    return {
        "device_bytes": with_margin(found.device_bytes) if on_device else None,
        "host_bytes": min(_MOST, process + with_margin(found.host - process, _HOST_MARGIN)),
        "cores": found.cores,
        "forecast": _told(found),
    }


def with_margin(bytes_needed: int, margin: float = _MARGIN) -> int:
    """The grant for a forecast."""
    return min(_MOST, int(bytes_needed * (1 + margin)) + _MARGIN_BYTES)


def _without_program_files(found: MemoryForecast, held: int) -> MemoryForecast:
    """The forecast without pages of programs and libraries: all jobs are forks of one process and share them. The
    service does not count them either when it checks a job's memory.
    """
    less = {PROCESS: max(held, found.host_categories[PROCESS] - program_file_bytes())}
    host = found.host - found.host_categories[PROCESS] + less[PROCESS]
    categories = found.categories | less if PROCESS in found.categories else found.categories
    return replace(found, host=host, host_categories=found.host_categories | less, categories=categories)


def _told(found: MemoryForecast) -> dict[str, Any]:
    return {
        "method": found.method,
        "reason": found.reason,
        "moment": found.moment,
        "seconds": found.seconds,
        "context_bytes": found.context,
        "device_allocated_bytes": found.device_allocated,
        "device_reserved_bytes": found.device_reserved,
        "host_bytes": found.host,
        "categories": found.categories,
        "throughput_share": found.share,
        "run": None if isinstance(found.run, str) else found.run.fields(),
    }
