"""When the device drew and learned, read from its own clock when it is at rest."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock.pipeline.clock import Recorder, StageTime
from penstock.pipeline.schedule import Position
from penstock.store.device.moments import Moment
from penstock.train.device.launches import Lane


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

    def start(self, lane: Lane) -> None:
        """Start timing a burst of launches."""
        self._zero = Moment(self._device, True)
        self._zero.mark(lane)
        self._begun = time.perf_counter()

    def around(self, stage: str, position: Position, lane: Lane, launch: Callable[[], None]) -> None:
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
