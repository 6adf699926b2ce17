"""Ages that neither a jumping clock nor a restart of the service changes.

`time.monotonic` counts from the system's start, for all processes alike, so a moment that one service has written down
can be compared by the next, as long as the system was not started again in between.
"""

import time
from functools import cache
from pathlib import Path


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
