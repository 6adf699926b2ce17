"""Simulated allocators: what torch's caching allocator reserves on a GPU, and how far the C heap grows."""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.trace.allocations import AllocationEvent, PeakMemory
from penstock.traced import OTHER_THREADS, MemoryPlace

# torch's caching allocator for a GPU, simulated: what is reserved of the device for the tensors of a trace.
#
# The rules are those of torch's `CUDACachingAllocator` with its default settings. Sizes are rounded to 512 bytes. Up to
# 1 MiB memory comes from segments of 2 MiB, below 10 MiB from segments of 20 MiB, and above that from a segment of its
# own, rounded to 2 MiB. A freed block is joined with its free neighbours and given to the next request of its stream
# and pool that it is the smallest fit for; what is left of it is split off, of a large one only if that is over 1 MiB.
# Segments are kept until the cache is emptied; those of a recorded graph's pool as long as the graph is.

_BLOCK_UNIT = 512
_SMALL = 1 << 20
_SMALL_SEGMENT, _MIDDLE_SEGMENT = 2 << 20, 20 << 20
_LARGE, _LARGE_UNIT = 10 << 20, 2 << 20

_DEFAULT = MemoryPlace()
Pool = tuple[MemoryPlace, bool]
"""The key under which free blocks are kept: the stream and graph pool, and whether they are small."""


@dataclass(eq=False)
class _Block:
    """A part of a segment."""

    number: int
    size: int
    pool: Pool
    before: "_Block | None" = None
    after: "_Block | None" = None
    used: bool = False


class DevicePeak(NamedTuple):
    """The peak of a trace on a GPU."""

    allocated: int
    """Bytes in blocks that are in use, as `torch.cuda.max_memory_allocated` counts them."""
    reserved: int
    """Bytes in segments, as `torch.cuda.max_memory_reserved` counts them."""
    moment: str
    """When most was allocated."""
    categories: dict[str, int]
    """The bytes allocated then, by purpose."""
    host_validates: bool = False
    """Whether validations read the graph from the host, with all threads."""
    share: float | None = None
    """The share of the GPU's throughput, 0 to 1, that the run uses when it runs alone; None where unknown."""


@dataclass(eq=False)
class CachingAllocator:
    """The segments and blocks of one GPU."""

    allocated: int = 0
    reserved: int = 0
    _free: dict[Pool, list[tuple[int, int]]] = field(default_factory=dict)
    """For each pool the sizes and numbers of free blocks, ascending."""
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _numbers: int = 0

    def take(self, size: int, place: MemoryPlace = _DEFAULT) -> "_Block":
        """Allocate a block for a tensor of so many bytes."""
        size = max(_BLOCK_UNIT, -(-size // _BLOCK_UNIT) * _BLOCK_UNIT)
        pool = place, size <= _SMALL
        free = self._free.setdefault(pool, [])
        at = bisect_left(free, (size, -1))
        if at < len(free):
            block = self._blocks[free.pop(at)[1]]
        else:
            block = self._new(segment_bytes(size), pool)
            self.reserved += block.size
        left = block.size - size
        if left >= _BLOCK_UNIT if pool[1] else left > _SMALL:
            rest = self._new(left, pool)
            rest.before, rest.after, block.size = block, block.after, size
            if block.after is not None:
                block.after.before = rest
            block.after = rest
            insort(free, (left, rest.number))
        block.used = True
        self.allocated += block.size
        return block

    def give(self, block: "_Block") -> None:
        """Free a block, and merge it with free neighbours."""
        self.allocated -= block.size
        block.used = False
        for other in (block.before, block.after):
            if other is not None and not other.used:
                self._forget(other)
                block.size += other.size
                if other is block.before:
                    block.before = other.before
                    if other.before is not None:
                        other.before.after = block
                else:
                    block.after = other.after
                    if other.after is not None:
                        other.after.before = block
                del self._blocks[other.number]
        insort(self._free[block.pool], (block.size, block.number))

    def empty_cache(self) -> None:
        """Release unused segments; those of graphs stay."""
        for (place, _), free in self._free.items():
            if place.pool:
                continue
            whole = [each for each in free if self._is_segment(self._blocks[each[1]])]
            for size, number in whole:
                free.remove((size, number))
                del self._blocks[number]
                self.reserved -= size

    def _is_segment(self, block: "_Block") -> bool:
        return block.before is None and block.after is None

    def _new(self, size: int, pool: Pool) -> "_Block":
        self._numbers += 1
        block = self._blocks[self._numbers] = _Block(self._numbers, size, pool)
        return block

    def _forget(self, block: "_Block") -> None:
        free = self._free[block.pool]
        free.pop(bisect_left(free, (block.size, block.number)))


def segment_bytes(size: int) -> int:
    """The size of a new segment for a request that no free block serves."""
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _MIDDLE_SEGMENT if size < _LARGE else -(-size // _LARGE_UNIT) * _LARGE_UNIT


def device_peak(events: Iterable[AllocationEvent]) -> DevicePeak:
    """The peak of a trace on a GPU."""
    allocator, blocks = CachingAllocator(), dict[int, _Block]()
    held: Counter[str] = Counter()
    found = DevicePeak(0, 0, "", {})
    for event in events:
        if event.bytes > 0:
            block = blocks[event.storage] = allocator.take(event.bytes, event.place)
            held[event.category] += block.size
        elif event.bytes < 0:
            block = blocks.pop(event.storage)
            held[event.category] -= block.size
            allocator.give(block)
        else:
            allocator.empty_cache()
        found = found._replace(reserved=max(found.reserved, allocator.reserved))
        if allocator.allocated > found.allocated:
            found = found._replace(allocated=allocator.allocated, moment=event.moment, categories=dict(+held))
    return found


# How far the heap of the C library grows: freed memory stays, and new memory takes the smallest hole that is large
# enough.
#
# While a run keeps freed memory (`penstock.memory.freed_memory_kept`), every array comes from a heap. Holes between
# arrays that live on may be too small for the next one: the heap is then larger than what is in use, by a fifth where
# arrays are large. Threads have heaps of their own, so that what a step has freed does not hold what another thread
# reads for a validation; what those threads hold stays mostly as long as they do, and leaves no holes that count.

_HEAP_UNIT = 64
"""torch aligns its arrays to this many bytes."""
_ALIGNING = 128
"""Bytes by which a hole must exceed an array and its piece: the C library looks for room at any alignment before it
aligns. So the hole that an array leaves does not hold another one of its size, unless there is another hole beside it.
"""
_PIECE, _LEAST = 64, 1024
"""Bytes that aligning cuts off an array of at least so many bytes."""
_PIECES = 7 * 5
"""Pieces that a thread keeps for small objects: the C library does not merge up to seven chunks of each small size, and
those that aligning cuts off have five sizes, of 32 to 96 bytes.
"""


class Heap:
    """A heap: the positions of memory in use, and the holes."""

    def __init__(self, spare: int = 0, pieces: int = 0) -> None:
        """`spare`: bytes by which a hole must exceed what it shall hold. `pieces`: as many of the newest arrays are
        parted from the holes before them by a piece that is in use.
        """
        self.extent, self._spare, self._most = 0, spare, pieces
        self._pieces = deque[int]()
        """The positions of the newest arrays' pieces."""
        self._used: dict[int, tuple[int, int]] = {}
        self._holes: list[tuple[int, int]] = []
        """(size, position) of the holes, ascending."""
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def take(self, name: int, size: int) -> None:
        """Allocate in the smallest hole that is large enough, else at the end of the heap."""
        if not self._most or size < _LEAST:
            self._used[name] = self._place(size), size
            return
        place = self._place(_PIECE + size)
        self._used[name] = place + _PIECE, size
        self._pieces.append(place)
        if len(self._pieces) > self._most:
            self._free(self._pieces.popleft(), _PIECE)

    def _place(self, size: int) -> int:
        at = bisect_left(self._holes, (size + self._spare, 0))
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
        return place

    def give(self, name: int) -> None:
        """Free memory and merge it with the holes beside it."""
        self._free(*self._used.pop(name))

    def _free(self, place: int, size: int) -> None:
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


def heap_peak(events: Sequence[AllocationEvent]) -> PeakMemory:
    """The largest size of the computing thread's heap together with what other threads hold, and its moment."""
    heap, beside, most, moment = Heap(_ALIGNING, _PIECES), 0, 0, ""
    for event in events:
        if event.place == OTHER_THREADS:
            beside += event.bytes
        elif event.bytes > 0:
            heap.take(event.storage, -(-event.bytes // _HEAP_UNIT) * _HEAP_UNIT)
        else:
            heap.give(event.storage)
        if heap.extent + beside > most:
            most, moment = heap.extent + beside, event.moment
    return PeakMemory(most, moment)
