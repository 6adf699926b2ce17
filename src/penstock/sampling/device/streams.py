"""Streams of a GPU beside the default one, and the streams of a run that shares its process with others.

torch's allocator keeps free memory by stream. A run that computes on streams of its own therefore has a pool of memory
of its own: what was reserved for its streams, captured steps included. `torch.cuda.MemPool` is not used for that: it
covers what one thread allocates, while a pipeline has several, and as long as a thread allocates to one, older releases
of torch release no memory that two streams have used.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from penstock.traced import TracedStream, is_traced

CAPTURING = threading.RLock()
"""Held while one of several runs of this process captures: captures share one generator, and no thread may synchronise
the whole device meanwhile.
"""


class RunStreams:
    """The streams of one run on a GPU that other runs of this process use as well."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._lock, self._streams = device, threading.Lock(), list[Any]()
        self._before = reserved_by_stream()
        """Bytes that earlier runs left reserved on streams that this one may be given, mainly workspaces of matrix
        libraries.
        """
        self.computing, self.capturing = self.new(), self.new()

    def new(self, urgent: bool = False) -> Any:
        """A stream for this run. torch has 32 of each priority and hands them out in turn, so with many runs some share
        one.
        """
        with torch.cuda.device(self.device):
            stream = _new_stream(self.device, urgent)
        with self._lock:
            self._streams.append(stream)
        return stream

    def settle(self) -> None:
        """Wait until everything launched on this run's streams is done, without waiting for other runs."""
        with self._lock:
            known = list(self._streams)
        for stream in known:
            stream.synchronize()

    def reserved_bytes(self) -> int:
        """Bytes that torch's allocator has reserved for these streams since this run began."""
        with self._lock:
            known = {stream.cuda_stream for stream in self._streams}
        now = reserved_by_stream()
        return sum(max(0, now.get(each, 0) - self._before.get(each, 0)) for each in known)


def reserved_by_stream() -> dict[int, int]:
    """Bytes that torch's allocator has reserved in this process, by stream."""
    found: dict[int, int] = {}
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    for each in segments:
        found[each["stream"]] = found.get(each["stream"], 0) + int(each["total_size"])
    return found


@contextmanager
def streams_of_run(device: torch.device) -> Iterator[RunStreams]:
    """Within the context, in this thread, a run computes on streams of its own; they are idle when it is left."""
    streams = RunStreams(device)
    token = _streams.set(streams)
    try:
        with torch.cuda.stream(streams.computing):
            yield streams
    finally:
        _streams.reset(token)
        streams.settle()


def current_streams() -> RunStreams | None:
    """The streams of this thread's run; None where the run has the process to itself."""
    return _streams.get()


def stream_maker(device: torch.device, urgent: bool = False) -> "Callable[[], torch.cuda.Stream | None]":
    """A function that makes further streams for this thread's run, in whatever thread it is called; it returns None
    without a GPU. What waits on an `urgent` stream starts before what waits on others.
    """
    if is_traced():
        return lambda: TracedStream()  # type: ignore[return-value]
    if device.type != "cuda":
        return lambda: None
    own = current_streams()
    return lambda: _new_stream(device, urgent) if own is None else own.new(urgent)


def _new_stream(device: torch.device, urgent: bool) -> "torch.cuda.Stream":
    return torch.cuda.Stream(device, priority=-1 if urgent else 0)  # type: ignore[no-untyped-call]


@contextmanager
def on_stream(stream: "torch.cuda.Stream | None") -> Iterator[None]:
    """Launch on that stream within the context."""
    if stream is None:
        yield
    elif isinstance(stream, TracedStream):
        with stream.entered():
            yield
    else:
        with torch.cuda.stream(stream):
            yield


def rest(device: torch.device) -> None:
    """Wait until the device has done everything for this run."""
    if device.type != "cuda":
        return
    own = current_streams()
    if own is not None:
        torch.cuda.current_stream(device).synchronize()
        own.settle()
        return
    with CAPTURING:
        torch.cuda.synchronize(device)


@contextmanager
def captured(graph: Any, pool: Any, stream: "torch.cuda.Stream | None") -> Iterator[None]:
    """Record what is launched within the context as a CUDA graph; other runs of the process continue meanwhile."""
    own = current_streams()
    if stream is None and own is not None:
        stream = own.capturing
    # By default a capture fails when any thread of the process allocates memory on the device meanwhile.
    with (
        CAPTURING,
        nothing_collected(),
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        yield


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Disable garbage collection meanwhile: it might free an earlier run's page-locked memory, which synchronises with
    the device and makes a capture fail.
    """
    global _uncollected, _collected_before
    with _COLLECTION:
        if not _uncollected:
            _collected_before = gc.isenabled()
            gc.disable()
        _uncollected += 1
    try:
        yield
    finally:
        with _COLLECTION:
            _uncollected -= 1
            if not _uncollected and _collected_before:
                gc.enable()


_COLLECTION = threading.Lock()
_uncollected = 0
"""The number of captures in progress."""
_collected_before = True
_streams: ContextVar[RunStreams | None] = ContextVar("_streams", default=None)
