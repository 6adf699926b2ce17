"""What has changed lately, for those who watch the service."""

import threading
from collections import deque
from typing import Any, NamedTuple

_KEPT = 2000


class Event(NamedTuple):
    """Something that happened: its number, its kind and what it says."""

    number: int
    kind: str
    fields: dict[str, Any]


class Feed:
    """The newest events. Whoever falls behind is told to read everything again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._number = 0

    @property
    def newest(self) -> int:
        """The number of the newest event."""
        return self._number

    def add(self, kind: str, fields: dict[str, Any]) -> None:
        """Tell all watchers."""
        with self._lock:
            self._number += 1
            self._events.append(Event(self._number, kind, fields))

    def after(self, number: int) -> list[Event] | None:
        """Events after that number, in order; None where some of them are no longer known."""
        with self._lock:
            if number > self._number or (self._events and number < self._events[0].number - 1):
                return None
            return [event for event in self._events if event.number > number]
