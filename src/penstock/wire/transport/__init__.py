"""TCP connections between two tasks of a run that have authenticated each other by TLS 1.3.

`tls` holds the keys and certificates of a run and the settings of Python's `ssl`, and identifies the owner of a
certificate. `frames` is the layout of a message's frames on a connection, and writes and reads them; `stream` is an
authenticated connection and the thread that owns it. `connection` is one TCP connection from its handshake to its end;
`listener` accepts connections, bounds how many there may be, and groups those of one channel. The content of messages
is not known here.
"""

from penstock.wire.transport.connection import CallerSide, Connection, Owner, ServerSide, Side
from penstock.wire.transport.listener import LARGE_BYTES, ConnectionGroup, Listener
from penstock.wire.transport.stream import StreamThread, default_lanes
from penstock.wire.transport.tls import HandshakeError, Tls, kernel_tls

__all__ = [
    "LARGE_BYTES",
    "CallerSide",
    "Connection",
    "ConnectionGroup",
    "HandshakeError",
    "Listener",
    "Owner",
    "ServerSide",
    "Side",
    "StreamThread",
    "Tls",
    "default_lanes",
    "kernel_tls",
]
