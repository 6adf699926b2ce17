"""One thread that owns every socket of a process and waits for whatever happens first."""

import logging
import socket as plain
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import zmq

from penstock.wire.sockets import Socket

log = logging.getLogger("penstock.wire")


class Loop:
    """Only `soon`, `start` and `join` may be called from other threads."""

    def __init__(self, name: str, turn: Callable[[], float | None], ended: Callable[[], None]) -> None:
        """`turn` is called whenever something happened, and says how many seconds it can be left alone, or None to
        end; `ended` is called last."""
        self._turn, self._ended = turn, ended
        self._readers: dict[object, Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._commands: deque[Callable[[], None]] = deque()
        self._awake = self._finished = False
        self._near, self._far = plain.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)
        self._poller.register(self._near.fileno(), zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"wire-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def soon(self, command: Callable[[], None] | None = None, together: int = 1) -> None:
        """Have something done by the thread; without a command, just have it look again.

        With `together` it may wait for as many commands, or for whatever else wakes the thread: waking is dear.
        """
        if command is not None:
            self._commands.append(command)
        if self._finished:
            self._obey()
        elif not self._awake and (command is None or len(self._commands) >= together):
            self._awake = True
            # Full, or closed by the end: either way nobody needs waking.
            with suppress(OSError):
                self._far.send(b".")

    def watch(self, socket: Socket, read: Callable[[], None]) -> None:
        """Call `read` when something has come."""
        self._readers[socket] = read
        self._poller.register(socket, zmq.POLLIN)

    def unwatch(self, socket: Socket) -> None:
        """No longer."""
        if self._readers.pop(socket, None) is not None:
            self._poller.unregister(socket)

    def _run(self) -> None:
        rest: float | None = 0.0
        try:
            while rest is not None:
                for socket, _ in self._poller.poll(round(1000 * rest)):
                    self._happened(socket)
                self._obey()
                rest = self._turn()
        except Exception:
            # A process that ends without closing takes from under this thread what ZeroMQ needs: no fault.
            if threading.main_thread().is_alive():
                log.exception("%s: the wire's thread failed; its calls will end in their time.", self._thread.name)
        finally:
            self._ended()
            self._finished = True
            self._near.close()
            self._far.close()
            self._obey()

    def _happened(self, socket: object) -> None:
        if socket == self._near.fileno():
            # Heard before commands are obeyed: one that comes in between wakes again.
            with suppress(BlockingIOError):
                self._near.recv(64)
            self._awake = False
            return
        self._readers.get(socket, _nothing)()

    def _obey(self) -> None:
        with suppress(IndexError):
            while True:
                command = self._commands.popleft()
                try:
                    command()
                except Exception:
                    log.exception("%s: a command failed.", self._thread.name)


def _nothing() -> None:
    """Nobody waits for it."""
