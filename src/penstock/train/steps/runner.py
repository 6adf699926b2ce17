"""Runners of a step's work: at once, as recordings that a GPU replays, or on tensors without values.

A step is described once, by functions that launch its work. A runner runs them (`Eager`, for kernels on the host or in
Triton's interpreter), records and replays them (`Recorded`), or records what they allocate (`Traced`).
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

from penstock.pipeline.schedule import Position
from penstock.pipeline.stages import Recorder, StageTime
from penstock.sampling.device.streams import captured, on_stream, rest, stream_maker
from penstock.store.device.moments import Moment, current_stream
from penstock.traced import is_traced, recording

Work = Callable[[], None]


class LaunchStream:
    """A lane: what is launched on it runs in order. On a GPU it is a CUDA stream."""

    def __init__(self, stream: "torch.cuda.Stream | None") -> None:
        self.stream = stream

    @classmethod
    def computing(cls, device: torch.device) -> "LaunchStream":
        """The lane of the stream that computes."""
        return cls(current_stream(device))

    @classmethod
    def beside(cls, device: torch.device, urgent: bool = False) -> "LaunchStream":
        """A lane with a stream of its own; what is launched on an `urgent` one starts before what waits on others."""
        return cls(stream_maker(device, urgent)())

    def entered(self) -> AbstractContextManager[Any]:
        """A context in which work is launched on this lane."""
        return on_stream(self.stream)

    def wait(self, moment: Moment) -> None:
        """Make later launches on this lane wait for a moment of another lane."""
        moment.hold(self.stream)

    def settle(self) -> None:
        """Wait until everything launched here is done."""
        if self.stream is not None:
            self.stream.synchronize()


class Launch(NamedTuple):
    """Work that is launched repeatedly."""

    replay: Work
    """Launch all of it, on the current lane."""
    pool: Any = None
    """The pool of its memory: recordings that are never replayed concurrently may share it."""


class Runner(Protocol):
    """Runs, records or traces the work of steps."""

    records: bool
    """Whether replaying runs a recording, without the host's code."""

    def warm_up(self, work: Work, times: int) -> None:
        """Run work `times` times before it is recorded, so that kernels compile and libraries allocate their
        workspaces.
        """

    def record(self, work: Work, lane: LaunchStream | None = None, pool: Any = None) -> Launch:
        """Prepare work to be launched on a lane, with memory from a pool, or a new one where none is given."""


class Eager:
    """Runs work when it is launched; replaying runs it again."""

    records = False

    def warm_up(self, work: Work, times: int) -> None:
        """Run the work once, however many `times` are asked for: nothing is recorded that would need more."""
        work()

    def record(self, work: Work, lane: LaunchStream | None = None, pool: Any = None) -> Launch:
        return Launch(work, pool)


class Recorded:
    """Records work as a CUDA graph, which is replayed."""

    records = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm_up(self, work: Work, times: int) -> None:
        """Run the work on a side stream, as CUDA graphs require."""
        side, computing = LaunchStream.beside(self._device).stream, torch.cuda.current_stream(self._device)
        assert side is not None
        side.wait_stream(computing)
        with torch.cuda.stream(side):
            for _ in range(times):
                work()
        computing.wait_stream(side)
        rest(self._device)

    def record(self, work: Work, lane: LaunchStream | None = None, pool: Any = None) -> Launch:
        """Record the work; the graph keeps no reference to it, since its owner often holds much memory."""
        graph = torch.cuda.CUDAGraph()
        with captured(graph, pool, None if lane is None else lane.stream):
            work()
        return Launch(graph.replay, graph.pool())


class Traced:
    """Traces work where it would be recorded; what it allocates is from a private pool, as a recording's."""

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
    """The runner of steps on a device."""
    if is_traced():
        return Traced(device)
    return Recorded(device) if device.type == "cuda" else Eager()


# Times of drawing and computing, read from the device's own clock when it is idle.


class _Launched(NamedTuple):
    """Work that was launched between two recorded moments."""

    stage: str
    position: Position
    before: Moment
    after: Moment


_LAST = 6
"""Launches whose times are read when a burst has ended: those of its last batch, and of the next batches' draws."""


class Stopwatch:
    """Busy and waiting seconds of stages; `recorder` receives every piece of work."""

    def __init__(self, device: torch.device, recorder: Recorder, stages: Sequence[str]) -> None:
        self._device, self._recorder = device, recorder
        self._pending: list[_Launched] = []
        self._busy, self._wait = dict.fromkeys(stages, 0.0), dict.fromkeys(stages, 0.0)
        self._of_burst = dict.fromkeys(stages, 0.0)
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

    def follow(self) -> None:
        """Add the times of this burst's work while the device goes on, up to the last launches, so that it need not
        wait for the host afterwards.
        """
        ended = self._pending[:-_LAST]
        for work in ended:
            work.after.settle()
            self._add(work)
        del self._pending[: len(ended)]

    def read(self) -> None:
        """Add the times of the work of this burst that has ended."""
        spent = time.perf_counter() - self._begun
        passed = [work.after.has_passed() for work in self._pending]
        for work, has_passed in zip(self._pending, passed, strict=True):
            if has_passed:
                self._add(work)
        self._pending = [work for work, has_passed in zip(self._pending, passed, strict=True) if not has_passed]
        for stage, seconds in self._of_burst.items():
            self._busy[stage] += seconds
            self._wait[stage] += max(0.0, spent - seconds)
        self._of_burst = dict.fromkeys(self._of_burst, 0.0)

    def _add(self, work: _Launched) -> None:
        start, end = self._zero.seconds_to(work.before), self._zero.seconds_to(work.after)
        self._of_burst[work.stage] += end - start
        self._recorder(work.stage, 0, self._begun + start, self._begun + end, work)

    def times(self) -> dict[str, StageTime]:
        """The seconds of each stage so far."""
        return {stage: StageTime(self._busy[stage], self._wait[stage], 1, 1) for stage in self._busy}
