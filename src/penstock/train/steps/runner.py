"""Who runs what a step does: at once, as recordings that a GPU replays, or on tensors without numbers.

A step is described once, by functions that launch its work. A runner runs them (`Eager`, where kernels are the host's
or an interpreter's), records and replays them (`Recorded`), or notes what they allocate (`Traced`).
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.pipeline.schedule import Position
from penstock.pipeline.stages import Recorder, StageTime
from penstock.sampling.device.streams import captured, on_stream, rest, stream_maker
from penstock.store.device.moments import Moment
from penstock.traced import is_traced, recording

Work = Callable[[], None]


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


class Launch(NamedTuple):
    """Work that is launched again and again."""

    replay: Work
    """Launch it all, on the lane entered."""
    pool: Any = None
    """Where its memory is from: recordings that are never replayed together may share it."""


class Runner(Protocol):
    """Runs, records or traces the work of steps."""

    records: bool
    """Whether what is launched again is not what the host does again."""

    def warm_up(self, work: Work, times: int) -> None:
        """Do something some times before it is recorded: kernels compile, libraries allocate what they keep."""

    def record(self, work: Work, lane: LaunchStream | None = None, pool: Any = None) -> Launch:
        """Work to be launched on a lane, with memory from a pool, or a new one where none is given."""


class Eager:
    """Work is done when it is launched; to replay is to do again."""

    records = False

    def warm_up(self, work: Work, times: int) -> None:
        """Once."""
        work()

    def record(self, work: Work, lane: LaunchStream | None = None, pool: Any = None) -> Launch:
        return Launch(work, pool)


class Recorded:
    """Work is recorded as a CUDA graph, which is replayed."""

    records = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm_up(self, work: Work, times: int) -> None:
        """On a stream of its own."""
        side, computing = LaunchStream.beside(self._device).stream, torch.cuda.current_stream(self._device)
        assert side is not None
        side.wait_stream(computing)
        with torch.cuda.stream(side):
            for _ in range(times):
                work()
        computing.wait_stream(side)
        rest(self._device)

    def record(self, work: Work, lane: LaunchStream | None = None, pool: Any = None) -> Launch:
        """The graph does not keep the work, whose owner often holds much memory."""
        graph = torch.cuda.CUDAGraph()
        with captured(graph, pool, None if lane is None else lane.stream):
            work()
        return Launch(graph.replay, graph.pool())


class Traced:
    """Work is traced where it would be recorded: what it allocates is from a pool, as that of a recording."""

    records = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm_up(self, work: Work, times: int) -> None:
        with LaunchStream.beside(self._device).entered():
            for _ in range(times):
                work()

    def record(self, work: Work, lane: LaunchStream | None = None, pool: Any = None) -> Launch:
        stream: Any = None if lane is None else lane.stream
        with recording(stream, pool) as number:
            work()
        return Launch(work, number)


def runner_for(device: torch.device) -> Runner:
    """Who runs steps on a device."""
    if is_traced():
        return Traced(device)
    return Recorded(device) if device.type == "cuda" else Eager()


def number_of(loss: Tensor) -> float:
    """A loss as the host sees it; a traced one has no number, and stands for one that is finite."""
    return 0.0 if is_traced() else float(loss.detach())


# When the device drew and learned, read from its own clock when it is at rest.


class _Launched(NamedTuple):
    """Work launched between two recorded moments."""

    stage: str
    position: Position
    before: Moment
    after: Moment


class Stopwatch:
    """Busy and waiting seconds of some stages; every piece of work is told to `recorder`."""

    def __init__(self, device: torch.device, recorder: Recorder, stages: Sequence[str]) -> None:
        self._device, self._recorder = device, recorder
        self._pending: list[_Launched] = []
        self._busy, self._wait = dict.fromkeys(stages, 0.0), dict.fromkeys(stages, 0.0)
        self._zero, self._begun = Moment(device, True), 0.0

    def start(self, lane: LaunchStream) -> None:
        """Start timing a burst of launches."""
        self._zero = Moment(self._device, True)
        self._zero.mark(lane)
        self._begun = time.perf_counter()

    def around(self, stage: str, position: Position, lane: LaunchStream, launch: Work) -> None:
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
