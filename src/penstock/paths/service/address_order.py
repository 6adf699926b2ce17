"""Requests that depend on each other are carried one after the other, in the order in which they were sent.

A path carries several messages at once, and so may a node: without this a read could overtake the write before it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass
class _Group(Generic[Item]):
    """Requests of one group: how many are carried, whether one of them writes, and those that wait, in order."""

    carried: int = 0
    writing: bool = False
    waiting: deque[tuple[Item, bool]] = field(default_factory=deque)

    def admits(self, writes: bool) -> bool:
        """Whether a request may be carried beside those that are: reads beside reads, a write alone."""
        return self.carried == 0 or not (writes or self.writing)

    def add(self, writes: bool) -> None:
        self.carried, self.writing = self.carried + 1, writes


class AddressOrder(Generic[Item]):
    """Hands requests to `carry` as soon as those that they depend on are answered. The caller holds a lock."""

    def __init__(self, carry: Callable[[Item], None]) -> None:
        self._carry = carry
        self._groups: dict[int, _Group[Item]] = {}

    def send(self, item: Item, group: int, writes: bool) -> None:
        """A request that depends on all earlier ones of its group, if it or one of them writes."""
        found = self._groups.setdefault(group, _Group())
        if found.waiting or not found.admits(writes):
            found.waiting.append((item, writes))
            return
        found.add(writes)
        self._carry(item)

    def answered(self, group: int) -> None:
        """A request of the group is over."""
        found = self._groups[group]
        found.carried -= 1
        while found.waiting and found.admits(found.waiting[0][1]):
            item, writes = found.waiting.popleft()
            found.add(writes)
            self._carry(item)
        if not found.carried:
            del self._groups[group]
