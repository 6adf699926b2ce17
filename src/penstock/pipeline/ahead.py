"""Batches that a device draws and gathers by itself, launched ahead by the thread that computes.

Other threads that launch kernels share Python's global interpreter lock with the loop. Here they have nothing to do:
the device draws and gathers the next batches beside the kernels of the loop, and the loop's own thread launches both.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Protocol

from penstock.pipeline.loader import Batch, Carrier, Loaded
from penstock.pipeline.schedule import Planned


class AheadSampler(Protocol):
    """Draws some batches at once, and gives them in the order in which they were begun."""

    slots: int
    """Batches that may be begun and not finished."""

    def begin(self, planned: Planned) -> None:
        """Launch the drawing of a batch, without waiting for it."""

    def finish(self) -> Batch:
        """The batch that was begun first, when it is drawn."""

    def abandon(self) -> None:
        """Forget the batches that were begun: nobody wants them any more."""


class AheadLoader:
    """Iterates over batches whose features and labels are on the device, as `Loader` does, without threads.

    While the caller works on a batch, the next one is gathered and the one behind it is drawn. `carrier` reads nothing
    on the host.
    """

    def __init__(
        self,
        planned: Iterable[Planned],
        sampler: AheadSampler,
        carrier: Carrier,
        label: Callable[[Batch], None],
    ) -> None:
        self._planned, self._sampler, self._carrier, self._label = planned, sampler, carrier, label

    def __iter__(self) -> Generator[Loaded, None, None]:
        sampler, upcoming = self._sampler, iter(self._planned)
        begun, brought = deque[Planned](), deque[Loaded]()
        try:
            while True:
                for planned in islice(upcoming, sampler.slots - len(begun)):
                    sampler.begin(planned)
                    begun.append(planned)
                if not begun:
                    break
                brought.append(self._bring(begun.popleft()))
                if len(brought) > 1:
                    yield self._arrived(brought)
            while brought:
                yield self._arrived(brought)
        finally:
            for left in brought:
                # The memory of a batch that nobody takes stays its own until it has been gathered.
                self._carrier.arrive(left.batch)
            sampler.abandon()

    def _bring(self, planned: Planned) -> Loaded:
        batch = self._sampler.finish()
        loaded = Loaded(planned, batch, self._carrier.gather(batch))
        self._label(batch)
        self._carrier.transfer(batch)
        return loaded

    def _arrived(self, brought: deque[Loaded]) -> Loaded:
        loaded = brought.popleft()
        self._carrier.arrive(loaded.batch)
        return loaded
