"""The five stages of mini-batch training: seeds, sample, gather, transfer, compute."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Protocol, Self

from penstock.graph.arrays import Array
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.schedule import Planned, Position
from penstock.pipeline.stages import Recorder, Stage, StageClock, StagePipeline, StageTime, times_in_turn
from penstock.sampling.block import MiniBatch

Batch = MiniBatch
OfBatch = Callable[[Planned], AbstractContextManager[None]]
"""A context for the work on a batch: among workers, what it sends belongs to the batch."""


def no_context(planned: Planned) -> AbstractContextManager[None]:
    """The context where nothing is sent."""
    return nullcontext()


@dataclass
class Loaded:
    """A batch in the pipeline, with the buffers it occupies."""

    planned: Planned
    batch: Batch
    buffers: list[Array] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """The batch's position in the run."""
        return self.planned.position

    @property
    def examples(self) -> int:
        """The number of examples: edges of a task on edges, else the batch's seeds."""
        return self.batch.num_seeds if self.batch.links is None else len(self.planned.seeds)

    @property
    def whole(self) -> int | None:
        """Examples of the batch of which this is one worker's share; None if it is not a share."""
        return self.planned.whole if self.batch.whole is None else self.batch.whole


class Carrier(Protocol):
    """Moves a sampled batch to the device that computes, with buffers for the rows that its sources give."""

    def gather(self, batch: Batch) -> list[Array]:
        """Read the batch's stored features; returns the buffers they occupy."""

    def transfer(self, batch: Batch) -> None:
        """Move everything that the computation needs to the device."""

    def arrive(self, batch: Batch) -> None:
        """Called by the computing thread before it uses the batch."""

    def give_back(self, buffer: Array) -> None:
        """Called when the batch of a buffer is no longer used."""


class Loader:
    """Iterates over batches whose features and labels are on the device; each is valid until the next is requested.

    `sample` turns a planned batch into blocks, `carrier` moves it to the device, and `label` adds the task's labels.
    Each is done in the context that `of_batch` gives. The caller is the fifth stage.
    """

    def __init__(
        self,
        planned: Iterable[Planned],
        sample: Callable[[Planned], Batch],
        carrier: Carrier,
        label: Callable[[Batch], None],
        options: PipelineOptions,
        recorder: Recorder | None = None,
        of_batch: OfBatch = no_context,
    ) -> None:
        self._sampler, self._carrier, self._label, self._of_batch = sample, carrier, label, of_batch
        stages = [
            Stage("sample", self._sample, options.drawing_threads, options.sample_depth),
            Stage("gather", self._gather, options.reading_threads, options.gather_depth),
            Stage("transfer", self._transfer, options.transfer_threads, options.transfer_depth),
        ]
        self._flow = StagePipeline(planned, stages, ("seeds", "compute"), options.seeds_depth, recorder)

    def times(self) -> dict[str, StageTime]:
        return self._flow.times()

    def aside(self) -> AbstractContextManager[None]:
        """A context for work that is not part of computing a batch: validation, checkpoints."""
        return self._flow.aside()

    def __enter__(self) -> Self:
        self._flow.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all threads and wait for them."""
        self._flow.close()

    def __iter__(self) -> Iterator[Loaded]:
        for loaded in self._flow:
            self._carrier.arrive(loaded.batch)
            yield loaded
            for buffer in loaded.buffers:
                self._carrier.give_back(buffer)

    def _sample(self, planned: Planned) -> Loaded:
        with self._of_batch(planned):
            return Loaded(planned, self._sampler(planned))

    def _gather(self, loaded: Loaded) -> Loaded:
        with self._of_batch(loaded.planned):
            loaded.buffers = self._carrier.gather(loaded.batch)
            self._label(loaded.batch)
        return loaded

    def _transfer(self, loaded: Loaded) -> Loaded:
        self._carrier.transfer(loaded.batch)
        return loaded


# Batches that a device draws and gathers by itself, launched ahead by the computing thread. Other threads that launch
# kernels would compete with the loop for Python's interpreter lock. Here none is needed: the device draws and gathers
# the next batches beside the kernels of the loop, and the loop's own thread launches both.


class AheadSampler(Protocol):
    """Draws several batches concurrently, and returns them in the order in which they were begun."""

    slots: int
    """The most batches that may be begun and not finished."""

    def begin(self, planned: Planned) -> None:
        """Launch the drawing of a batch, without waiting for it."""

    def finish(self) -> Batch:
        """The batch that was begun first; waits until it is drawn."""

    def abandon(self) -> None:
        """Discard the batches that were begun."""


class AheadLoader:
    """Iterates over batches whose features and labels are on the device, as `Loader` does, without threads.

    While the caller works on a batch, the next one is gathered and the one after it is drawn. `carrier` reads nothing
    on the host.
    """

    def __init__(
        self,
        planned: Iterable[Planned],
        sampler: AheadSampler,
        carrier: Carrier,
        label: Callable[[Batch], None],
        recorder: Recorder | None = None,
    ) -> None:
        self._planned, self._sampler, self._carrier, self._label = planned, sampler, carrier, label
        self._begun, self._brought = deque[Planned](), deque[Loaded]()
        self._clocks = {name: StageClock(name, 1, 1, recorder) for name in ("sample", "compute")}

    def __enter__(self) -> Self:
        return self

    def __iter__(self) -> Generator[Loaded, None, None]:
        sampler, upcoming, begun, brought = self._sampler, iter(self._planned), self._begun, self._brought
        try:
            while True:
                start = time.perf_counter()
                for planned in islice(upcoming, sampler.slots - len(begun)):
                    sampler.begin(planned)
                    begun.append(planned)
                if not begun:
                    break
                planned = begun.popleft()
                brought.append(self._bring(planned))
                self._clocks["sample"].worked(0, start, planned)
                if len(brought) > 1:
                    yield from self._given()
            while brought:
                yield from self._given()
        finally:
            self.close()

    def times(self) -> dict[str, StageTime]:
        """Seconds that the one thread spent on launching draws and waiting for them, and on the caller's work."""
        return times_in_turn(self._clocks)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context for work that is not part of computing a batch: validation, checkpoints."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._clocks["compute"].rest(time.perf_counter() - start)

    def close(self) -> None:
        """Discard the batches that were begun."""
        for left in self._brought:
            # The memory of an abandoned batch must not be reused until it has been gathered.
            self._carrier.arrive(left.batch)
        self._brought.clear()
        self._begun.clear()
        self._sampler.abandon()

    def _bring(self, planned: Planned) -> Loaded:
        batch = self._sampler.finish()
        loaded = Loaded(planned, batch, self._carrier.gather(batch))
        self._label(batch)
        self._carrier.transfer(batch)
        return loaded

    def _given(self) -> Generator[Loaded, None, None]:
        start, loaded = time.perf_counter(), self._brought.popleft()
        planned = loaded.planned
        self._carrier.arrive(loaded.batch)
        yield loaded
        # The caller may have dropped the batch, to free its memory.
        del loaded
        self._clocks["compute"].worked(0, start, planned)
