"""Peers without a post, for tests: they prove who they are and then send whatever a test wants."""

import select
import selectors
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock.graph.arrays import Array
from penstock.wire.message import LIMITS
from penstock.wire.options import WireOptions
from penstock.wire.sockets import split_address
from penstock.wire.transport.connection import CallerSide, HandshakeResult, ServerSide, Side, new_group
from penstock.wire.transport.frames import Inbox, Outbox
from penstock.wire.transport.tls import Credentials, Tls


class RawPeer:
    """A connection, from either side, after its handshake; waits where a post would not."""

    def __init__(self, own: socket.socket, side: Side) -> None:
        own.setblocking(False)
        tls = side.tls.wrap(own, side.server_side)
        try:
            self.socket = greet(tls, side).socket
        except BaseException:
            tls.close()
            raise
        self.outbox, self._inbox = Outbox(side.tls.encrypts), Inbox(LIMITS, side.tls.encrypts)

    @classmethod
    def call(
        cls,
        credentials: Credentials,
        peer: str,
        address: str,
        security: str = "tls",
        group: bytes | None = None,
        stripe: int = 0,
    ) -> Self:
        """Connect to a post."""
        tls = Tls(credentials, WireOptions.model_validate({"security": security}))
        own = socket.create_connection(split_address(address))
        return cls(own, CallerSide(tls, peer, group or new_group(), stripe))

    @classmethod
    def accept(cls, listener: socket.socket, credentials: Credentials, security: str = "tls") -> Self:
        """Be connected to by a post."""
        listener.settimeout(20)
        tls = Tls(credentials, WireOptions.model_validate({"security": security}))
        return cls(listener.accept()[0], ServerSide(tls))

    def send(self, frames: Sequence[bytes | Array]) -> None:
        """Send a message, whatever it holds."""
        self.outbox.put(frames, _nothing)
        while self.outbox.write(self.socket):
            time.sleep(0.001)

    def receive(self, seconds: float = 20.0) -> list[bytes]:
        """The next message's frames."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self._inbox.read(self.socket) < 0
            while (frames := self._inbox.take()) is not None:
                if frames:
                    return [bytes(frame) for frame in frames]
            assert not ended, "the connection was ended"
            time.sleep(0.001)
        raise AssertionError("nothing came")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()


def greet(own: socket.socket, side: Side) -> HandshakeResult:
    """Carry out a handshake."""
    steps = side.steps(own)  # type: ignore[arg-type]
    while True:
        try:
            waits_for = next(steps)
        except StopIteration as done:
            session: HandshakeResult = done.value
            return session
        sides: tuple[list[object], list[object]] = ([own], []) if waits_for == selectors.EVENT_READ else ([], [own])
        assert any(select.select(*sides, [], 20)), "nothing came"


def _nothing() -> None:
    """Nobody waits."""
