"""Room for batches: enough for those like the ones that were drawn, never more than any can need."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling.device.block import Room, room_for
from penstock.sampling.device.program import DeviceProgram, neighbour_rules


def largest_room(batch_size, fanouts, vertices):
    return DeviceProgram(neighbour_rules(fanouts)).largest_room(batch_size, vertices, 1 << 40)


fanout_lists = st.lists(st.integers(1, 32), min_size=1, max_size=4)


@given(st.integers(1, 500), fanout_lists, st.integers(1, 10_000))
def test_the_largest_room(batch_size, fanouts, vertices):
    room = largest_room(batch_size, fanouts, vertices)
    assert room.rows[0] == batch_size and len(room.edges) == len(fanouts)
    for rows, edges, after, fanout in zip(room.rows, room.edges, room.rows[1:], fanouts, strict=False):
        assert edges == rows * fanout and after == min(vertices, rows + edges)


@given(st.integers(1, 500), fanout_lists, st.lists(st.floats(0.1, 1.0), min_size=1, max_size=8))
def test_room_holds_what_it_was_made_from_and_grows_when_asked(batch_size, fanouts, shares):
    largest = largest_room(batch_size, fanouts, 1 << 30)
    samples = [[max(1, int(size * share)) for size in largest.sizes] for share in shares]
    room = room_for(samples, batch_size, largest)
    for sizes in samples:
        assert all(size <= held for size, held in zip(sizes, room.sizes, strict=True))
    assert all(held <= most for held, most in zip(room.edges, largest.edges, strict=True))
    assert list(room.rows) == sorted(room.rows)
    larger = room.enlarged(largest.sizes, largest)
    assert larger.holds(room) and larger.holds(largest)


def test_sizes_go_hop_by_hop():
    assert Room((4, 10, 20), (12, 30)).sizes == (12, 10, 30, 20)
