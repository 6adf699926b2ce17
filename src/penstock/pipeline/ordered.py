"""The queue between two stages: bounded, and in order whatever order its items arrive in."""

import threading
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ClosedError(Exception):
    """The queue was closed while someone waited at it, or has given its last item."""


class OrderedQueue(Generic[Item]):
    """Items are put with their number and taken in order of it. At most `depth` are held or awaited ahead.

    Whoever brings item n waits while n is `depth` or more ahead of the next to be taken; so the one who brings the
    next never waits, and nobody can block the others.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._items: dict[int, Item] = {}
        self._next, self._end = 0, -1
        self._closed = False
        self._change = threading.Condition()

    def put(self, number: int, item: Item) -> None:
        """Bring item `number`; waits while there is no room."""
        with self._change:
            while not self._closed and number >= self._next + self.depth:
                self._change.wait()
            if self._closed:
                raise ClosedError
            self._items[number] = item
            self._change.notify_all()

    def take(self) -> tuple[int, Item]:
        """The next item and its number; waits until it is there."""
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
        """How many items there were, once all have been taken."""
        with self._change:
            return self._end if self._next == self._end else None

    def finish(self, count: int) -> None:
        """No item from number `count` on will come."""
        with self._change:
            self._end = count
            self._change.notify_all()

    def close(self) -> None:
        """Wake all threads that wait, and release the items that are held."""
        with self._change:
            self._closed = True
            self._items.clear()
            self._change.notify_all()
