"""Accepts connections, and bounds how many there may be: unauthenticated ones, and those of each peer."""

import logging
import socket
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from penstock.wire.sockets import EventLoop
from penstock.wire.transport.connection import Connection, Owner
from penstock.wire.transport.frames import Frames
from penstock.wire.transport.stream import FINISHED
from penstock.wire.transport.tls import HandshakeError

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
        """Close all connections."""
        for connection in self.connections():
            connection.close()


log = logging.getLogger("penstock.wire")

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
        """Close all connections."""
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
