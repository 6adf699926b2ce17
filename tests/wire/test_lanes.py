"""Large messages over connections and threads of their own, or over the first one: the same comes of it."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from meetings import Cable, Meeting, echo, until

from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.transport.connection import LARGE_BYTES

MIB = 1 << 20


@pytest.fixture(params=[0, 1, 3])
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_long_arrays_arrive_as_they_were(meeting: Meeting, security: str, threads: int) -> None:
    """Several callers at once, with large arrays and small ones."""
    a, b = meeting("a", "b", security=security, io_threads=threads)
    b.serve("echo", echo)
    generator = np.random.default_rng(threads)
    sizes = [MIB, 2 * MIB + 1, 20_000, 3]
    arrays = [generator.integers(0, 256, size, np.uint8) for size in sizes]
    calls = [
        a.channel("b", f"flow {flow}").start(Message("echo", {"n": n}, tuple(arrays[n % 4 :])))
        for flow in range(2)
        for n in range(6)
    ]
    for call in calls:
        answer = call.result()
        for one, other in zip(arrays[answer.body["n"] % 4 :], answer.arrays, strict=True):
            np.testing.assert_array_equal(one, other)
    assert (a.malformed, b.malformed, a.refused, b.refused) == (0, 0, 0, 0)


def test_links_that_are_cut_free_what_was_being_sent(meeting: Meeting, threads: int) -> None:
    """All parts come once and in order, and of each the memory is told to be free as often as it was sent."""
    a, b = meeting("a", "b", io_threads=threads)
    made, freed = [], threading.Semaphore(0)

    def parts(message: Message, sender: str) -> Iterator[Message]:
        for number in range(30):
            made.append(number)
            yield Message("part", {"n": number}, (np.full(MIB + 7, number, np.uint8),), done=freed.release)

    b.serve("parts", parts)
    with Cable(b) as cable:
        a.meet("b", cable.address)
        got = []
        pending = a.channel("b").start(Message("parts"))
        for part in pending.parts():
            got.append(part.body["n"])
            assert (part.arrays[0] == got[-1]).all()
            if got[-1] in (4, 12) and not pending.over:
                cable.cut()
        assert got == list(range(30))
        until(lambda: b._serving._under_way == set())
        for _ in made:
            assert freed.acquire(timeout=20)
    until(lambda: b._egress.in_flight() == 0)


def test_closing_ends_the_threads(meeting: Meeting) -> None:
    a, b = meeting("a", "b", io_threads=3)
    b.serve("echo", echo)
    a.channel("b").call(Message("echo", arrays=(np.zeros(MIB),)))
    for endpoint in (a, b):
        endpoint.close()
    assert not [thread for thread in threading.enumerate() if "lane" in thread.name]


def test_a_post_has_threads_by_its_cores(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((1, 0), (2, 0), (4, 1), (16, 4), (96, 4)):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, cores=cores: set(range(cores)), raising=False)
        (endpoint,) = meeting("a")
        assert isinstance(endpoint, Endpoint)
        assert len(endpoint._lanes) == expected


@pytest.mark.parametrize("security", ["tls", "token"])
def test_large_messages_have_connections_of_their_own(meeting: Meeting, security: str) -> None:
    """Both ways, from the first large message on; small ones keep the first connection."""
    a, b = meeting("a", "b", security=security, io_threads=2)
    b.serve("echo", echo)
    channel, large = a.channel("b"), np.zeros(LARGE_BYTES, np.uint8)
    channel.call(Message("echo", arrays=(large[:1000],)))
    link = a._links["b", ""]
    assert link.group is not None
    assert len(link.group.connections()) == 1
    channel.call(Message("echo", arrays=(large,)))
    until(lambda: link.group is not None and len(link.group.connections()) == 3)
    (there,) = b._exchange.listeners[0].groups.values()
    until(lambda: len(there.connections()) == 3)
    first = link.group.first
    sent = first.bytes
    for _ in range(4):
        channel.call(Message("echo", arrays=(large,)))
    assert first.bytes - sent < LARGE_BYTES
    assert link.group.choose(10) is first
    assert there.choose(LARGE_BYTES) is not there.first
