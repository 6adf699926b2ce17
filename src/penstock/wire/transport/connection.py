"""TCP connections between tasks, as the wire's thread sees them: connecting, handshake, messages, end; the group of one
channel's connections; and the listener, which accepts them and bounds how many there may be.
"""

import logging
import secrets
import selectors
import socket
import ssl
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from penstock.graph.arrays import Array
from penstock.wire.message import Limits
from penstock.wire.sockets import EventLoop
from penstock.wire.transport.frames import Frames
from penstock.wire.transport.stream import FINISHED, Stream, StreamThread, close_socket
from penstock.wire.transport.tls import PROOF_BYTES, HandshakeError, Tls

# How a connection begins: TLS's handshake, a greeting of the caller, and the server's welcome. Both are encrypted,
# whatever the setting of security is:
#
# caller -> server   greeting: security, group and stripe, the caller's name, a proof
#
# server -> caller   welcome: a proof
#
# Proofs are empty where certificates are the run's own, since a certificate then identifies its task. The welcome tells
# the caller that it was accepted: in TLS 1.3 a caller is done before the server has checked its certificate. With
# `token` both sides then end TLS, and what follows is sent unencrypted.

GREETING = struct.Struct(f"<6s16sB64s{PROOF_BYTES}s")
GROUP_BYTES = 16
MOST_STRIPES = 16
"""The most connections of one group."""

T = TypeVar("T")
Steps = Generator[int, None, "HandshakeResult"]
"""Yields what it waits for (EVENT_READ or EVENT_WRITE of `selectors`), and returns the result."""


class HandshakeResult(NamedTuple):
    """The result of a handshake."""

    peer: str
    """The name of the authenticated peer."""
    socket: socket.socket
    """The socket to use from now on; an SSLSocket unless bytes are sent unencrypted."""
    group: bytes
    """The name of the group: the same for all connections of one caller's channel."""
    stripe: int
    """The connection's number in the group: 0 is the first."""


class Side(Protocol):
    """One side of a handshake."""

    server_side: bool
    tls: Tls
    group: bytes
    stripe: int

    def steps(self, own: ssl.SSLSocket) -> Steps:
        """Carry out the handshake. Raises HandshakeError or OSError."""


def new_group() -> bytes:
    """A random name for a group."""
    return secrets.token_bytes(GROUP_BYTES)


class CallerSide:
    """The `Side` that connects to a peer."""

    server_side = False

    def __init__(self, tls: Tls, peer: str, group: bytes, stripe: int = 0) -> None:
        self.tls, self._peer, self.group, self.stripe = tls, peer, group, stripe

    def steps(self, own: ssl.SSLSocket) -> Steps:
        tls, me, peer = self.tls, self.tls.credentials.name, self._peer
        yield from _tried(own.do_handshake)
        tls.check(own)
        if tls.pinned:
            # Nothing is sent to a peer that is not the expected one.
            tls.verify(own, "server", me, peer, b"")
        proof = tls.proof(own, "caller", me, peer)
        greeting = GREETING.pack(tls.security.encode(), self.group, self.stripe, me.encode(), proof)
        yield from _tried(lambda: own.send(greeting))
        welcome = yield from _received(own, PROOF_BYTES)
        tls.verify(own, "server", me, peer, welcome)
        plain = yield from _unwrapped(tls, own)
        return HandshakeResult(peer, plain, self.group, self.stripe)


class ServerSide:
    """The `Side` that accepts a connection."""

    server_side, group, stripe = True, b"", 0

    def __init__(self, tls: Tls) -> None:
        self.tls = tls

    def steps(self, own: ssl.SSLSocket) -> Steps:
        tls, me = self.tls, self.tls.credentials.name
        yield from _tried(own.do_handshake)
        tls.check(own)
        if tls.pinned:
            tls.owner(own)
        greeting = yield from _received(own, GREETING.size)
        security, group, stripe, name, proof = GREETING.unpack(greeting)
        if security.rstrip(b"\0") != tls.security.encode():
            raise HandshakeError("it has another setting of security")
        if stripe >= MOST_STRIPES:
            raise HandshakeError("it has too many connections")
        peer = name.rstrip(b"\0").decode("ascii", "replace")
        tls.verify(own, "caller", peer, me, proof)
        welcome = tls.proof(own, "server", peer, me)
        yield from _tried(lambda: own.send(welcome))
        plain = yield from _unwrapped(tls, own)
        return HandshakeResult(peer, plain, group, stripe)


def _tried(step: Callable[[], T]) -> Generator[int, None, T]:
    """Retry a step until it need not wait for the other side any more."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            yield selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            yield selectors.EVENT_WRITE


def _received(own: ssl.SSLSocket, size: int) -> Generator[int, None, bytes]:
    """Receive exactly so many bytes: no more are read before the handshake is done."""
    got = b""
    while len(got) < size:
        some = yield from _tried(partial(own.recv, size - len(got)))
        if not some:
            raise HandshakeError("it ended the connection instead of proving who it is")
        got += some
    return got


def _unwrapped(tls: Tls, own: ssl.SSLSocket) -> Generator[int, None, socket.socket]:
    """The socket to continue with: the same, or an unencrypted one when both sides have ended TLS."""
    if tls.encrypts:
        return own
    yield from _tried(own.unwrap)
    # An SSLSocket without TLS still refuses to send several buffers at once.
    return socket.socket(own.family, own.type, own.proto, own.detach())


log = logging.getLogger("penstock.wire")

HANDSHAKE_SECONDS = 10.0
"""Seconds in which both sides must authenticate."""
CONNECT_SECONDS = 3.0
"""Seconds in which a caller must be connected."""

_UNKNOWN = "an unauthenticated connection"


class Owner(Protocol):
    """Its methods are called with the events of a connection, in the wire's thread."""

    def opened(self, connection: "Connection") -> None:
        """Called when the peer is authenticated, before any of its frames."""

    def received(self, connection: "Connection", frames: Frames) -> None:
        """A message has arrived. May raise Malformed."""

    def lost(self, connection: "Connection", reason: str) -> None:
        """The connection has ended, not by `close`."""


class Connection:
    """One connection. The wire's thread owns it and carries out the handshake; its stream may then belong to another
    thread.
    """

    def __init__(
        self,
        loop: EventLoop,
        own: socket.socket,
        side: Side,
        owner: Owner,
        limits: Limits,
        heartbeat: float,
        lanes: Sequence[StreamThread] = (),
        connecting: bool = False,
    ) -> None:
        """`heartbeat`: seconds without a byte after which the peer counts as lost; `lanes` are threads for large
        messages; `connecting`: not connected yet.
        """
        self.socket, self.peer, self.open, self.closed = own, "", False, False
        self.reached = not connecting
        """Whether the connection was accepted."""
        self.group, self.stripe = side.group, side.stripe
        """The group and the number of the connection in it (`HandshakeResult`); known when an accepted one is open."""
        self.finishing = False
        """Whether another connection has replaced it."""
        self.queued = 0
        """Bytes that are queued and have not left."""
        self._loop, self._side, self._owner = loop, side, owner
        self._limits, self._heartbeat, self._lanes = limits, heartbeat, lanes
        self._steps: Steps | None = None
        self._stream: Stream | None = None
        self._lane: StreamThread | None = None
        self._began = time.monotonic()

    def start(self) -> None:
        """Begin the handshake once the socket is connected."""
        if self.reached:
            self._guarded(self._start_handshake)
        else:
            self._loop.watch(self.socket, None, lambda: self._guarded(self._connected))

    def send(self, frames: Sequence[bytes | Array], size: int, left: Callable[[], None]) -> None:
        """Send a message of `size` bytes; `left` is called when its memory is no longer read, also
        if it never leaves.
        """
        self.queued += size

        def is_left() -> None:
            self.queued -= size
            left()

        self._in_lane(lambda stream: stream.send(frames, lambda: self._told(is_left)))

    def pause(self, paused: bool) -> None:
        """Stop or resume reading from the peer."""
        self._in_lane(lambda stream: stream.pause(paused))

    def finish(self) -> None:
        """End when both directions are done, as another connection has replaced this one."""
        self.finishing = True
        begins = not self._side.server_side
        self._in_lane(lambda stream: stream.finish(begins))

    def tick(self, now: float) -> None:
        """Send a heartbeat; end the connection if the peer sent none, or did not authenticate in time."""
        if self.closed:
            return
        if self._stream is None:
            if now - self._began > (HANDSHAKE_SECONDS if self.reached else CONNECT_SECONDS):
                self._end("it did not answer in time" if self.reached else "nobody answers there")
        elif self._lane is None:
            self._stream.tick(now)

    def close(self) -> None:
        """Close it. What was written still leaves; what was not never will."""
        if self.closed:
            return
        self.closed, self.open = True, False
        if self._stream is None:
            self._loop.unwatch(self.socket)
            if self._steps is not None:
                self._steps.close()
            close_socket(self.socket, 0)
        else:
            self._in_lane(lambda stream: stream.close())

    @property
    def bytes(self) -> int:
        """The bytes that it has carried, in the busier direction."""
        return 0 if self._stream is None else self._stream.bytes

    def _connected(self) -> None:
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "nobody answers there")
        self.reached, self._began = True, time.monotonic()
        self._start_handshake()

    def _start_handshake(self) -> None:
        self._loop.unwatch(self.socket)
        tls = self._side.tls.wrap(self.socket, self._side.server_side)
        self.socket, self._steps = tls, self._side.steps(tls)
        self._step()

    def _step(self) -> None:
        assert self._steps is not None
        try:
            waits_for = next(self._steps)
        except StopIteration as done:
            self._begin(done.value)
            return
        again = self._again if waits_for == selectors.EVENT_READ else None
        self._loop.watch(self.socket, again, None if again else self._again)

    def _again(self) -> None:
        self._guarded(self._step)

    def _begin(self, session: HandshakeResult) -> None:
        self._loop.unwatch(session.socket)
        self.peer, self.socket, self.group, self.stripe = session
        if self.stripe and self._lanes:
            self._lane = self._lanes[self.stripe % len(self._lanes)]
        loop = self._loop if self._lane is None else self._lane.loop
        self._stream = stream = Stream(
            loop, self.socket, self.peer, self._limits, self._heartbeat, self._received, self._ended
        )
        self.open = True
        self._owner.opened(self)
        if self._lane is None:
            stream.start()
        else:
            lane = self._lane
            loop.soon(lambda: lane.add(stream))

    def _in_lane(self, step: Callable[[Stream], None]) -> None:
        """Run a step on the stream in the thread that owns it."""
        stream = self._stream
        assert stream is not None
        if self._lane is None:
            step(stream)
        else:
            self._lane.loop.soon(lambda: step(stream))

    def _told(self, step: Callable[[], None]) -> None:
        """Run a step in the wire's thread."""
        if self._lane is None:
            step()
        else:
            self._loop.soon(step)

    def _received(self, frames: Frames) -> None:
        if self._lane is None:
            self._owner.received(self, frames)
        else:
            self._loop.soon(lambda: self._guarded(lambda: self._owner.received(self, frames)))

    def _ended(self, reason: str) -> None:
        self._told(lambda: self._end(reason))

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; an error ends only this connection."""
        if self.closed:
            return
        try:
            step()
        except (OSError, HandshakeError) as error:
            self._end(_reason(error))
        except Exception as error:
            log.exception("A connection to %s failed and is closed.", self.peer or _UNKNOWN)
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._owner.lost(self, reason)


def _reason(error: Exception) -> str:
    """An error without the line of Python's source that OpenSSL's errors name."""
    return f"TLS: {error.reason}" if isinstance(error, ssl.SSLError) and error.reason else str(error)


# The connections of one channel between two tasks: the first, and others for large messages. One connection is
# encrypted by one core at each end. Where processes have threads for it (`StreamThread`), a channel that sends or
# receives large messages has as many more connections, and each message takes the one with the fewest queued bytes. A
# connection that has carried much is replaced by one with fresh keys; what is in flight on it still arrives.

LARGE_BYTES = 1 << 19
"""Messages of at least this size do not use the first connection if there are others."""
KEY_BYTES = 1 << 36
"""Bytes sent in one direction before a connection is replaced. AES-GCM's keys are good for 2^38 in TLS 1.3 (RFC 8446,
5.5), and Python's `ssl` cannot change them within a connection.
"""


class ConnectionGroup:
    """The connections of one channel. Used only by the wire's thread."""

    def __init__(self, first: Connection) -> None:
        self._current = {first.stripe: first}
        self._finishing: set[Connection] = set()

    @property
    def first(self) -> Connection:
        """The connection that any message can take."""
        return self._current[0]

    def add(self, connection: Connection) -> None:
        """Add a connection; it replaces one with the same number."""
        former = self._current.get(connection.stripe)
        self._current[connection.stripe] = connection
        if former is not None:
            self._finishing.add(former)
            former.finish()

    def ends_with(self, connection: Connection, reason: str) -> bool:
        """Remove a connection that has ended; returns whether the group has ended with it, since
        messages may be lost.
        """
        if connection in self._finishing and reason == FINISHED:
            self._finishing.discard(connection)
            return False
        return connection in self.connections()

    def choose(self, size: int) -> Connection:
        """The connection for a message of so many bytes."""
        others = [each for stripe, each in self._current.items() if stripe] if size >= LARGE_BYTES else []
        return min(others, key=lambda each: each.queued) if others else self.first

    def worn(self) -> list[Connection]:
        """Connections that should be replaced."""
        return [each for each in self._current.values() if each.bytes >= KEY_BYTES]

    def connections(self) -> list[Connection]:
        """All connections, including those that are being replaced."""
        return [*self._current.values(), *self._finishing]

    def close(self) -> None:
        """Close all connections to the peer, those that are being replaced among them."""
        for connection in self.connections():
            connection.close()


# The listener bounds the connections: unauthenticated ones, and those of each peer.

MAX_UNAUTHENTICATED = 256
"""The most unauthenticated connections; beyond it the oldest is closed. A peer needs milliseconds to authenticate."""
MAX_PER_PEER = 512
"""The most connections of one peer; beyond it the oldest is closed. Each of its flows has one, or a few."""
_AT_ONCE = 64
"""Connections accepted before other sockets are served."""

Accept = Callable[[socket.socket, int, Owner], Connection]
"""Makes the connection of a socket that was accepted at a port."""


class Requests(Protocol):
    """Receives the requests of peers."""

    def asked(self, port_index: int, connection: Connection, frames: Frames) -> None:
        """A request has come. May raise Malformed."""


class Listener:
    """One listening port, and the `Owner` of its connections until their peers are authenticated. Used only by the
    loop's thread.
    """

    def __init__(
        self, loop: EventLoop, own: socket.socket, port_index: int, accept: Accept, requests: Requests
    ) -> None:
        """`port_index`: which of the process's ports it is."""
        self.socket, self.refused = own, 0
        self.groups: dict[int, ConnectionGroup] = {}
        """Connections of peers' channels, by their number."""
        self._loop, self._port_index, self._accept, self._requests = loop, port_index, accept, requests
        self._unauthenticated: dict[Connection, None] = {}
        self._numbers: dict[Connection, int] = {}
        self._known: dict[tuple[str, bytes], int] = {}
        """Numbers of groups by the peer and the name that it gave them."""
        self._of_peer: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._last, self._paused = 0, False
        loop.watch(own, self._accept_connections, None)

    def number_of(self, connection: Connection) -> int:
        """The key of a connection's group in `groups`."""
        return self._numbers[connection]

    def pause(self, paused: bool) -> None:
        """Stop or resume reading requests from peers."""
        self._paused = paused
        for connection in self._numbers:
            connection.pause(paused)

    def tick(self, now: float) -> None:
        """Check the timeouts of connections."""
        for connection in [*self._unauthenticated, *self._numbers]:
            connection.tick(now)
        self._loop.watch(self.socket, self._accept_connections, None)

    def close(self) -> None:
        """Stop listening, and close all connections that were accepted."""
        self._loop.unwatch(self.socket)
        self.socket.close()
        for connection in [*self._unauthenticated, *self._numbers]:
            connection.close()
        for each in (self._unauthenticated, self._numbers, self._known, self.groups):
            each.clear()

    def opened(self, connection: Connection) -> None:
        """Add an authenticated connection to its group, or begin a group with it."""
        key = connection.peer, connection.group
        number = self._known.get(key)
        if number is None and connection.stripe:
            raise HandshakeError("the first of its connections has ended")
        self._unauthenticated.pop(connection, None)
        if number is None:
            self._last = number = self._known[key] = self._last + 1
            self.groups[number] = ConnectionGroup(connection)
        else:
            self.groups[number].add(connection)
        self._numbers[connection] = number
        own = self._of_peer[connection.peer]
        own[connection] = None
        if len(own) > MAX_PER_PEER:
            self._drop(next(iter(own)), "its peer has too many connections")
        connection.pause(self._paused)

    def received(self, connection: Connection, frames: Frames) -> None:
        self._requests.asked(self._port_index, connection, frames)

    def lost(self, connection: Connection, reason: str) -> None:
        if connection in self._unauthenticated:
            del self._unauthenticated[connection]
            self.refused += 1
            log.info("A connection was refused: %s.", reason)
        number = self._forget(connection)
        if number in self.groups and self.groups[number].ends_with(connection, reason):
            del self._known[connection.peer, connection.group]
            for each in self.groups.pop(number).connections():
                each.close()
                self._forget(each)

    def _forget(self, connection: Connection) -> int:
        """Remove a connection from its group; returns the group's number."""
        self._of_peer[connection.peer].pop(connection, None)
        return self._numbers.pop(connection, -1)

    def _drop(self, connection: Connection, reason: str) -> None:
        connection.close()
        self.lost(connection, reason)

    def _accept_connections(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._make_room(error)
                return
            try:
                accepted.setblocking(False)
                connection = self._accept(accepted, self._port_index, self)
            except OSError as error:
                # The connection was closed before it was begun.
                accepted.close()
                log.info("A connection was refused: %s.", error)
                continue
            self._unauthenticated[connection] = None
            if len(self._unauthenticated) > MAX_UNAUTHENTICATED:
                self._drop(next(iter(self._unauthenticated)), "too many connections are not authenticated")
            connection.start()

    def _make_room(self, error: OSError) -> None:
        """Accepting failed, most likely for lack of a file descriptor: drop an unauthenticated connection to free one.

        If there is none, no connection is accepted until the next tick.
        """
        log.warning("A connection could not be accepted (%s).", error)
        if self._unauthenticated:
            self._drop(next(iter(self._unauthenticated)), "the process has too many open files")
        else:
            self._loop.unwatch(self.socket)
