"""The memory that a job will need, before it starts."""

from typing import Any

from penstock.train.job import Job


def memory_need(job: Job, room: dict[str, int]) -> dict[str, Any]:
    """Bytes on the device and on the host; None where nobody can say, and the job then runs alone."""
    return {"device_bytes": None, "host_bytes": None, "context_bytes": 0, "forecast": {}}
