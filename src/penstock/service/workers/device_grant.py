"""The part of a GPU that a job was granted: of a process of its own, or of one that it shares with other jobs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from penstock.sampling.device.streams import RunStreams, streams_of_run
from penstock.service.workers.reports import Reports
from penstock.train.device_memory import assumed_memory

_PAUSE_S = 1.0
_GPU = torch.device("cuda", 0)
"""A job's process sees one GPU."""


class DeviceGrant(Protocol):
    """What a job may take of its GPU."""

    def entered(self, reports: Reports) -> AbstractContextManager[None]:
        """Within it, in this thread, the job trains with no more than it was granted."""

    def peak_bytes(self) -> int | None:
        """The most that it has reserved so far; None where it has used no GPU."""


class OwnDevice:
    """The GPU of a process that does one task: torch itself refuses to reserve more than was granted."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task

    @contextmanager
    def entered(self, reports: Reports) -> Iterator[None]:
        """See `DeviceGrant`."""
        if not self._task["device_bytes"]:
            yield
            return
        limit_process(granted_bytes(self._task))
        # What is placed where is decided as for the forecast: by the device's memory, not by what others leave of it.
        with assumed_memory(self._task["room_bytes"], torch.cuda.memory_allocated), reporting(self, reports):
            yield

    def peak_bytes(self) -> int | None:
        """See `DeviceGrant`."""
        return torch.cuda.max_memory_reserved() if uses_gpu() else None


class SharedDevice:
    """The part of a GPU that a job of a shared process was granted: what is reserved for the streams of the job.

    torch knows one limit for a process, which is what all its jobs were granted together. A job that takes more than
    its part is noticed within a second, and `too_much` is called.
    """

    def __init__(self, task: dict[str, Any], limit: "ProcessLimit", too_much: Callable[[], None]) -> None:
        self._task, self._limit, self._too_much = task, limit, too_much
        self._streams: RunStreams | None = None
        self._peak = 0
        self.exceeded = ""
        """By how much it took more than it was granted, a sentence; empty where it did not."""

    @contextmanager
    def entered(self, reports: Reports) -> Iterator[None]:
        """See `DeviceGrant`."""
        if not self._task["device_bytes"]:
            yield
            return
        with streams_of_run(_GPU) as self._streams, self._limit.raised(granted_bytes(self._task), self._streams):
            with assumed_memory(self._task["room_bytes"], self._streams.reserved_bytes), reporting(self, reports):
                yield
            self.peak_bytes()

    def peak_bytes(self) -> int | None:
        """See `DeviceGrant`."""
        if self._streams is None:
            return None
        now, granted = self._streams.reserved_bytes(), granted_bytes(self._task)
        self._peak = max(self._peak, now)
        if now > granted and not self.exceeded:
            self.exceeded = (
                f"It reserved {now / 1e6:,.0f} MB of the device, and {granted / 1e6:,.0f} MB were forecast and granted."
            )
            self._too_much()
        return self._peak


class ProcessLimit:
    """What the jobs of a process may reserve together: the sum of what each was granted, beside what is no job's.

    Jobs that have ended leave workspaces of matrix libraries behind, which torch keeps for each stream, and the copies
    of graphs that jobs share are nobody's own. A limit without them would leave the next job too little.
    """

    def __init__(self) -> None:
        self._lock, self._granted = threading.Lock(), dict[RunStreams, int]()

    @contextmanager
    def raised(self, granted: int, streams: RunStreams) -> Iterator[None]:
        """Within it the process may reserve so much more, for a job on these streams."""
        with self._lock:
            if not self._granted:
                give_back_unused()
            self._granted[streams] = granted
            self._limit()
        try:
            yield
        finally:
            with self._lock:
                del self._granted[streams]
                self._limit()

    def _limit(self) -> None:
        if not self._granted:
            limit_process(torch.cuda.get_device_properties(_GPU).total_memory)
            return
        of_jobs = sum(streams.reserved_bytes() for streams in self._granted)
        limit_process(sum(self._granted.values()) + max(0, reserved_by_process() - of_jobs))


@contextmanager
def reporting(grant: DeviceGrant, reports: Reports) -> Iterator[None]:
    """Within it the service hears every second how much of the GPU is reserved."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(_PAUSE_S):
            reports.say(device_bytes=grant.peak_bytes() or 0)

    thread = threading.Thread(target=report, name="device", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def granted_bytes(task: dict[str, Any]) -> int:
    """What torch may reserve for a job: its grant without the CUDA context."""
    return max(0, int(task["device_bytes"]) - int(task["context_bytes"]))


def limit_process(most: int) -> None:
    """Let torch reserve no more than so many bytes of the GPU in this process."""
    total = torch.cuda.get_device_properties(_GPU).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), _GPU)


def reserved_by_process() -> int:
    """Bytes that torch has reserved of the GPU in this process."""
    return torch.cuda.memory_reserved(_GPU)


def give_back_unused() -> None:
    """Return to the GPU what is kept for reuse and for matrix libraries; only while no job computes."""
    libraries: Any = torch._C
    libraries._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def uses_gpu() -> bool:
    """Whether this process has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
