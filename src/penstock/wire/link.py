"""The connection behind a channel; it is reopened when it was lost or the peer has moved."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock.wire.channel import Channel
from penstock.wire.loop import EventLoop
from penstock.wire.options import WireOptions
from penstock.wire.transport import Connection, Group, Owner
from penstock.wire.transport.handshake import new_group
from penstock.wire.transport.inbox import Frames
from penstock.wire.transport.tcp import connecting_socket, endpoint, is_numeric, split_address

_SOONEST, _LATEST = 0.05, 1.0
"""Seconds between two attempts to connect: at first, doubled every time up to the last."""

Call = Callable[[socket.socket, str, bytes, int, Owner], Connection]
"""Makes the connection of a socket that is being connected to a peer: one of a group, with its number there."""


class Answers(Protocol):
    """Receives the answers that arrive on a link, and its loss."""

    def connected(self, link: "Link") -> None:
        """There is a connection to the peer, which has proven to be the peer."""

    def answered(self, link: "Link", frames: Frames) -> None:
        """Something has come. May raise Malformed."""


class Link:
    """Belongs to the loop's thread."""

    def __init__(
        self, channel: Channel, loop: EventLoop, options: WireOptions, call: Call, answers: Answers, more: int
    ) -> None:
        """`more`: connections for large messages, beside the first."""
        self.channel = channel
        self.group: Group | None = None
        """Its connections, when the peer has proven to be the peer."""
        self._loop, self._options, self._call, self._answers = loop, options, call, answers
        self._more, self._is_wide = more, False
        self._name, self._dialled = b"", set[Connection]()
        """Of the group, and its connections that are not open yet."""
        self._address, self._numeric = "", ("", 0)
        self._attempt = 0
        """Counts addresses and attempts, so that what was looked up for an earlier one is not used."""
        self._wait, self._next = _SOONEST, float("inf")

    @property
    def connected(self) -> bool:
        """Whether there is a peer at the other end that has proven to be one."""
        return self.group is not None

    def connect(self, address: str) -> None:
        """To the peer, where it is now; what was asked where it was before is asked again."""
        if address == self._address:
            return
        self.close()
        self._address, self._wait = address, _SOONEST
        self.channel.state = f"there is no connection to {address}"
        self.channel.repeat()
        self._try()

    def tick(self, now: float) -> None:
        """Keep the connection to its time; try again when it is time to."""
        for connection in self._all():
            connection.tick(now)
        if self.group is not None:
            for connection in self.group.worn():
                self._replace(connection.stripe)
        if now >= self._next:
            self._try()

    def soonest(self) -> float:
        """When `tick` should be called, in seconds of `time.monotonic`."""
        return self._next

    def close(self) -> None:
        """Close the connection and drop what waits."""
        self._attempt += 1
        self._next, self._address = float("inf"), ""
        self._drop()

    def widen(self) -> None:
        """Large messages travel here: have connections for them, unless there are."""
        if not self._is_wide and self.group is not None:
            self._is_wide = True
            for stripe in range(1, self._more + 1):
                self._dial(stripe)

    def opened(self, connection: Connection) -> None:
        """See `Owner`."""
        self._dialled.discard(connection)
        if self.group is not None:
            self.group.add(connection)
            return
        self.group = Group(connection)
        self.channel.state = f"it is connected at {self._address} but gave no sign"
        self._wait = _SOONEST
        self._answers.connected(self)

    def received(self, connection: Connection, frames: Frames) -> None:
        """See `Owner`."""
        self._answers.answered(self, frames)

    def lost(self, connection: Connection, reason: str) -> None:
        """What was asked over it may not have left: it is asked again over the next one."""
        if self.group is not None:
            # One more that could not be had is not missed, and one that was replaced has done its work.
            self._dialled.discard(connection)
            if not self.group.ends_with(connection, reason):
                return
        self._drop()
        if connection.peer:
            self.channel.state = f"there is no connection to {self._address}"
            self.channel.repeat()
            self._try()
        elif connection.reached:
            self._failed(f"{self._address} refuses this task, or is not {self.channel.peer} ({reason})")
        else:
            self._failed(f"there is no connection to {self._address}")

    def _failed(self, state: str) -> None:
        self.channel.state = state
        self._next = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, _LATEST)

    def _try(self) -> None:
        self._attempt += 1
        self._next = float("inf")
        try:
            host, port = split_address(endpoint(self._address, self._place))
        except ValueError:
            self._failed(f"there is no connection to {self._address}, which has no port between 1 and 65535")
            return
        if is_numeric(host):
            self._begin(host, port)
        else:
            given = host, port, self._attempt
            threading.Thread(target=self._look_up, args=given, name="wire-looks-up", daemon=True).start()

    @property
    def _place(self) -> int:
        return self._options.class_of(self.channel.flow.priority)

    def _look_up(self, host: str, port: int, attempt: int) -> None:
        """In a thread of its own: the system may take long to know a host's address."""
        try:
            found = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            found = ""

        def dial() -> None:
            if attempt != self._attempt:
                return
            if found:
                self._begin(found, port)
            else:
                self._failed(f"there is no connection to {self._address}, a host that nobody knows")

        self._loop.soon(dial)

    def _begin(self, host: str, port: int) -> None:
        self._numeric, self._name = (host, port), new_group()
        self._dial(0)

    def _replace(self, stripe: int) -> None:
        """Have a connection with fresh keys, unless one is being made."""
        if all(each.stripe != stripe for each in self._dialled):
            self._dial(stripe)

    def _dial(self, stripe: int) -> None:
        options = self._options
        try:
            made = connecting_socket(*self._numeric, options.marks[self._place], options.send_buffer_bytes)
        except OSError as error:
            if self.group is None:
                self._failed(f"there is no connection to {self._address} ({error.strerror})")
            return
        connection = self._call(made, self.channel.peer, self._name, stripe, self)
        self._dialled.add(connection)
        connection.start()

    def _all(self) -> list[Connection]:
        return [*self._dialled, *(self.group.connections() if self.group is not None else ())]

    def _drop(self) -> None:
        """Close all connections."""
        for connection in self._all():
            connection.close()
        self.group, self._is_wide = None, False
        self._dialled.clear()
