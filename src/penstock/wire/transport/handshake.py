"""How a connection begins: TLS's handshake, a greeting of the caller, and the server's welcome.

All of both travels encrypted, whatever the setting of security is:

    caller -> server   greeting: security, group and stripe, the caller's name, a proof
    server -> caller   welcome: a proof

Proofs are empty where certificates are the run's own, since a certificate then says who shows it. The welcome tells the
caller that it was believed: in TLS 1.3 a caller is done before the server has looked at its certificate. With `token`
both sides then end TLS, and what follows travels in the clear.
"""

import secrets
import selectors
import socket
import ssl
import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from penstock.wire.transport.tls import PROOF_BYTES, HandshakeError, Tls

GREETING = struct.Struct(f"<6s16sB64s{PROOF_BYTES}s")
GROUP_BYTES = 16
MOST_STRIPES = 16
"""Connections of one group."""

T = TypeVar("T")
Steps = Generator[int, None, "Session"]
"""Yields what it waits for (EVENT_READ or EVENT_WRITE of `selectors`), and returns the session."""


class Session(NamedTuple):
    """What a handshake has come to."""

    peer: str
    """Who is at the other end."""
    socket: socket.socket
    """From now on; an SSLSocket unless bytes travel in the clear."""
    group: bytes
    """Connections of one caller's channel have the same,"""
    stripe: int
    """and numbers of their own: 0 is the first."""


class Side(Protocol):
    """One side of a handshake."""

    server_side: bool
    tls: Tls
    group: bytes
    stripe: int

    def steps(self, own: ssl.SSLSocket) -> Steps:
        """Carry it out. Raises HandshakeError or OSError."""


def new_group() -> bytes:
    """A group that nobody else has."""
    return secrets.token_bytes(GROUP_BYTES)


class CallerSide:
    """The side that connects to a peer."""

    server_side = False

    def __init__(self, tls: Tls, peer: str, group: bytes, stripe: int = 0) -> None:
        self.tls, self._peer, self.group, self.stripe = tls, peer, group, stripe

    def steps(self, own: ssl.SSLSocket) -> Steps:
        """See `Side`."""
        tls, me, peer = self.tls, self.tls.credentials.name, self._peer
        yield from _tried(own.do_handshake)
        tls.check(own)
        if tls.pinned:
            # Nothing is said to somebody else.
            tls.verify(own, "server", me, peer, b"")
        proof = tls.proof(own, "caller", me, peer)
        greeting = GREETING.pack(tls.security.encode(), self.group, self.stripe, me.encode(), proof)
        yield from _tried(lambda: own.send(greeting))
        welcome = yield from _received(own, PROOF_BYTES)
        tls.verify(own, "server", me, peer, welcome)
        plain = yield from _unwrapped(tls, own)
        return Session(peer, plain, self.group, self.stripe)


class ServerSide:
    """The side that was connected to."""

    server_side, group, stripe = True, b"", 0

    def __init__(self, tls: Tls) -> None:
        self.tls = tls

    def steps(self, own: ssl.SSLSocket) -> Steps:
        """See `Side`."""
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
        return Session(peer, plain, group, stripe)


def _tried(step: Callable[[], T]) -> Generator[int, None, T]:
    """Try something until it need not wait for the other side any more."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            yield selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            yield selectors.EVENT_WRITE


def _received(own: ssl.SSLSocket, size: int) -> Generator[int, None, bytes]:
    """Exactly so many bytes: no more are read before the handshake is done."""
    got = b""
    while len(got) < size:
        some = yield from _tried(partial(own.recv, size - len(got)))
        if not some:
            raise HandshakeError("it ended the connection instead of proving who it is")
        got += some
    return got


def _unwrapped(tls: Tls, own: ssl.SSLSocket) -> Generator[int, None, socket.socket]:
    """The socket to go on with: the same, or one in the clear when both sides have ended TLS."""
    if tls.encrypts:
        return own
    yield from _tried(own.unwrap)
    # An SSLSocket without TLS still refuses to send several buffers at once.
    return socket.socket(own.family, own.type, own.proto, own.detach())
