"""One TCP connection between two tasks: handshake, messages both ways, signs of life, end."""

import logging
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from penstock.graph.arrays import Array
from penstock.wire.loop import EventLoop
from penstock.wire.message import Limits, Malformed
from penstock.wire.transport.ciphers import ForgedError
from penstock.wire.transport.handshake import Handshake, HandshakeError, PeerSession
from penstock.wire.transport.inbox import Frames, Inbox
from penstock.wire.transport.outbox import Outbox
from penstock.wire.transport.securities import Security
from penstock.wire.transport.workers import Workers

log = logging.getLogger("penstock.wire")

HANDSHAKE_SECONDS = 10.0
"""In which both sides must have proven who they are."""
CONNECT_SECONDS = 3.0
"""In which a caller must have reached somebody."""

_LAST_READS = 64
"""Reads of what a peer had sent before its connection is closed."""

_UNKNOWN = "an unauthenticated connection"


class Owner(Protocol):
    """Is called with what happens on a connection."""

    def opened(self, connection: "Connection") -> None:
        """The peer has proven who it is."""

    def received(self, connection: "Connection", frames: Frames) -> None:
        """A message has come. May raise Malformed."""

    def lost(self, connection: "Connection", reason: str) -> None:
        """The connection has ended, not by `close`."""


class Connection:
    """Belongs to the loop's thread. Until the handshake is done it holds a few hundred bytes, whatever comes."""

    def __init__(
        self,
        loop: EventLoop,
        own: socket.socket,
        handshake: Handshake,
        owner: Owner,
        security: Security,
        workers: Workers,
        limits: Limits,
        heartbeat: float,
        connecting: bool = False,
    ) -> None:
        """`heartbeat`: seconds without a byte after which the peer is gone; `connecting`: not connected yet."""
        self.socket, self.peer, self.open, self.closed = own, "", False, False
        self.reached = not connecting
        """Whether somebody accepted the connection."""
        self._loop, self._handshake, self._owner = loop, handshake, owner
        self._security, self._workers, self._limits, self._heartbeat = security, workers, limits, heartbeat
        self._wanted, self._got = 0, bytearray()
        self._inbox: Inbox | None = None
        self._outbox: Outbox | None = None
        self._paused = self._writing = False
        self._wakes_at = 1
        """Bytes that must be there for the socket to be readable."""
        self._began = self._heard = self._said = time.monotonic()

    def start(self) -> None:
        """Begin the handshake, as soon as there is somebody at the other end."""
        if self.reached:
            self._guarded(self._start_handshake)
        else:
            self._loop.watch(self.socket, None, lambda: self._guarded(self._connected))

    def send(self, frames: Sequence[bytes | Array], left: object) -> None:
        """Have a message sent; `left` is called when its memory is no longer read, also if it never leaves."""
        assert self._outbox is not None
        assert callable(left)
        self._outbox.put(frames, left)
        self._guarded(self._write)

    def pause(self, paused: bool) -> None:
        """Whether to leave what the peer sends with it for now."""
        if paused != self._paused:
            self._paused, self._heard = paused, time.monotonic()
            if self.open:
                self._watch()

    def tick(self, now: float) -> None:
        """Give a sign of life; end the connection if the peer gave none, or did not prove who it is in time."""
        if self.closed:
            return
        if not self.open:
            if now - self._began > (HANDSHAKE_SECONDS if self.reached else CONNECT_SECONDS):
                self._end("it did not answer in time" if self.reached else "nobody answers there")
            return
        self._read_early(now)
        if now - self._heard > self._heartbeat and not self._reads_nothing:
            self._end("it was silent for too long")
        elif now - self._said > self._heartbeat / 4 and self._outbox is not None and self._outbox.empty:
            self._said = now
            self.send((), _nothing)

    def _read_early(self, now: float) -> None:
        """Read bytes that are too few to make the socket readable: they, too, show that the peer is alive."""
        if self._wakes_at > 1 and now - self._heard > self._heartbeat / 4 and not self._reads_nothing:
            self._guarded(self._read)

    def close(self) -> None:
        """End it. What was written still leaves; what was not never will."""
        if self.closed:
            return
        self.closed, self.open = True, False
        self._loop.unwatch(self.socket)
        self._handshake.close()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            # Closing with unread bytes would take back what was sent. Who goes on sending cannot hold this thread up.
            for _ in range(_LAST_READS if self.peer else 0):
                if not self.socket.recv(1 << 16):
                    break
        self.socket.close()
        if self._outbox is not None:
            self._free(self._outbox)

    @property
    def idle(self) -> bool:
        """Whether all that was to be sent has been written."""
        return self._outbox is None or self._outbox.empty

    @property
    def _reads_nothing(self) -> bool:
        return self._paused or (self._inbox is not None and self._inbox.full)

    def _connected(self) -> None:
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "nobody answers there")
        self.reached, self._began = True, time.monotonic()
        self._start_handshake()

    def _start_handshake(self) -> None:
        self._loop.watch(self.socket, lambda: self._guarded(self._read_handshake), None)
        said, self._wanted = next(self._handshake)
        self._say(said)

    def _read_handshake(self) -> None:
        """Take exactly the bytes that the handshake waits for: no more are read before it is done."""
        try:
            some = self.socket.recv(self._wanted - len(self._got))
        except BlockingIOError:
            return
        if not some:
            raise HandshakeError("it ended the connection instead of proving who it is")
        self._got += some
        if len(self._got) < self._wanted:
            return
        got, self._got = bytes(self._got), bytearray()
        try:
            said, self._wanted = self._handshake.send(got)
            self._say(said)
        except StopIteration as done:
            self._begin(done.value)

    def _say(self, said: bytes) -> None:
        if said and self.socket.send(said) != len(said):
            raise HandshakeError("it does not read")

    def _begin(self, session: PeerSession) -> None:
        self._say(session.proof)
        make = self._security.cipher
        keys, parallel = (session.sending, session.receiving), not self._workers.inline
        sending, receiving = (None if make is None else make(key, parallel) for key in keys)
        self._inbox = Inbox(receiving, self._workers, self._limits, self._wake)
        self._outbox = Outbox(sending, self._workers, self._wake)
        self.peer, self.open, self._heard = session.peer, True, time.monotonic()
        self._watch()
        self._owner.opened(self)

    def _wake(self) -> None:
        """From another thread: a record has been sealed or opened."""
        self._loop.soon(self._advance)

    def _advance(self) -> None:
        if self.closed:
            if self._outbox is not None:
                self._free(self._outbox)
            return
        self._guarded(self._deliver)
        self._guarded(self._write)

    def _read(self) -> None:
        assert self._inbox is not None
        count = self._inbox.read(self.socket)
        if count:
            self._heard = time.monotonic()
        self._deliver()
        if self.closed:
            return
        if count < 0:
            self._end("it ended the connection")
        elif self._inbox.wanted != self._wakes_at:
            self._wakes_at = self._inbox.wanted
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._wakes_at)

    def _deliver(self) -> None:
        inbox = self._inbox
        assert inbox is not None
        full = inbox.full
        while not self.closed and (frames := inbox.take()) is not None:
            if frames:
                self._owner.received(self, frames)
        if full or inbox.full:
            self._heard = time.monotonic()
            self._watch()

    def _write(self) -> None:
        if self.closed or self._outbox is None:
            return
        empty = self._outbox.empty
        writing = self._outbox.write(self.socket)
        if not empty:
            self._said = time.monotonic()
        if writing != self._writing:
            self._writing = writing
            self._watch()

    def _watch(self) -> None:
        if not self.closed:
            reads = None if self._reads_nothing else lambda: self._guarded(self._read)
            self._loop.watch(self.socket, reads, (lambda: self._guarded(self._write)) if self._writing else None)

    def _guarded(self, step: object) -> None:
        """Do something; whatever goes wrong ends this connection and nothing else."""
        assert callable(step)
        if self.closed:
            return
        try:
            step()
        except (OSError, HandshakeError) as error:
            self._end(str(error))
        except (Malformed, ForgedError) as error:
            log.warning(
                "A message from %s is malformed (%s): its connection is closed.",
                self.peer or _UNKNOWN,
                error,
            )
            self._end(str(error))
        except Exception as error:
            log.exception("A connection to %s failed and is closed.", self.peer or _UNKNOWN)
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._owner.lost(self, reason)

    def _free(self, outbox: Outbox) -> None:
        """Tell that memory is free when no thread reads from it any more: each that does wakes this one."""
        if not outbox.sealing:
            self._outbox = None
            for left in outbox.drop():
                left()


def _nothing() -> None:
    """Do nothing: a keep-alive has no callback."""
