"""Launches on a device: lanes beside each other, moments on them, and work recorded once and replayed.

On the host, where kernels run in an interpreter, there is one lane, everything happens at once, and to replay is to do
again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from penstock.sampling.device.streams import captured, on_stream, rest, stream_maker
from penstock.store.device.moments import Moment
from penstock.traced import is_traced, recording


class Lane:
    """A stream: what is launched on it happens in order."""

    def __init__(self, stream: "torch.cuda.Stream | None") -> None:
        self.stream = stream

    @classmethod
    def computing(cls, device: torch.device) -> "Lane":
        """The lane of the stream that computes."""
        return cls(torch.cuda.current_stream(device) if device.type == "cuda" else None)

    @classmethod
    def beside(cls, device: torch.device) -> "Lane":
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
        self, work: Callable[[], None], device: torch.device, lane: Lane | None = None, pool: Any = None
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
        with Lane.beside(device).entered():
            for _ in range(times):
                work()
        return
    if device.type != "cuda":
        work()
        return
    side, computing = Lane.beside(device).stream, torch.cuda.current_stream(device)
    assert side is not None
    side.wait_stream(computing)
    with torch.cuda.stream(side):
        for _ in range(times):
            work()
    computing.wait_stream(side)
    rest(device)
