"""What is known of a queued job, and the states that it goes through."""

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
"""A job in one of these starts when there is room: from its beginning, or from its newest checkpoint."""
STARTED = ("starting", "running")
"""A job in one of these has a process that trains."""
FINAL = ("ended", "failed", "cancelled")
"""A job in one of these stays in it, unless it is tried again."""
RETRIED = ("failed", "cancelled")
"""A job in one of these can be tried again."""


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
    """Why it is in its state, where that needs saying; a sentence."""
    code: str | None
    """The kind of the error that ended it (docs/errors.md)."""
    kind: str
    """What computes it: cpu or cuda."""
    cores: int
    device_bytes: int | None
    """Forecast of its peak on the device, as reserved."""
    host_bytes: int | None
    """Forecast of its peak on the host."""
    forecast: dict[str, Any]
    """What else the forecast says."""
    granted_device_bytes: int | None
    granted_host_bytes: int | None
    peak_device_bytes: int | None
    """The most that it has reserved so far."""
    peak_host_bytes: int | None
    device: str | None
    """The device that it runs or ran on."""
    alone: bool
    """Whether nothing may run beside it: its forecast was too low once."""
    cancelling: bool
    """Whether it is to be cancelled as soon as its process has ended."""
    tries: int
    """How often it was started."""
    lost: int
    """How often in a row its process was killed by others without having written a new checkpoint."""
    step: int
    """The step of its newest checkpoint when it was last looked at."""
    submitted: float
    started: float | None
    ended: float | None
    seconds: float
    """How long its processes have run, all tries together."""
    pid: int | None
    process_started: str | None
    """When its process started, as the system says it: with `pid` it names one process for good."""
    run: str
    """The run folder that it writes."""
    sweep: int | None = None
    """The number of the first job of its sweep; None where it was queued alone."""
    metric: dict[str, Any] = field(default_factory=dict)
    """`name`, `better` (higher or lower) and the best `val` so far with its `epoch`; `test` where it has ended. Empty
    before the first validation."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL

    def shown(self) -> dict[str, Any]:
        """The record as the HTTP interface and `--json` give it, without its document."""
        hidden = ("document", "pid", "process_started", "lost", "cancelling")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in hidden}


def best_of(metrics: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The number of the job with the best validation so far, of jobs by number with their `metric`.

    None where fewer than two have one, or where they were judged by different metrics. Of equals it is the first.
    """
    known = {number: metric for number, metric in sorted(metrics.items()) if metric.get("val") is not None}
    if len(known) < 2 or len({(metric["name"], metric["better"]) for metric in known.values()}) > 1:
        return None
    sign = 1 if next(iter(known.values()))["better"] == "higher" else -1
    return max(known, key=lambda number: sign * known[number]["val"])


# Ages that neither a jumping clock nor a restart of the service changes.
#
# `time.monotonic` counts from the system's start, for all processes alike, so a moment that one service has written
# down can be compared by the next, as long as the system was not started again in between.


def moment() -> str:
    """Now, as it can be kept on disk."""
    return f"{boot()} {time.monotonic():.3f}"


def age_of(kept: str | None) -> float:
    """Seconds since a kept moment; 0 where the system has been started since then, as nobody can tell."""
    start, _, seconds = (kept or "").partition(" ")
    try:
        return max(0.0, time.monotonic() - float(seconds)) if start == boot() else 0.0
    except ValueError:
        return 0.0


@cache
def boot() -> str:
    """Which start of the system this is: what is counted from it means nothing in another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without /proc ages begin anew with each service.
        return f"process-{time.time_ns()}"
