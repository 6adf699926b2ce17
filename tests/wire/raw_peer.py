"""Peers without a post, for tests: they prove who they are and then send whatever a test wants."""

import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock.graph.arrays import Array
from penstock.wire import Credentials
from penstock.wire.message import LIMITS
from penstock.wire.transport import SECURITIES, Workers
from penstock.wire.transport.handshake import Handshake, PeerSession, client_handshake, server_handshake
from penstock.wire.transport.inbox import Inbox
from penstock.wire.transport.outbox import Outbox
from penstock.wire.transport.tcp import split_address


class RawPeer:
    """A connection, from either side, after its handshake; waits where a post would not."""

    def __init__(self, own: socket.socket, handshake: Handshake, security: str) -> None:
        self.socket = own
        own.settimeout(20)
        try:
            session = _greet(own, handshake)
        except BaseException:
            own.close()
            raise
        own.setblocking(False)
        make, workers = SECURITIES[security].cipher, Workers("raw", 0)
        sending, receiving = (
            None if make is None else make(key, False) for key in (session.sending, session.receiving)
        )
        self.outbox = Outbox(sending, workers, _nothing)
        self._inbox = Inbox(receiving, workers, LIMITS, _nothing)

    @classmethod
    def call(cls, credentials: Credentials, peer: str, address: str, security: str = "aes") -> Self:
        """Connect to a post."""
        own = socket.create_connection(split_address(address))
        return cls(own, client_handshake(credentials, peer, security), security)

    @classmethod
    def accept(cls, listener: socket.socket, credentials: Credentials, security: str = "aes") -> Self:
        """Be connected to by a post."""
        listener.settimeout(20)
        return cls(listener.accept()[0], server_handshake(credentials, security), security)

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


def _greet(own: socket.socket, handshake: Handshake) -> PeerSession:
    said, wanted = next(handshake)
    while True:
        own.sendall(said)
        got = b""
        while len(got) < wanted:
            some = own.recv(wanted - len(got))
            if not some:
                raise ConnectionError("refused")
            got += some
        try:
            said, wanted = handshake.send(got)
        except StopIteration as done:
            session: PeerSession = done.value
            own.sendall(session.proof)
            return session


def _nothing() -> None:
    """Nobody waits."""
