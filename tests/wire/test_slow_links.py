"""A large record that comes a little at a time: the wire's thread is woken when there is enough of it, or all."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from raw_peer import RawPeer

from penstock.wire.message import LIMITS
from penstock.wire.options import WireOptions
from penstock.wire.sockets import Happened
from penstock.wire.transport.connection import CallerSide, Connection, ServerSide, new_group
from penstock.wire.transport.frames import Frames
from penstock.wire.transport.tls import Tls, make_credentials

HEARTBEAT = 5.0
RECORD = 1 << 18
WORTH = 1 << 16


class Loop:
    """Has what an event loop would call when the socket can be read."""

    reads: Happened | None = None

    def watch(self, own: socket.socket, reads: Happened | None, writes: Happened | None) -> None:
        self.reads = reads

    def unwatch(self, own: socket.socket) -> None:
        self.reads = None


class Owner:
    """Notes what happens on a connection."""

    def __init__(self) -> None:
        self.received_frames: list[Frames] = []
        self.reasons: list[str] = []

    def opened(self, connection: Connection) -> None:
        """Nothing to do."""

    def received(self, connection: Connection, frames: Frames) -> None:
        self.received_frames.append(frames)

    def lost(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)


class Meeting:
    """A connection, and the peer at its other end."""

    def __init__(self) -> None:
        self.loop, self.owner = Loop(), Owner()
        keys, options = make_credentials(["one", "two"]), WireOptions(security="token")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = socket.create_connection(listener.getsockname())
            own, _ = listener.accept()
        own.setblocking(False)
        peers = list[RawPeer]()
        greeting = threading.Thread(
            target=lambda: peers.append(RawPeer(far, CallerSide(Tls(keys["one"], options), "two", new_group())))
        )
        greeting.start()
        self.connection = Connection(
            self.loop, own, ServerSide(Tls(keys["two"], options)), self.owner, LIMITS, HEARTBEAT
        )
        self.connection.start()
        while not self.connection.open:
            self.read()
        greeting.join()
        (self.peer,) = peers

    @property
    def socket(self) -> socket.socket:
        return self.connection.socket

    def is_readable(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])

    def read(self, seconds: float = 20.0) -> None:
        """As the event loop does when the socket can be read, which it must be in time."""
        assert select.select([self.socket], [], [], seconds)[0]
        assert self.loop.reads is not None
        self.loop.reads()

    def close(self) -> None:
        self.connection.close()
        self.peer.socket.close()


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting()
    yield made
    made.close()


def begin_record(meeting: Meeting) -> memoryview:
    """Have the head of a message read, and return the bytes of its record."""
    sent = list[bytes]()

    class Kept:
        def sendmsg(self, views: list[memoryview]) -> int:
            sent.extend(map(bytes, views))
            return sum(map(len, views))

    meeting.peer.outbox.put([b"head", np.arange(RECORD, dtype=np.uint8)], lambda: None)
    meeting.peer.outbox.write(Kept())  # type: ignore[arg-type]
    data = b"".join(sent)
    head = len(data) - RECORD
    meeting.peer.socket.setblocking(True)
    meeting.peer.socket.sendall(data[:head])
    meeting.read()
    return memoryview(data)[head:]


def arrived(own: socket.socket, count: int) -> None:
    """Wait for bytes that the socket does not tell of."""
    while True:
        with suppress(BlockingIOError):
            if len(own.recv(count, socket.MSG_PEEK)) == count:
                return
        time.sleep(0.001)


def test_a_little_of_a_record_wakes_nobody_and_the_last_of_it_does(meeting: Meeting) -> None:
    record, reads = begin_record(meeting), 0
    for first in range(0, RECORD, 1 << 13):
        meeting.peer.socket.sendall(record[first : first + (1 << 13)])
        if meeting.is_readable():
            meeting.read()
            reads += 1
    while not meeting.owner.received_frames:
        meeting.read()
        reads += 1
    (frames,) = meeting.owner.received_frames
    assert np.array_equal(frames[1], np.arange(RECORD, dtype=np.uint8))
    assert reads <= RECORD // WORTH + 1
    # Whatever comes next is read at once, however short it is.
    meeting.peer.send([b"next"])
    meeting.read()
    assert [bytes(frame) for frame in meeting.owner.received_frames[1]] == [b"next"]


def test_a_peer_that_sends_less_than_is_waited_for_is_not_silent(meeting: Meeting) -> None:
    record = begin_record(meeting)
    meeting.peer.socket.sendall(record[:100])
    arrived(meeting.socket, 100)
    # Long before the peer would be given up, what it has sent is heard.
    meeting.connection.tick(time.monotonic() + HEARTBEAT / 2)
    with pytest.raises(BlockingIOError):
        meeting.socket.recv(1, socket.MSG_PEEK)
    assert meeting.connection.open
    meeting.connection.tick(time.monotonic() + HEARTBEAT + 1)
    assert meeting.owner.reasons == ["it was silent for too long"]


def test_the_end_of_a_connection_is_seen_in_the_middle_of_a_record(meeting: Meeting) -> None:
    record = begin_record(meeting)
    meeting.peer.socket.sendall(record[:100])
    meeting.peer.socket.shutdown(socket.SHUT_WR)
    while not meeting.owner.reasons:
        meeting.read()
    assert meeting.owner.reasons == ["it ended the connection"]
