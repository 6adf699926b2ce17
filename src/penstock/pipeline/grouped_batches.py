"""Batches drawn in groups by all processors, or once for all epochs."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Batch
from penstock.wire.coflows import batch_order, within_batch

# How a group of batches is divided among the processors that draw it. At first every processor gets equally many. Later
# a batch's time is forecast by the moving median of its past times, and the batches are divided as jobs on uniform
# machines: a processor of speed s takes 1 / s of a batch's time.

WINDOW = 9
"""Observations in a moving median."""


class MovingMedian:
    """The median of the newest observations."""

    def __init__(self, window: int = WINDOW) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        """Add an observation; the oldest is dropped."""
        self._values.append(value)

    def forecast(self) -> float | None:
        """The expected next observation; None before the first."""
        return median(self._values) if self._values else None


class DrawForecasts:
    """Forecasts of the drawing times of batches, and of each processor's speed relative to the first.

    A batch is identified by its number in its epoch: while seeds are not shuffled it takes about as long in every
    epoch. A number that was not seen before is expected to take as long as others did lately.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)
        self._batches: dict[int, MovingMedian] = {}
        self._lately = MovingMedian()
        self._by_kind = {kind: MovingMedian() for kind in kinds}

    def observe(self, kind: str, number: int, seconds: float) -> None:
        """Record that a processor of some kind took so long for a batch; the time is converted to that of the first
        kind.
        """
        self._by_kind[kind].add(seconds)
        usual = seconds * self.speed(kind)
        self._lately.add(usual)
        self._batches.setdefault(number, MovingMedian()).add(usual)

    def speed(self, kind: str) -> float:
        """The speed of a kind of processor, as a multiple of the first kind's."""
        first, own = self._by_kind[self.kinds[0]].forecast(), self._by_kind[kind].forecast()
        return first / own if first and own else 1.0

    def seconds(self, number: int) -> float | None:
        """The expected seconds of a batch on the first kind of processor; None before any observation."""
        known = self._batches.get(number)
        return self._lately.forecast() if known is None else known.forecast()


def divided_evenly(count: int, processors: int) -> list[list[int]]:
    """Positions 0 to `count` - 1 in turn: numbers per processor differ by at most one."""
    return [list(range(first, count, processors)) for first in range(processors)]


def divided(times: Sequence[float], speeds: Sequence[float]) -> list[list[int]]:
    """Positions of the batches of each processor, minimising the time of the last: jobs on uniform machines.

    The longest batch first, each where it is done first (at most 1.58 times the optimum, and close to it where batches
    are many); then single batches move away from the processor that ends last, as long as that helps. Positions are in
    ascending order.
    """
    shares: list[list[int]] = [[] for _ in speeds]
    loads = [0.0] * len(speeds)
    for place in sorted(range(len(times)), key=lambda place: (-times[place], place)):
        to = min(range(len(speeds)), key=lambda at: (loads[at] + times[place] / speeds[at], at))
        shares[to].append(place)
        loads[to] += times[place] / speeds[to]
    while _moved_one(shares, loads, times, speeds):
        pass
    return [sorted(share) for share in shares]


def _moved_one(shares: list[list[int]], loads: list[float], times: Sequence[float], speeds: Sequence[float]) -> bool:
    """Move a batch from the processor that ends last to one that then ends earlier; returns whether there was one."""
    last = loads.index(max(loads))
    for place in shares[last]:
        for to in range(len(speeds)):
            after = loads[to] + times[place] / speeds[to]
            if to != last and after < loads[last] * (1 - 1e-9):
                shares[last].remove(place)
                shares[to].append(place)
                loads[last] -= times[place] / speeds[last]
                loads[to] = after
                return True
    return False


# Batches drawn in groups: all processors draw the topology of a group, and then it is trained on. Only blocks and
# vertex numbers of a group are kept; features are gathered batch by batch as always. A group begins to be drawn when
# the pipeline asks for its first batch, while the last ones of the group before are trained on. A batch is the same
# whoever draws it, so only time depends on the division.

PER_PROCESSOR = 8
"""Batches of a group per processor, where the job leaves the size open: an uneven division then costs at most about an
eighth of the time.
"""


class DrawingProcessor(NamedTuple):
    """Draws one batch at a time: a core of the host, or a device."""

    kind: str
    draw: Callable[[Planned], Batch]


class GroupedBatches:
    """Draws planned batches `size` at a time (0: as many as suit the processors), by all processors at once.

    `planned` must be exactly the batches that will be asked for, in order. It may be called from several threads.
    """

    def __init__(self, planned: Iterator[Planned], processors: Sequence[DrawingProcessor], size: int) -> None:
        self._planned, self._processors = planned, list(processors)
        self.size = group_size(size, len(self._processors))
        self._forecasts = DrawForecasts([each.kind for each in processors])
        self._drawn: dict[Position, Batch] = {}
        self._lock = threading.Lock()
        self._groups = 0
        self._errors: list[float] = []

    def __call__(self, planned: Planned) -> Batch:
        """A batch of the current group; a new group is drawn first."""
        with self._lock:
            while planned.position not in self._drawn:
                self._draw_group(list(islice(self._planned, self.size)))
            return self._drawn.pop(planned.position)

    def facts(self) -> dict[str, Any]:
        """The groups as reported in the result."""
        return {
            "size": self.size,
            "drawn": self._groups,
            "processors": [each.kind for each in self._processors],
            "forecast_error": round(median(self._errors), 4) if self._errors else None,
        }

    def _draw_group(self, group: list[Planned]) -> None:
        assert group, "a requested batch was not planned"
        shares = self._divided(group)
        with ThreadPoolExecutor(len(shares), "sample-group") as pool:
            work = zip(self._processors, shares, strict=True)
            drawn = list(pool.map(lambda each: _drawn_by(each[0], [group[place] for place in each[1]]), work))
        for processor, share in zip(self._processors, drawn, strict=True):
            for planned, batch, seconds in share:
                self._drawn[planned.position] = batch
                self._observe(processor.kind, planned.key.batch, seconds)
        self._groups += 1

    def _divided(self, group: list[Planned]) -> list[list[int]]:
        expected = [self._forecasts.seconds(planned.key.batch) for planned in group]
        times = [seconds for seconds in expected if seconds is not None]
        if len(times) < len(group):
            return divided_evenly(len(group), len(self._processors))
        return divided(times, [self._forecasts.speed(each.kind) for each in self._processors])

    def _observe(self, kind: str, number: int, seconds: float) -> None:
        expected = self._forecasts.seconds(number)
        if self._groups and expected is not None and seconds:
            self._errors.append(abs(expected / self._forecasts.speed(kind) / seconds - 1))
        self._forecasts.observe(kind, number, seconds)


def group_size(asked: int, processors: int) -> int:
    """The size of a group: the one asked for, or if that is 0 one that suits the processors."""
    return asked or PER_PROCESSOR * processors


def _drawn_by(processor: DrawingProcessor, share: list[Planned]) -> list[tuple[Planned, Batch, float]]:
    found = []
    for planned in share:
        began = time.perf_counter()
        with within_batch(batch_order(*planned.position)):
            batch = processor.draw(planned)
        found.append((planned, batch, time.perf_counter() - began))
    return found


# Batches that are drawn once and reused in every epoch that has the order of the first.

Draw = Callable[[Planned], Batch]
_MB = 1 << 20
_DERIVED = 4
"""A kept block also keeps what layers derive from it (`nn.derived`): its transpose, or itself with self loops. These
are up to three times its size.
"""


class ReusedBatches:
    """Keeps the batches of a schedule's unshuffled epochs as the first epoch draws them.

    A batch is the same whether it was kept or, for lack of room, is drawn again: its key is that of the first epoch.
    """

    def __init__(self, schedule: Schedule, megabytes: int) -> None:
        self._schedule = schedule
        self._kept: dict[int, Batch] = {}
        self._room = megabytes * _MB
        self._lock = threading.Lock()

    def drawn_by(self, draw: Draw) -> Draw:
        """A function that draws batches that are not kept yet; several of them share what is kept."""
        return partial(self._batch, draw)

    def _batch(self, draw: Draw, planned: Planned) -> Batch:
        """The batch of some seeds, without features and labels."""
        epoch, number = planned.position
        drawn_in = self._schedule.ordered_as(epoch)
        if drawn_in == epoch and epoch:
            return draw(planned)
        with self._lock:
            batch = self._kept.get(number)
        if batch is None:
            batch = draw(planned._replace(key=planned.key._replace(epoch=drawn_in)))
            self._keep(number, batch)
        # A copy, as carriers put features, labels and device blocks into the batch that they are given.
        return replace(batch, features={}, blocks=list(batch.blocks))

    def _keep(self, number: int, batch: Batch) -> None:
        size = kept_bytes(batch)
        with self._lock:
            if size <= self._room and number not in self._kept:
                self._kept[number] = batch
                self._room -= size


def kept_bytes(batch: Batch) -> int:
    """Bytes of a kept batch, with what layers derive from its blocks."""
    return _DERIVED * batch_bytes(batch)


def batch_bytes(batch: Batch) -> int:
    """Bytes of a batch on the host that was drawn and not gathered."""
    return sum(array.nbytes for array in _arrays(batch))


def _arrays(batch: Batch) -> Iterator[Array]:
    yield from batch.vertices.values()
    for block in batch.blocks:
        for part in block.parts:
            arrays = part.indptr, part.indices, part.weights, part.totals, part.edges
            yield from (array for array in arrays if array is not None)
