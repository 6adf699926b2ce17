"""How much memory this process has, as the system counts it; and freed memory kept for the next step."""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MB = 1 << 20
# glibc's names in malloc.h, and its defaults.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_TRIM_DEFAULT, _MMAP_MAX_DEFAULT = 128 << 10, 65536


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


def available_mb() -> int:
    """What the system could still give without swapping."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) >> 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def forget_peak() -> None:
    """Let the peak start again from now; where that is not possible, it stays the process's."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, memory that is freed stays with the process; at the end it goes back to the system.

    A training step frees hundreds of megabytes and the next one asks for as much again. By default glibc returns them
    and the kernel clears them page by page, which took a third of a step's time. Other C libraries are left alone.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:
        libc.mallopt(_M_MMAP_MAX, _MMAP_MAX_DEFAULT)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_DEFAULT)
        libc.malloc_trim(0)


def rusage_mb(who: int) -> float:
    """The peak of this process or of its finished children, as rusage tells it."""
    unit = _MB if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(who).ru_maxrss / unit
