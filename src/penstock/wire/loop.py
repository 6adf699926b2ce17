"""One thread that owns every socket of a process and waits for whatever happens first."""

import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger("penstock.wire")

_REST = 0.1
"""Seconds that the thread rests after a turn that failed, so that one that always fails does not keep a core busy."""

Happened = Callable[[], None]


class EventLoop:
    """Only `soon`, `start` and `join` may be called from other threads."""

    def __init__(self, name: str, turn: Callable[[], float | None], ended: Callable[[], None]) -> None:
        """`turn` is called whenever something happened, and says how many seconds it can be left alone, or None to
        end; `ended` is called last."""
        self._turn, self._ended = turn, ended
        self._selector = selectors.DefaultSelector()
        self._commands: deque[Callable[[], None]] = deque()
        self._awake = self._finished = False
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)
        self._selector.register(self._near, selectors.EVENT_READ, (self._woken, None))
        self._thread = threading.Thread(target=self._run, name=f"wire-{name}", daemon=True)

    def start(self) -> None:
        """Start the loop's thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the loop's thread to end."""
        self._thread.join()

    def soon(self, command: Callable[[], None] | None = None) -> None:
        """Have something done by the thread; without a command, just have it look again."""
        if command is not None:
            self._commands.append(command)
        if self._finished:
            self._obey()
        elif not self._awake:
            self._awake = True
            # Full, or closed by the end: either way nobody needs waking.
            with suppress(OSError):
                self._far.send(b".")

    def watch(self, own: socket.socket, reads: Happened | None, writes: Happened | None) -> None:
        """Call `reads` when something has come or the peer has hung up, `writes` when more can be written."""
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        if not events:
            self.unwatch(own)
        elif self._knows(own):
            self._selector.modify(own, events, (reads, writes))
        else:
            self._selector.register(own, events, (reads, writes))

    def unwatch(self, own: socket.socket) -> None:
        """Stop watching a socket."""
        if self._knows(own):
            self._selector.unregister(own)

    def _run(self) -> None:
        rest: float | None = 0.0
        try:
            while rest is not None:
                found = self._selector.select(rest)
                # Who asks for a look meanwhile has it below, and need not wake anybody.
                self._awake = True
                for key, events in found:
                    self._happened(key, events)
                self._awake = False
                self._obey()
                rest = self._next_rest()
        finally:
            self._ended()
            self._finished = True
            self._selector.close()
            self._near.close()
            self._far.close()
            self._obey()

    def _next_rest(self) -> float | None:
        """The turn's answer. No message that came may end this thread, whatever was made of it."""
        try:
            return self._turn()
        except Exception:
            self._log("a turn failed")
            time.sleep(_REST)
            return 0.0

    def _happened(self, key: selectors.SelectorKey, events: int) -> None:
        reads, writes = key.data
        for event, call in ((selectors.EVENT_READ, reads), (selectors.EVENT_WRITE, writes)):
            # What was called first may have ended the connection.
            if events & event and call is not None and self._watches(key):
                try:
                    call()
                except Exception:
                    self._log("what came over a connection failed")

    def _watches(self, key: selectors.SelectorKey) -> bool:
        # By descriptor: a socket that has been closed since has none, and would be looked for in vain with an error.
        found = self._selector.get_map().get(key.fd)
        return found is not None and found.data is key.data

    def _knows(self, own: socket.socket) -> bool:
        """Whether a socket is watched; one that was closed after it was no longer watched is not."""
        try:
            return own in self._selector.get_map()
        except ValueError:
            return False

    def _woken(self) -> None:
        # Heard before commands are obeyed: one that comes in between wakes again.
        with suppress(BlockingIOError):
            self._near.recv(64)

    def _log(self, what: str) -> None:
        log.exception("%s: %s; the wire goes on.", self._thread.name, what)

    def _obey(self) -> None:
        with suppress(IndexError):
            while True:
                command = self._commands.popleft()
                try:
                    command()
                except Exception:
                    log.exception("%s: a command failed.", self._thread.name)
