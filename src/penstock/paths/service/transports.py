"""Ways over which a path's messages go: within a process, over a socket of this host, over the authenticated wire."""

import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from penstock.closed_on_exit import ClosedOnExit
from penstock.errors import PenstockError
from penstock.paths.service.responder import Responder
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Malformed, Message

# Ways over which a path's messages go: within a process, and over the authenticated wire between two.

_KIND = "paths"


class InProcessPath:
    """A path to a node of a responder in the same process."""

    def __init__(self, responder: Responder, role: str) -> None:
        self._responder, self._role = responder, role

    def __call__(self, message: bytes) -> bytes:
        """The answer to a message."""
        return self._responder.handle(message, self._role)


class WirePath:
    """A path over the wire: peers are authenticated, and sockets are bound to the interface of their endpoint."""

    def __init__(self, endpoint: Endpoint, peer: str, role: str, timeout: float | None = None) -> None:
        """`timeout`: seconds of silence after which a request has failed; the endpoint's by default."""
        self._channel, self._role, self._timeout = endpoint.channel(peer, f"paths {role}"), role, timeout

    def __call__(self, message: bytes) -> bytes:
        """The answer to a message. A message may be handled twice if a connection was lost in between."""
        asked = Message(_KIND, {"role": self._role}, (np.frombuffer(message, np.uint8),))
        return _bytes_of(self._channel.call(asked, self._timeout))


def serve_wire(endpoint: Endpoint, responder: Responder, role: str | None = None) -> None:
    """Have an endpoint's requests handled by a responder; with `role`, only those for that node."""

    def handler(message: Message, sender: str) -> Message:
        asked = message.body.get("role")
        if not isinstance(asked, str) or (role is not None and asked != role):
            raise Malformed(f"{endpoint.name} does not serve the node {asked!r}.")
        answer = responder.handle(_bytes_of(message), asked)
        return Message(_KIND, {}, (np.frombuffer(answer, np.uint8),))

    endpoint.serve(_KIND, handler)


def _bytes_of(message: Message) -> bytes:
    if len(message.arrays) != 1 or message.arrays[0].dtype != np.uint8 or message.arrays[0].ndim != 1:
        raise Malformed("A message of a path must hold one array of bytes.")
    return message.arrays[0].tobytes()


# A path over a socket of this host: between processes of one user, without the cost of encryption. The socket is a file
# that only its owner can open, and the system reports the user of the other end: both sides refuse another user's.
# Between hosts, use the wire.

_LENGTH = struct.Struct("!I")
_PEER = struct.Struct("iII")
LARGEST = 1 << 26
"""The largest message in bytes; a message that is announced as larger is refused."""


class SocketPath(ClosedOnExit):
    """A path to a node whose responder listens on a socket; each thread that sends has a connection of its own."""

    def __init__(self, path: Path, timeout: float = 30.0) -> None:
        """`timeout`: seconds without an answer after which a request has failed."""
        self._path, self._timeout, self._local = path, timeout, threading.local()
        self._made, self._lock = list[socket.socket](), threading.Lock()

    def __call__(self, message: bytes) -> bytes:
        """The answer to a message."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connected()
        try:
            _send(connection, message)
            answer = _receive(connection)
        except (OSError, PenstockError):
            self._drop(connection)
            raise
        if answer is None:
            self._drop(connection)
            raise ConnectionError(f"The service at {self._path} has ended the connection.")
        return answer

    def close(self) -> None:
        """Close the connections of all threads that have sent."""
        with self._lock:
            for connection in self._made:
                connection.close()
            self._made.clear()

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self._timeout)
            connection.connect(str(self._path))
            _check_peer(connection)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._made.append(connection)
        return connection

    def _drop(self, connection: socket.socket) -> None:
        self._local.connection = None
        with self._lock:
            if connection in self._made:
                self._made.remove(connection)
        connection.close()


class SocketServer(ClosedOnExit):
    """Serves a socket with a responder at one node, one thread per connection."""

    def __init__(self, path: Path, responder: Responder, role: str) -> None:
        self.path, self._responder, self._role = path, responder, role
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listening.bind(str(path))
            # No process can connect before it listens.
            path.chmod(0o600)
        except OSError as error:
            self._listening.close()
            raise PenstockError(
                f"The socket {path} cannot be made ({error.strerror}): name a path that is free and not too long.",
                code="not-permitted",
            ) from None
        self._listening.listen()
        self._open, self._lock = set[socket.socket](), threading.Lock()
        threading.Thread(target=self._accept, name=f"paths {role}", daemon=True).start()

    def close(self) -> None:
        """Stop answering, end all connections and remove the socket."""
        # This wakes a thread that accepts, which closing alone does not.
        _shut(self._listening)
        with self._lock:
            for connection in self._open:
                _shut(connection)
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            _check_peer(connection)
            while (message := _receive(connection)) is not None:
                _send(connection, self._responder.handle(message, self._role))
        except (OSError, PenstockError):
            # The requester sees that the connection has ended.
            pass
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _shut(connection: socket.socket) -> None:
    # The peer may have ended the connection.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _check_peer(connection: socket.socket) -> None:
    """Refuse a process of another user."""
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user != os.geteuid():
        raise PenstockError("The other end of the socket is a process of another user.", code="not-permitted")


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)) + message)


def _receive(connection: socket.socket) -> bytes | None:
    """The next message; None where the connection has ended."""
    header = _exactly(connection, _LENGTH.size)
    if header is None:
        return None
    (size,) = _LENGTH.unpack(header)
    if size > LARGEST:
        raise PenstockError(f"A message of {size:,} bytes was announced, above {LARGEST:,}.", code="value-out-of-range")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 1 << 20))
        if not part:
            return None
        found += part
    return bytes(found)
