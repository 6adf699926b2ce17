"""Batches drawn in groups: all processors draw the topology of a group, and then it is trained on.

Only blocks and vertex numbers of a group are kept; features are gathered batch by batch as always. A group begins to be
drawn when the pipeline asks for its first batch, which is when the last ones of the group before are being trained on.
A batch is the same whoever draws it, so that nothing but time depends on the division.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

from penstock.coflow_context import batch_order, within_batch
from penstock.pipeline.division import DrawForecasts, divided, divided_evenly
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned, Position

PER_PROCESSOR = 8
"""Batches of a group for each processor, where the job leaves the size open: an uneven division then costs at most
about an eighth of the time."""


class DrawingProcessor(NamedTuple):
    """Something that draws one batch at a time: a core of the host, or a device."""

    kind: str
    draw: Callable[[Planned], Batch]


class GroupedBatches:
    """Draws planned batches `size` at a time (0: as many as suit the processors), by all processors at once.

    `planned` are the very batches that are asked for, in order. It may be called from several threads.
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
        """A batch of the group under way, which is drawn first where it is a new one."""
        with self._lock:
            while planned.position not in self._drawn:
                self._draw_group(list(islice(self._planned, self.size)))
            return self._drawn.pop(planned.position)

    def facts(self) -> dict[str, Any]:
        """What a result says of the groups."""
        return {
            "size": self.size,
            "drawn": self._groups,
            "processors": [each.kind for each in self._processors],
            "forecast_error": round(median(self._errors), 4) if self._errors else None,
        }

    def _draw_group(self, group: list[Planned]) -> None:
        assert group, "a batch was asked for that was not planned"
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
    """Batches of a group: as many as are asked for, or where that is 0 as many as suit the processors."""
    return asked or PER_PROCESSOR * processors


def _drawn_by(processor: DrawingProcessor, share: list[Planned]) -> list[tuple[Planned, Batch, float]]:
    found = []
    for planned in share:
        began = time.perf_counter()
        with within_batch(batch_order(*planned.position)):
            batch = processor.draw(planned)
        found.append((planned, batch, time.perf_counter() - began))
    return found
