"""An authenticated connection: messages both ways, heartbeats, an orderly end; and threads for some of them.

A stream belongs to one thread, that of its event loop: no other thread reads from its socket or writes to it. OpenSSL's
connections are not safe for two threads at once, and Python before 3.13 releases the interpreter lock while it reads or
writes one without taking another lock, so that concurrent reads and writes would corrupt it. Bulk traffic in both
directions has a connection for each, as channels have anyway.
"""

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.graph.arrays import Array
from penstock.wire.message import Limits, Malformed
from penstock.wire.sockets import EventLoop
from penstock.wire.transport.frames import Frames, Inbox, Outbox

log = logging.getLogger("penstock.wire")

_LAST_READS = 64
"""Reads of what a peer had sent before its connection is closed."""
_CORK: int = getattr(socket, "TCP_CORK", -1)
FINISHED = "both sides have finished"
_TICK = 0.1
"""Seconds between checks of the clock in a thread for large messages."""
_CORES_EACH, _MOST = 4, 4


class Stream:
    """Used only by its loop's thread, in which its callbacks run."""

    def __init__(
        self,
        loop: EventLoop,
        own: socket.socket,
        peer: str,
        limits: Limits,
        heartbeat: float,
        received: Callable[[Frames], None],
        ended: Callable[[str], None],
    ) -> None:
        """`received` is called with messages and may raise Malformed, `ended` with the reason of an unexpected end."""
        self.socket, self.closed = own, False
        encrypted = isinstance(own, ssl.SSLSocket)
        self._corks, self._corked = encrypted and _CORK >= 0, False
        self._inbox, self._outbox = Inbox(limits, encrypted), Outbox(encrypted)
        self._loop, self._peer, self._heartbeat, self._received, self._ended = loop, peer, heartbeat, received, ended
        self._pending = own.pending if isinstance(own, ssl.SSLSocket) else lambda: 0
        self._paused = self._writing = False
        self._finishing = self._begins_end = self._has_finished = self._was_finished = False
        self._wakes_at = 1
        """Bytes that must have arrived for the socket to count as readable."""
        self._heard = self._said = time.monotonic()

    def start(self) -> None:
        """Begin to read; data may have arrived already."""
        self._watch()
        self._guarded(self._read)

    def send(self, frames: Sequence[bytes | Array], left: Callable[[], None]) -> None:
        """Send a message; `left` is called when its memory is no longer read, also if it never leaves."""
        if self.closed:
            left()
            return
        self._outbox.put(frames, left)
        self._guarded(self._write)

    def pause(self, paused: bool) -> None:
        """Stop or resume reading from the peer."""
        if paused != self._paused and not self.closed:
            self._paused, self._heard = paused, time.monotonic()
            self._watch()
            if not paused:
                self._guarded(self._read)

    def finish(self, begins: bool) -> None:
        """Send nothing more: end when all has left and the peer has ended its direction too.

        The side that `begins` ends its direction first. The other one might be faster than the message about it.
        """
        self._finishing, self._begins_end = True, begins
        self._guarded(self._write)

    def tick(self, now: float) -> None:
        """Send a heartbeat; end the connection if the peer sent none."""
        if self.closed:
            return
        if self._wakes_at > 1 and now - self._heard > self._heartbeat / 4 and not self._paused:
            # Bytes too few to make the socket readable also show that the peer is alive.
            self._guarded(self._read)
        if now - self._heard > self._heartbeat and not self._paused:
            self._end("it was silent for too long")
        elif now - self._said > self._heartbeat / 4 and self._outbox.empty and not self._finishing:
            self._said = now
            self.send((), _nothing)

    def close(self) -> None:
        """Close it. What was written still leaves; what was not never will."""
        if self.closed:
            return
        self.closed = True
        self._loop.unwatch(self.socket)
        close_socket(self.socket, _LAST_READS)
        for left in self._outbox.drop():
            left()

    @property
    def bytes(self) -> int:
        """The bytes that it has carried, in the busier direction. Any thread may call it."""
        return max(self._inbox.bytes, self._outbox.bytes)

    def _read(self) -> None:
        if self._paused or self._was_finished:
            return
        count = self._inbox.read(self.socket)
        if count:
            self._heard = time.monotonic()
        while not self.closed and (frames := self._inbox.take()) is not None:
            if frames:
                self._received(frames)
        if self.closed:
            return
        if count < 0:
            self._peer_finished()
            return
        if self._inbox.wanted != self._wakes_at:
            self._wakes_at = self._inbox.wanted
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._wakes_at)
        if self._pending():
            # TLS has read it already, so the socket will not report it.
            self._loop.soon(lambda: self._guarded(self._read))

    def _peer_finished(self) -> None:
        if not self._finishing:
            self._end("it ended the connection")
            return
        self._was_finished = True
        self._watch()
        self._guarded(self._write)

    def _write(self) -> None:
        empty = self._outbox.empty
        if self._corks and not self._corked and self._outbox.long:
            self._cork(True)
        writing = self._outbox.write(self.socket)
        if self._corked and not writing:
            self._cork(False)
        if not empty:
            self._said = time.monotonic()
        if self._finishing and self._outbox.empty:
            if self._was_finished:
                self._end(FINISHED)
                return
            if self._begins_end and not self._has_finished:
                self._has_finished = True
                # Not the SSLSocket's own method, after which it would no longer read.
                socket.socket.shutdown(self.socket, socket.SHUT_WR)
        if writing != self._writing:
            self._writing = writing
            self._watch()

    def _cork(self, corked: bool) -> None:
        """Whether the kernel waits for whole packets: TLS writes 16 KiB at a time, and packets can be longer."""
        self._corked = corked
        self.socket.setsockopt(socket.IPPROTO_TCP, _CORK, int(corked))

    def _watch(self) -> None:
        if not self.closed:
            reads = None if self._paused or self._was_finished else lambda: self._guarded(self._read)
            self._loop.watch(self.socket, reads, (lambda: self._guarded(self._write)) if self._writing else None)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; an error ends only this connection."""
        if self.closed:
            return
        try:
            step()
        except ssl.SSLEOFError as error:
            # The peer is gone, as after a kill: no record was spoilt.
            self._end(str(error))
        except ssl.SSLError as error:
            log.warning("A record from %s does not open (%s): its connection is closed.", self._peer, error)
            self._end(str(error))
        except OSError as error:
            self._end(str(error))
        except Malformed as error:
            log.warning("A message from %s is malformed (%s): its connection is closed.", self._peer, error)
            self._end(str(error))
        except Exception as error:
            log.exception("A connection to %s failed and is closed.", self._peer)
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._ended(reason)


def close_socket(own: socket.socket, last_reads: int) -> None:
    """Close a connection so that what was written still arrives."""
    with suppress(OSError):
        # From here on the socket is used as a plain one.
        own.shutdown(socket.SHUT_WR)
        # Closing with unread bytes would discard what was sent. The number of reads is bounded, as the peer may go on
        # sending.
        for _ in range(last_reads):
            if not own.recv(1 << 16):
                break
    own.close()


def _nothing() -> None:
    """Do nothing: a keep-alive has no callback."""


def default_lanes() -> int:
    """The default number of threads: one for every four cores, at most four. With fewer cores one thread does
    everything.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST, cores // _CORES_EACH)


class StreamThread:
    """A thread that owns some of the streams for large messages, beside the one that owns everything else."""

    def __init__(self, name: str, heartbeat: float) -> None:
        self.loop = EventLoop(name, self._turn, self._close)
        self._tick = min(_TICK, heartbeat / 8)
        self._streams: set[Stream] = set()
        self._ends = False
        self._next = 0.0
        self.loop.start()

    def add(self, stream: Stream) -> None:
        """Begin to serve a stream, in this thread."""
        self._streams = {each for each in self._streams if not each.closed} | {stream}
        stream.start()

    def close(self) -> None:
        """End the thread and its streams."""
        self._ends = True
        self.loop.soon()
        self.loop.join()

    def _turn(self) -> float | None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._tick
            for stream in list(self._streams):
                stream.tick(now)
        return None if self._ends else self._tick

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()
