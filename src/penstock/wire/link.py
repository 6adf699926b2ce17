"""The connection behind a channel; it is reopened when it was lost or the peer has moved."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock.wire.channel import Channel
from penstock.wire.loop import EventLoop
from penstock.wire.options import WireOptions
from penstock.wire.transport import Connection, Owner
from penstock.wire.transport.inbox import Frames
from penstock.wire.transport.tcp import connecting_socket, endpoint, is_numeric, split_address

_SOONEST, _LATEST = 0.05, 1.0
"""Seconds between two attempts to connect: at first, doubled every time up to the last."""

Call = Callable[[socket.socket, str, Owner], Connection]
"""Makes the connection of a socket that is being connected to a peer."""


class Answers(Protocol):
    """Receives the answers that arrive on a link, and its loss."""

    def connected(self, link: "Link") -> None:
        """There is a connection to the peer, which has proven to be the peer."""

    def answered(self, link: "Link", frames: Frames) -> None:
        """Something has come. May raise Malformed."""


class Link:
    """Belongs to the loop's thread."""

    def __init__(self, channel: Channel, loop: EventLoop, options: WireOptions, call: Call, answers: Answers) -> None:
        self.channel = channel
        self.connection: Connection | None = None
        self._loop, self._options, self._call, self._answers = loop, options, call, answers
        self._address = ""
        self._attempt = 0
        """Counts addresses and attempts, so that what was looked up for an earlier one is not used."""
        self._wait, self._next = _SOONEST, float("inf")

    @property
    def connected(self) -> bool:
        """Whether there is a peer at the other end that has proven to be one."""
        return self.connection is not None and self.connection.open

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
        if self.connection is not None:
            self.connection.tick(now)
        if now >= self._next:
            self._try()

    def soonest(self) -> float:
        """When `tick` should be called, in seconds of `time.monotonic`."""
        return self._next

    def close(self) -> None:
        """Close the connection and drop what waits."""
        self._attempt += 1
        self._next, self._address = float("inf"), ""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def opened(self, connection: Connection) -> None:
        """See `Owner`."""
        self.channel.state = f"it is connected at {self._address} but gave no sign"
        self._wait = _SOONEST
        self._answers.connected(self)

    def received(self, connection: Connection, frames: Frames) -> None:
        """See `Owner`."""
        self._answers.answered(self, frames)

    def lost(self, connection: Connection, reason: str) -> None:
        """What was asked over it may not have left: it is asked again over the next one."""
        self.connection = None
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
            self._dial(host, port)
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
                self._dial(found, port)
            else:
                self._failed(f"there is no connection to {self._address}, a host that nobody knows")

        self._loop.soon(dial)

    def _dial(self, host: str, port: int) -> None:
        options = self._options
        try:
            made = connecting_socket(host, port, options.marks[self._place], options.send_buffer_bytes)
        except OSError as error:
            self._failed(f"there is no connection to {self._address} ({error.strerror})")
            return
        self.connection = self._call(made, self.channel.peer, self)
        self.connection.start()
