"""What the HTTP interface of a service has access to."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.service.database import JobRecord, best_of
from penstock.service.operations import Operations
from penstock.service.scheduler import JobScheduler

# Recent changes, for clients that watch the service.

_KEPT = 2000


class QueueEvent(NamedTuple):
    """An event: its number, its kind and its content."""

    number: int
    kind: str
    fields: dict[str, Any]


class Feed:
    """The newest events. A client that falls behind must read everything again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[QueueEvent] = deque(maxlen=_KEPT)
        self._number = 0

    @property
    def newest(self) -> int:
        """The number of the newest event."""
        return self._number

    def add(self, kind: str, fields: dict[str, Any]) -> None:
        """Append an event with the next number."""
        with self._lock:
            self._number += 1
            self._events.append(QueueEvent(self._number, kind, fields))

    def after(self, number: int) -> list[QueueEvent] | None:
        """Events after that number, in order; None where some of them were dropped."""
        with self._lock:
            if number > self._number or (self._events and number < self._events[0].number - 1):
                return None
            return [event for event in self._events if event.number > number]


@dataclass
class Served:
    """A service as its HTTP interface sees it."""

    operations: Operations
    scheduler: JobScheduler
    feed: Feed
    closing: bool = False
    """Whether the service ends, and streams of events with it."""

    def shown(self, records: Sequence[JobRecord]) -> list[dict[str, Any]]:
        """Jobs as users see them: running ones with their seconds and metrics so far, and the best
        of a sweep marked.
        """
        live, ends = self.scheduler.live(), dict[int, float]()
        if any(not record.is_final for record in records):
            ends = self.scheduler.expected_ends()
        best = {
            sweep: best_of(
                {
                    number: live.get(number, {}).get("metric", metric)
                    for number, metric in self.operations.database.metrics_of_sweep(sweep).items()
                }
            )
            for sweep in {record.sweep for record in records if record.sweep is not None}
        }
        return [
            {
                **record.shown(),
                **live.get(record.id, {}),
                "expected_end": ends.get(record.id),
                "best": record.sweep is not None and best[record.sweep] == record.id,
            }
            for record in records
        ]
