"""Open files that processes of one host hand to each other: what has a descriptor and no name, such as a GPU's memory.

Descriptors cannot be bytes of a message. A message over the authenticated connection says where a descriptor can be
fetched, and by which token; the kernel passes it through a local socket, to whoever shows the token.
"""

import hmac
import os
import secrets
import socket
import threading
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import PenstockError

_TOKEN_BYTES = 32
_PATIENCE = 10.0
"""Seconds that either side of a local socket waits for the other."""
_WAITING = 64
"""Connections that may wait to be accepted."""


class Offer(NamedTuple):
    """Where a descriptor can be fetched; plain values for a message."""

    address: str
    """The name of a local socket, without the zero byte that it begins with."""
    token: str


class DescriptorServer:
    """Hands out descriptors of this process, which stay open here until `close`."""

    def __init__(self) -> None:
        self.address = f"penstock-{secrets.token_hex(16)}"
        self._offered: dict[str, int] = {}
        self._lock = threading.Lock()
        # A name that begins with a zero byte is in no folder: nothing is left when the process ends.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen(_WAITING)
        threading.Thread(target=self._accept, name="descriptors", daemon=True).start()

    def offer(self, descriptor: int) -> Offer:
        """Let others fetch a descriptor, which is the server's from now on."""
        token = secrets.token_hex(_TOKEN_BYTES // 2)
        with self._lock:
            self._offered[token] = descriptor
        return Offer(self.address, token)

    def withdraw(self, offer: Offer) -> None:
        """Close a descriptor that nobody needs any more."""
        with self._lock:
            os.close(self._offered.pop(offer.token))

    def close(self) -> None:
        """Close the socket and all descriptors."""
        with suppress(OSError):
            # Closing alone would not wake the thread that accepts.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            while self._offered:
                os.close(self._offered.popitem()[1])

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), name="descriptor", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(_PATIENCE)
            shown = connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
            with self._lock:
                found = [each for token, each in self._offered.items() if hmac.compare_digest(token.encode(), shown)]
                # Whoever has no token learns nothing, not even that it was wrong.
                if found:
                    socket.send_fds(connection, [b"\0"], found[:1])


def fetch_descriptor(offer: Offer) -> int:
    """A descriptor of this process for what another process of the host offers."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(f"\0{offer.address}")
            connection.sendall(offer.token.encode())
            _, found, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError as error:
        raise PenstockError(
            f"What another process of this host offers cannot be fetched ({error}).", code="not-available"
        ) from None
    if not found:
        raise PenstockError("What another process of this host has offered is there no longer.", code="not-available")
    return found[0]
