"""Stages that run in parallel on their own threads, with order kept and memory bounded, and the loader of mini-batch
training, made of five: seeds, sample, gather, transfer, compute.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from penstock.formatting import percent
from penstock.graph.arrays import Array
from penstock.pipeline.options import PASSES, PipelineOptions
from penstock.pipeline.schedule import Planned, Position
from penstock.sampling.block import MiniBatch

# How long each stage worked and waited.


Recorder = Callable[[str, int, float, float, object], None]
"""Called with (stage, thread in the stage, start, end, item) for every piece of work; seconds of
`time.perf_counter`.
"""


@dataclass(frozen=True)
class StageTime:
    """Seconds all threads of a stage were busy and waited."""

    busy: float
    wait: float
    threads: int
    depth: int

    def plus(self, other: "StageTime") -> "StageTime":
        """The sum of both, for one stage."""
        return StageTime(self.busy + other.busy, self.wait + other.wait, self.threads, self.depth)

    def since(self, earlier: "StageTime") -> "StageTime":
        """The difference from an earlier reading."""
        return StageTime(self.busy - earlier.busy, self.wait - earlier.wait, self.threads, self.depth)


class StageClock:
    """Sums one stage's busy and waiting seconds over its threads."""

    def __init__(self, name: str, threads: int, depth: int, recorder: Recorder | None) -> None:
        self.name, self._threads, self._depth, self._recorder = name, threads, depth, recorder
        self._busy = self._wait = self._rested = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context in which the stage waits."""
        start = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            with self._lock:
                self._wait += taken

    def worked(self, thread: int, start: float, item: object) -> None:
        """Record that a piece of work that began at `start` is done."""
        end = time.perf_counter() - self._rested
        with self._lock:
            self._busy += end - start
            self._rested = 0.0
        if self._recorder is not None:
            self._recorder(self.name, thread, start, end, item)

    def rest(self, seconds: float) -> None:
        """Subtract so many seconds, spent on something else, from the current work."""
        self._rested += seconds

    def reading(self) -> StageTime:
        """The busy and waiting seconds so far."""
        with self._lock:
            return StageTime(self._busy, self._wait, self._threads, self._depth)


def times_in_turn(clocks: Mapping[str, StageClock]) -> dict[str, StageTime]:
    """Readings of stages that one thread does one after the other: while one works, the others wait."""
    found = {name: clock.reading() for name, clock in clocks.items()}
    total = sum(each.busy for each in found.values())
    return {name: replace(each, wait=total - each.busy) for name, each in found.items()}


def limit_words(times: Mapping[str, StageTime]) -> str:
    """The status line about the stages: `compute limits`, or for stages in turn `backward 86 % of a step`."""
    longest = limiting(times)
    if longest not in PASSES:
        return f"{longest or 'nothing'} limits"
    total = sum(each.busy for each in times.values())
    return f"{longest} {percent(times[longest].busy / total if total else 0.0)} of a step"


def limiting(times: Mapping[str, StageTime]) -> str:
    """The stage whose threads were busy longest. Shares of time would count validation as waiting of the others."""
    return max(times, key=lambda name: times[name].busy / times[name].threads, default="")


Item = TypeVar("Item")


class ClosedError(Exception):
    """The queue was closed while a thread waited at it, or has given its last item."""


class OrderedQueue(Generic[Item]):
    """Items are put with their number and taken in its order. At most `depth` are held or awaited ahead.

    The producer of item n waits while n is `depth` or more ahead of the next to be taken; so the producer of the next
    item never waits, and no producer can block the others.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._items: dict[int, Item] = {}
        self._next, self._end = 0, -1
        self._closed = False
        self._change = threading.Condition()

    def wait_for_room(self, number: int) -> None:
        """Wait until item `number` may be put."""
        with self._change:
            self._wait_for_room(number)

    def put(self, number: int, item: Item) -> None:
        """Put item `number`; waits while there is no room."""
        with self._change:
            self._wait_for_room(number)
            self._items[number] = item
            self._change.notify_all()

    def _wait_for_room(self, number: int) -> None:
        while not self._closed and number >= self._next + self.depth:
            self._change.wait()
        if self._closed:
            raise ClosedError

    def take(self) -> tuple[int, Item]:
        """The next item and its number; waits until it is put."""
        with self._change:
            while not self._closed and self._next not in self._items and self._next != self._end:
                self._change.wait()
            if self._closed or self._next not in self._items:
                raise ClosedError
            number = self._next
            self._next += 1
            self._change.notify_all()
            return number, self._items.pop(number)

    @property
    def ended(self) -> int | None:
        """The number of items, once all have been taken; else None."""
        with self._change:
            return self._end if self._next == self._end else None

    def finish(self, count: int) -> None:
        """Announce that there are no items from number `count` on."""
        with self._change:
            self._end = count
            self._change.notify_all()

    def close(self) -> None:
        """Wake all threads that wait, and release the items that are held."""
        with self._change:
            self._closed = True
            self._items.clear()
            self._change.notify_all()


@dataclass(frozen=True)
class Stage:
    """Turns every item into the next one. At most `depth` items are finished or in progress; order is kept."""

    name: str
    work: Callable[[Any], Any]
    threads: int = 1
    depth: int = 2
    waits_for_room: bool = False
    """Whether work on an item begins only when the next queue has room for it, so that no thread waits with a finished
    item.
    """


class StageError(Exception):
    """A stage failed; the exception it raised is the cause."""

    def __init__(self, stage: str, number: int) -> None:
        super().__init__(f"stage {stage!r} failed at item {number}")
        self.stage, self.number = stage, number


class StagePipeline:
    """A source, stages, and the caller as the last stage: iterate, and work on each item before asking for the next.

    Use it as a context manager: leaving the block, for whatever reason, ends every thread. `source` and `consumer` name
    the first and the last stage in the times.
    """

    def __init__(
        self,
        source: Iterable[Any],
        stages: list[Stage],
        names: tuple[str, str] = ("source", "consumer"),
        source_depth: int = 2,
        recorder: Recorder | None = None,
    ) -> None:
        self._source, self._stages = source, stages
        depths = [source_depth, *(stage.depth for stage in stages)]
        self._queues: list[OrderedQueue[Any]] = [OrderedQueue(depth) for depth in depths]
        counts = [1, *(stage.threads for stage in stages), 1]
        titles = [names[0], *(stage.name for stage in stages), names[1]]
        self._clocks = [
            StageClock(title, count, depth, recorder)
            for title, count, depth in zip(titles, counts, [*depths, 1], strict=True)
        ]
        self._failure: StageError | None = None
        self._lock = threading.Lock()
        self._threads = self._make_threads()

    def times(self) -> dict[str, StageTime]:
        """Seconds busy and waiting of every stage so far, in order."""
        return {clock.name: clock.reading() for clock in self._clocks}

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context for work of the consumer that is not part of an item, such as validation."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._clocks[-1].rest(time.perf_counter() - start)

    def __enter__(self) -> Self:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        clock = self._clocks[-1]
        while True:
            try:
                with clock.waiting():
                    _, item = self._queues[-1].take()
            except ClosedError:
                if self._failure is not None:
                    raise self._failure from self._failure.__cause__
                return
            start = time.perf_counter()
            yield item
            clock.worked(0, start, item)

    def close(self) -> None:
        """End every thread and wait for it; a kernel in progress is allowed to finish.

        Python's garbage collector may close an unused pipeline from one of its own threads, which ends by itself.
        """
        for queue in self._queues:
            queue.close()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    def _make_threads(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._feed, name=f"{self._clocks[0].name}-0", daemon=True)]
        for place, stage in enumerate(self._stages):
            threads += [
                threading.Thread(target=self._serve, args=(place, number), name=f"{stage.name}-{number}", daemon=True)
                for number in range(stage.threads)
            ]
        return threads

    def _feed(self) -> None:
        clock, queue, number = self._clocks[0], self._queues[0], 0
        try:
            items = iter(self._source)
            while True:
                start = time.perf_counter()
                item = next(items, self)
                if item is self:
                    break
                clock.worked(0, start, item)
                with clock.waiting():
                    queue.put(number, item)
                number += 1
            queue.finish(number)
        except ClosedError:
            return
        except BaseException as error:
            self._fail(clock.name, number, error)

    def _serve(self, place: int, thread: int) -> None:
        stage, clock = self._stages[place], self._clocks[place + 1]
        taken, given = self._queues[place], self._queues[place + 1]
        number = -1
        try:
            while True:
                with clock.waiting():
                    number, item = taken.take()
                    if stage.waits_for_room:
                        given.wait_for_room(number)
                start = time.perf_counter()
                item = stage.work(item)
                clock.worked(thread, start, item)
                with clock.waiting():
                    given.put(number, item)
        except ClosedError:
            # Every thread of the stage ends here; the first to see the end announces it.
            if taken.ended is not None:
                given.finish(taken.ended)
        except BaseException as error:
            self._fail(stage.name, number, error)

    def _fail(self, stage: str, number: int, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = StageError(stage, number)
                self._failure.__cause__ = error
        for queue in self._queues:
            queue.close()


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

    def release(self) -> None:
        """Called when no more batches come: memory that is kept for further ones is freed."""


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
        """End all threads, wait for them, and free what they read into: an evaluation may follow that needs memory."""
        self._flow.close()
        self._carrier.release()

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
