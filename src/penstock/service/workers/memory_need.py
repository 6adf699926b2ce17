"""The memory that a job will need, before it starts."""

from typing import Any

from penstock.train.job import Job
from penstock.train.memory.forecast import MemoryForecast, forecast

_MARGIN, _MARGIN_BYTES = 0.02, 32 << 20
"""What is granted beyond the forecast: forecasts may be off by a percent, and a process holds a little more or less."""

_MOST = 1 << 62
"""Bytes: more than any machine has, and no more than the database can hold."""

_HOST_MARGIN = 0.15
"""The same for the host, whose memory is forecast less exactly: some jobs on whole graphs took 12 % more than that."""


def memory_need(job: Job, room: dict[str, int]) -> dict[str, Any]:
    """Bytes to be granted on the device, None on a processor, and on the host; and what the forecast says of them.

    `room` has the memory of the device, 0 where it is not known.
    """
    found = forecast(job, device=job.device, device_memory=room["bytes"] or None)
    on_device = found.device == "cuda"
    return {
        "device_bytes": with_margin(found.device_bytes) if on_device else None,
        "host_bytes": with_margin(found.host, _HOST_MARGIN),
        "cores": found.cores,
        "forecast": _told(found),
    }


def with_margin(bytes_needed: int, margin: float = _MARGIN) -> int:
    """The grant for a forecast."""
    return min(_MOST, int(bytes_needed * (1 + margin)) + _MARGIN_BYTES)


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
    }
