"""Streams of a device, and events on them that others wait for or measure from. On the host every event has passed."""

import time
from typing import Any

import torch


def current_stream(device: torch.device) -> Any:
    """The stream of a GPU that this thread launches on; None on the host, where launches are done at once."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


class Moment:
    """An event on a stream that others wait for; with `timed`, also for measuring."""

    def __init__(self, device: torch.device, timed: bool = False) -> None:
        self.event: Any = None
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        self._at = 0.0

    def mark(self, lane: Any) -> None:
        """Record the moment after everything launched on a lane (anything that has a `stream`) so far."""
        self.mark_on(lane.stream)

    def mark_on(self, stream: Any) -> None:
        """Record the moment after everything launched on a stream so far."""
        self._at = time.perf_counter()
        if self.event is not None:
            self.event.record(stream)

    def hold(self, stream: Any) -> None:
        """Make later launches on a stream wait for the event."""
        if self.event is not None and stream is not None:
            stream.wait_event(self.event)

    def settle(self) -> None:
        """Wait until the stream has reached it; one that was never recorded counts as reached."""
        if self.event is not None:
            self.event.synchronize()

    def has_passed(self) -> bool:
        """Whether the stream has reached it."""
        return self.event is None or bool(self.event.query())

    def seconds_to(self, later: "Moment") -> float:
        """Seconds between two events that have passed, as measured by the device."""
        if self.event is None:
            return later._at - self._at
        return float(self.event.elapsed_time(later.event)) / 1e3
