"""How far the heap of the C library grows: freed memory stays, and new memory takes the smallest hole that is large
enough.

While a run keeps freed memory (`penstock.memory.freed_memory_kept`), every array comes from one heap. Holes between
arrays that live on may be too small for the next one: the heap is then larger than what is in use, by a fifth where
arrays are large.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from penstock.train.trace.allocations import Event, PeakMemory

_UNIT = 64
"""torch aligns its arrays to so many bytes."""


class Heap:
    """Places of memory that is in use, and holes."""

    def __init__(self) -> None:
        self.extent = 0
        self._used: dict[int, tuple[int, int]] = {}
        self._holes: list[tuple[int, int]] = []
        """Size and place, ascending."""
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def take(self, name: int, size: int) -> None:
        """Give memory a place: in the smallest hole that holds it, else at the end of the heap."""
        at = bisect_left(self._holes, (size, 0))
        if at < len(self._holes):
            room, place = self._holes[at]
            self._remove(place, room)
            if room > size:
                self._add(place + size, room - size)
        else:
            # A hole at the end is extended.
            room = self._ends.get(self.extent, 0)
            place = self.extent - room
            if room:
                self._remove(place, room)
            self.extent = place + size
        self._used[name] = place, size

    def give(self, name: int) -> None:
        """Turn memory into a hole, joined with those beside it."""
        place, size = self._used.pop(name)
        before, after = self._ends.get(place, 0), self._starts.get(place + size, 0)
        if before:
            self._remove(place - before, before)
        if after:
            self._remove(place + size, after)
        self._add(place - before, before + size + after)

    def _add(self, place: int, room: int) -> None:
        insort(self._holes, (room, place))
        self._starts[place], self._ends[place + room] = room, room

    def _remove(self, place: int, room: int) -> None:
        self._holes.pop(bisect_left(self._holes, (room, place)))
        del self._starts[place], self._ends[place + room]


def heap_peak(events: Sequence[Event]) -> PeakMemory:
    """How large the heap becomes, and when it last grew."""
    heap, moment = Heap(), ""
    for event in events:
        before = heap.extent
        if event.bytes > 0:
            heap.take(event.storage, -(-event.bytes // _UNIT) * _UNIT)
        else:
            heap.give(event.storage)
        if heap.extent > before:
            moment = event.moment
    return PeakMemory(heap.extent, moment)
