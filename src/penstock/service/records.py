"""The record of a queued job, and the states that it goes through."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

State = Literal[
    "submitted", "forecasting", "waiting", "starting", "running", "interrupted", "ended", "failed", "cancelled"
]
STATES: tuple[str, ...] = get_args(State)
STARTABLE = ("waiting", "interrupted")
"""States from which a job starts when there is room: from its beginning, or from its newest checkpoint."""
STARTED = ("starting", "running")
"""States in which a job has a process that trains."""
FINAL = ("ended", "failed", "cancelled")
"""States that a job keeps, unless it is retried."""
RETRIED = ("failed", "cancelled")
"""States in which a job can be retried."""


@dataclass(frozen=True)
class JobRecord:
    """A job of the queue. Bytes are None until they are known; times are wall-clock seconds and only displayed."""

    id: int
    name: str
    document: dict[str, Any]
    """The fields of the job (docs/job.md)."""
    priority: int
    state: State
    reason: str
    """Why it is in its state, as a sentence, where that needs explaining."""
    code: str | None
    """The kind of the error that ended it (docs/errors.md)."""
    kind: str
    """The kind of device: cpu or cuda."""
    cores: int
    device_bytes: int | None
    """The forecast of its peak of reserved device memory."""
    host_bytes: int | None
    """The forecast of its peak host memory."""
    forecast: dict[str, Any]
    """Further values of the forecast."""
    granted_device_bytes: int | None
    granted_host_bytes: int | None
    peak_device_bytes: int | None
    """The peak of its reserved device memory so far."""
    peak_host_bytes: int | None
    device: str | None
    """The device that it runs or ran on."""
    alone: bool
    """Whether nothing may run beside it: its forecast was too low once."""
    cancelling: bool
    """Whether it will be cancelled as soon as its process has ended."""
    tries: int
    """How often it was started."""
    lost: int
    """How often in a row its process was killed from outside without having written a new checkpoint."""
    step: int
    """The step of its newest checkpoint when it was last checked."""
    submitted: float
    started: float | None
    ended: float | None
    seconds: float
    """Seconds that its processes have run, all tries together."""
    pid: int | None
    process_started: str | None
    """When its process started, as the system reports it: with `pid` it identifies one process uniquely."""
    run: str
    """The run folder that it writes."""
    sweep: int | None = None
    """The number of the first job of its sweep; None where it was queued alone."""
    metric: dict[str, Any] = field(default_factory=dict)
    """`name`, `better` (higher or lower) and the best `val` so far with its `epoch`; `test` once it has ended. Empty
    before the first validation.
    """

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL

    def shown(self) -> dict[str, Any]:
        """The record as the HTTP interface and `--json` show it, without its document."""
        hidden = ("document", "pid", "process_started", "lost", "cancelling")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in hidden}


def best_of(metrics: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The number of the job with the best validation so far, of jobs by number with their `metric`.

    None where fewer than two have one, or their metrics differ. Ties go to the first.
    """
    known = {number: metric for number, metric in sorted(metrics.items()) if metric.get("val") is not None}
    if len(known) < 2 or len({(metric["name"], metric["better"]) for metric in known.values()}) > 1:
        return None
    sign = 1 if next(iter(known.values()))["better"] == "higher" else -1
    return max(known, key=lambda number: sign * known[number]["val"])


# Ages that neither a clock change nor a restart of the service affects. `time.monotonic` counts from the system's
# start, for all processes alike, so a time that one service has stored can be compared by the next, as long as the
# system was not rebooted in between.


def moment() -> str:
    """The current time, in a form to be stored."""
    return f"{boot()} {time.monotonic():.3f}"


def age_of(kept: str | None) -> float:
    """Seconds since a stored time; 0 if the system was rebooted since then, as the age is unknown."""
    start, _, seconds = (kept or "").partition(" ")
    try:
        return max(0.0, time.monotonic() - float(seconds)) if start == boot() else 0.0
    except ValueError:
        return 0.0


@cache
def boot() -> str:
    """An identifier of the current boot of the system."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without /proc ages begin anew with each service.
        return f"process-{time.time_ns()}"
