"""What tests of the wire share: how posts are asked for, waiting that ends, and a link that can be cut."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

Meeting = Callable[..., list[Endpoint]]


def echo(message: Message, sender: str) -> Message:
    """A handler that sends back what it gets, and says who sent it."""
    return Message("back", {**message.body, "sender": sender}, message.arrays)


def first_words() -> bytes:
    """What a client of TLS says first."""
    context, sent = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that will happen."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


class Cable:
    """A TCP link to a post: forwards bytes both ways, can be cut, and can swallow what comes."""

    def __init__(self, endpoint: Endpoint) -> None:
        host, port = endpoint.address.removeprefix("tcp://").split(":")
        self._target, self._listener = (host, int(port)), socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._ends: list[socket.socket] = []
        self._swallowed: set[socket.socket] = set()
        self.recorded: list[tuple[socket.socket, bytes]] = []
        """What went to the post, and over which end."""
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Break every connection; new ones are made as before."""
        for end in list(self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def send_again(self) -> None:
        """Send the post what was recorded, as it was."""
        for end, data in list(self.recorded):
            end.sendall(data)

    def swallow(self) -> None:
        """From now on nothing more passes over the connections there are, though they stay."""
        self._swallowed.update(self._ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # A connection that is just being made is cut too.
        self._threads[0].join(20)
        self.cut()
        for thread in self._threads:
            thread.join(20)
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self.connections += 1
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._forward, args=(one, other), daemon=True))
                    self._threads[-1].start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if one not in self._swallowed:
                    if self._ends.index(other) % 2:
                        self.recorded.append((other, data))
                    other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
