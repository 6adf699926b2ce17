"""Launches on a device: lanes beside each other, moments on them, and work recorded once and replayed.

On the host, where kernels run in an interpreter, there is one lane, everything happens at once, and to replay is to do
again.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from penstock.pipeline.schedule import Position
from penstock.pipeline.stages import Recorder, StageTime
from penstock.sampling.device.streams import captured, on_stream, rest, stream_maker
from penstock.store.device.moments import Moment
from penstock.traced import is_traced, recording


class LaunchStream:
    """A stream: what is launched on it happens in order."""

    def __init__(self, stream: "torch.cuda.Stream | None") -> None:
        self.stream = stream

    @classmethod
    def computing(cls, device: torch.device) -> "LaunchStream":
        """The lane of the stream that computes."""
        return cls(torch.cuda.current_stream(device) if device.type == "cuda" else None)

    @classmethod
    def beside(cls, device: torch.device) -> "LaunchStream":
        """A lane with a stream of its own."""
        return cls(stream_maker(device)())

    def entered(self) -> AbstractContextManager[Any]:
        """What is launched in it goes here."""
        return on_stream(self.stream)

    def wait(self, moment: Moment) -> None:
        """What is launched from now on waits for a moment of another lane."""
        moment.hold(self.stream)

    def settle(self) -> None:
        """Wait until everything launched here is done."""
        if self.stream is not None:
            self.stream.synchronize()


class Recorded:
    """Launches recorded once; `pool` lets recordings that are never replayed together share their memory."""

    def __init__(
        self, work: Callable[[], None], device: torch.device, lane: LaunchStream | None = None, pool: Any = None
    ) -> None:
        self._graph = torch.cuda.CUDAGraph() if device.type == "cuda" else None
        # A graph does not need the work again, which often refers to this object's owner and would keep its memory.
        self._replay: Callable[[], None] = work if self._graph is None else self._graph.replay
        self._pool = pool
        if is_traced():
            stream: Any = None if lane is None else lane.stream
            with recording(stream, pool) as self._pool:
                work()
        if self._graph is not None:
            with captured(self._graph, pool, None if lane is None else lane.stream):
                work()

    @property
    def pool(self) -> Any:
        """Where its memory is from."""
        return self._pool if self._graph is None else self._graph.pool()

    def replay(self) -> None:
        """Launch it all again, on the lane entered."""
        self._replay()


def warm_up(work: Callable[[], None], device: torch.device, times: int) -> None:
    """Do something some times before it is recorded: kernels compile, libraries allocate what they keep."""
    if is_traced():
        with LaunchStream.beside(device).entered():
            for _ in range(times):
                work()
        return
    if device.type != "cuda":
        work()
        return
    side, computing = LaunchStream.beside(device).stream, torch.cuda.current_stream(device)
    assert side is not None
    side.wait_stream(computing)
    with torch.cuda.stream(side):
        for _ in range(times):
            work()
    computing.wait_stream(side)
    rest(device)


# When the device drew and learned, read from its own clock when it is at rest.


class _Launched(NamedTuple):
    """Work launched between two recorded moments."""

    stage: str
    position: Position
    before: Moment
    after: Moment


class Stopwatch:
    """Busy and waiting seconds of drawing and of learning; every piece of work is told to `recorder`."""

    def __init__(self, device: torch.device, recorder: Recorder) -> None:
        self._device, self._recorder = device, recorder
        self._pending: list[_Launched] = []
        self._busy = {"sample": 0.0, "compute": 0.0}
        self._wait = {"sample": 0.0, "compute": 0.0}
        self._zero, self._begun = Moment(device, True), 0.0

    def start(self, lane: LaunchStream) -> None:
        """Start timing a burst of launches."""
        self._zero = Moment(self._device, True)
        self._zero.mark(lane)
        self._begun = time.perf_counter()

    def around(self, stage: str, position: Position, lane: LaunchStream, launch: Callable[[], None]) -> None:
        """Launch work between two recorded moments."""
        before, after = Moment(self._device, True), Moment(self._device, True)
        before.mark(lane)
        launch()
        after.mark(lane)
        self._pending.append(_Launched(stage, position, before, after))

    def read(self) -> None:
        """Add up what has ended of the burst."""
        spent = time.perf_counter() - self._begun
        busy, rest = dict.fromkeys(self._busy, 0.0), []
        for work in self._pending:
            if not work.after.has_passed():
                rest.append(work)
                continue
            start, end = self._zero.seconds_to(work.before), self._zero.seconds_to(work.after)
            busy[work.stage] += end - start
            self._recorder(work.stage, 0, self._begun + start, self._begun + end, work)
        self._pending = rest
        for stage, seconds in busy.items():
            self._busy[stage] += seconds
            self._wait[stage] += max(0.0, spent - seconds)

    def times(self) -> dict[str, StageTime]:
        """The seconds of each stage so far."""
        return {stage: StageTime(self._busy[stage], self._wait[stage], 1, 1) for stage in self._busy}
