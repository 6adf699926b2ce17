"""How much memory this process has, as the system counts it."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

_MB = 1 << 20


def resident_mb() -> float:
    """Resident megabytes now; the peak where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / _MB
    return peak_mb()


def peak_mb() -> float:
    """The largest resident size so far, in megabytes. Linux's own count: rusage inherits that of the parent."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return rusage_mb(resource.RUSAGE_SELF)


def forget_peak() -> None:
    """Let the peak start again from now; where that is not possible, it stays the process's."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def rusage_mb(who: int) -> float:
    """The peak of this process or of its finished children, as rusage tells it."""
    unit = _MB if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(who).ru_maxrss / unit
