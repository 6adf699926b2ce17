"""The simulated allocator of a GPU behaves as torch's does."""

import pytest

from penstock.trace.allocations import AllocationEvent
from penstock.trace.allocators import CachingAllocator, device_peak, segment_bytes
from penstock.traced import MemoryPlace

MB = 1 << 20


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MB),
        (512, 512, 2 * MB),
        (513, 1024, 2 * MB),
        (MB, MB, 2 * MB),
        (MB + 1, MB + 512, 20 * MB),
        (9 * MB, 9 * MB, 20 * MB),
        # What is left of a segment stays with the block unless it is more than 1 MiB.
        (10 * MB, 10 * MB, 10 * MB),
        (10 * MB + 1, 10 * MB + 512, 12 * MB),
        (101 * MB, 102 * MB, 102 * MB),
    ],
)
def test_sizes_are_rounded_and_come_from_segments(asked, allocated, reserved):
    allocator = CachingAllocator()
    allocator.take(asked)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_a_large_block_is_split_only_if_more_than_a_megabyte_is_left():
    allocator = CachingAllocator()
    held = allocator.take(24 * MB)
    allocator.give(held)
    allocator.take(23 * MB)
    assert (allocator.allocated, allocator.reserved) == (24 * MB, 24 * MB), "1 MiB left stays with the block"
    allocator = CachingAllocator()
    allocator.give(allocator.take(24 * MB))
    allocator.take(22 * MB)
    allocator.take(3 * MB // 2)
    assert (allocator.allocated, allocator.reserved) == (22 * MB + 2 * MB, 24 * MB), "the rest serves the next"


def test_freed_neighbours_are_joined_and_the_smallest_fit_is_taken():
    allocator = CachingAllocator()
    blocks = [allocator.take(5 * MB) for _ in range(4)]
    assert allocator.reserved == 20 * MB
    for block in blocks[1:3]:
        allocator.give(block)
    allocator.take(9 * MB)
    assert allocator.reserved == 20 * MB, "two freed blocks beside each other hold it"
    small = CachingAllocator()
    wide, narrow = small.take(40 * MB), small.take(12 * MB)
    small.give(wide)
    small.give(narrow)
    taken = small.take(11 * MB)
    assert taken is narrow and small.allocated == 12 * MB


def test_memory_belongs_to_its_stream_and_its_graphs_pool():
    allocator = CachingAllocator()
    allocator.give(allocator.take(30 * MB))
    allocator.take(30 * MB, MemoryPlace(1))
    assert allocator.reserved == 60 * MB, "another stream's block is not taken"
    allocator.take(30 * MB, MemoryPlace(0, 7))
    assert allocator.reserved == 90 * MB, "nor is a graph's memory taken from outside its pool"


def test_an_emptied_cache_gives_back_whole_segments_but_not_those_of_graphs():
    allocator = CachingAllocator()
    kept, freed = allocator.take(5 * MB), allocator.take(30 * MB)
    recorded = allocator.take(40 * MB, MemoryPlace(-1, 3))
    allocator.give(freed)
    allocator.give(recorded)
    allocator.empty_cache()
    assert allocator.reserved == 20 * MB + 40 * MB
    allocator.give(kept)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved) == (0, 40 * MB)


def test_a_peak_says_when_it_was_and_what_for():
    events = [
        AllocationEvent(1, 3 * MB, "set-up", "weights"),
        AllocationEvent(2, 50 * MB, "step, forward", "activations"),
        AllocationEvent(3, 30 * MB, "step, backward", "gradients"),
        AllocationEvent(2, -50 * MB, "step, forward", "activations"),
        AllocationEvent(0, 0, "capture"),
        AllocationEvent(3, -30 * MB, "step, backward", "gradients"),
    ]
    found = device_peak(events)
    assert found.allocated == 83 * MB and found.reserved == 100 * MB
    assert found.moment == "step, backward"
    assert found.categories == {"weights": 3 * MB, "activations": 50 * MB, "gradients": 30 * MB}


def test_segments_have_three_sizes():
    assert [segment_bytes(size) for size in (512, MB, MB + 512, 10 * MB - 512, 10 * MB, 11 * MB)] == [
        2 * MB,
        2 * MB,
        20 * MB,
        20 * MB,
        10 * MB,
        12 * MB,
    ]
