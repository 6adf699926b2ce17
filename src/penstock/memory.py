"""How much memory this process uses and how much is available, as the system counts it; and freed memory that is kept.

All of it concerns the whole process. Measurements of a peak that overlap share its counter (`PeakCounter`), and freed
memory is kept until the last user of `freed_memory_kept` has ended.
"""

import ctypes
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from penstock.errors import PenstockError
from penstock.registry import make_callable

_MB = 1 << 20
# glibc's names in malloc.h, and its defaults.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_TRIM_DEFAULT, _MMAP_MAX_DEFAULT = 128 << 10, 65536


def resident_mb() -> float:
    """Resident megabytes now; the peak where the system does not report the current size."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / _MB
    return peak_mb()


def peak_mb() -> float:
    """The largest resident size so far, in megabytes, by Linux's own count: that of rusage includes the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return rusage_mb(resource.RUSAGE_SELF)


def file_mb() -> float:
    """Resident megabytes of file pages, which processes share and the system reclaims when it needs them; 0 where the
    system does not report them.
    """
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssFile:"):
                return int(line.split()[1]) / 1024
    return 0.0


def anonymous_mb() -> float:
    """Resident megabytes that are no file's pages; all of them where the system does not tell them apart."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    return resident_mb()


def available_mb() -> int:
    """Megabytes that the system can still give without swapping, within the limits of this process's control groups."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found = int(line.split()[1]) >> 10
    return min([found, *(_left_in_group(*each) >> 20 for each in control_groups())])


def control_groups(root: Path = Path("/")) -> list[tuple[Path, str, str]]:
    """The control groups that may limit this process's memory: each one's folder, and its files of limit and usage."""
    found: list[tuple[Path, str, str]] = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds == "":
                base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
            elif "memory" in kinds.split(","):
                base, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            folder = base / path.lstrip("/")
            # A group is also limited by the groups that contain it. In a container the path may be relative to another
            # root.
            found += [(each, *names) for each in (folder, *folder.parents) if each.is_relative_to(base)]
    return found


def _left_in_group(folder: Path, limit: str, used: str) -> int:
    """Bytes that a control group may still allocate; its file pages count as free, since they can be reclaimed."""
    try:
        most, now = int((folder / limit).read_text()), int((folder / used).read_text())
        cached = 0
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, size = line.partition(" ")
            cached += int(size) if name in ("inactive_file", "active_file") else 0
    except (OSError, ValueError):
        return 1 << 62
    return max(0, most - now + cached)


class Peak:
    """The largest value since it was made."""

    def __init__(self, counter: "PeakCounter") -> None:
        self._counter, self._before = counter, 0.0

    def read(self) -> float:
        """The largest value so far."""
        with self._counter.lock:
            return self.note()

    def note(self) -> float:
        """The largest value so far, kept when the counter is reset."""
        self._before = max(self._before, self._counter.count())
        return self._before


class PeakCounter:
    """A counter of a peak that the system can only reset for the whole process; measurements may overlap."""

    def __init__(self, count: Callable[[], float], start_again: Callable[[], None]) -> None:
        self.count, self._start_again, self.lock = count, start_again, threading.Lock()
        self._measured: WeakSet[Peak] = WeakSet()

    def measure(self) -> Peak:
        """Start to measure a peak from now on; measurements under way keep the value that they had."""
        with self.lock:
            for other in self._measured:
                other.note()
            self._start_again()
            peak = Peak(self)
            self._measured.add(peak)
            return peak


def _forget_peak() -> None:
    """Reset the system's peak to the current size; where that is not possible, it stays the process's peak."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


HOST_PEAK = PeakCounter(peak_mb, _forget_peak)
"""The peak of this process's resident memory, in megabytes."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Within it, freed memory stays with the process; at the end it is returned to the system.

    A training step frees hundreds of megabytes and the next one allocates as much again. By default glibc returns them
    and the kernel clears them page by page, which took a third of a step's time. Other C libraries are left alone.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    with _keeping.lock:
        _keeping.users += 1
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:
        with _keeping.lock:
            _keeping.users -= 1
            if not _keeping.users:
                libc.mallopt(_M_MMAP_MAX, _MMAP_MAX_DEFAULT)
                libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_DEFAULT)
                libc.malloc_trim(0)


class _Keeping:
    lock, users = threading.Lock(), 0


_keeping = _Keeping()


def rusage_mb(who: int) -> float:
    """The peak of this process or of its finished children in megabytes, by rusage."""
    unit = _MB if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(who).ru_maxrss / unit


def require_memory(size: int, what: str, mend: str) -> None:
    """Raise an error where less memory is available than `size` bytes: the system might kill the process otherwise.

    `what` names what needs the memory; `mend` says what to do about it.
    """
    free = available_mb() << 20
    if size > free:
        raise PenstockError(
            f"{what} need {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free: {mend}.", code="out-of-memory"
        )


_KEPT_BYTES, _MAPPED_BYTES = 64 << 20, 8 << 20


def keep_freed_memory() -> bool:
    """Make this process keep up to 64 MiB of freed memory, instead of returning it to the system at once.

    Every large message is received into new memory. With glibc's own settings a message of 1 MiB needs new pages each
    time, and making those takes longer than receiving it: a third of the throughput without encryption. For processes
    that are tasks of a run; it changes the allocator of the whole process, so an endpoint does not do it by itself.
    Returns whether it could be done: only glibc has these settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))


make_callable(__name__)
