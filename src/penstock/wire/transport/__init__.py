"""TCP connections between two tasks of a run that have authenticated each other by TLS 1.3.

`tls` holds the settings of Python's `ssl` and says whose a certificate is, `handshake` is how a connection begins.
`layout` says how a message's frames lie on a connection, `outbox` writes them, `inbox` reads them, `stream` is an
authenticated connection and the thread that it belongs to. `connection` is one TCP connection from its beginning to its
end, `group` those of one channel, `listener` accepts connections and bounds how many may be there, `tcp` makes the
sockets themselves. What is in a message is not known here.
"""

from penstock.wire.transport.connection import CallerSide, Connection, Owner, ServerSide, Side
from penstock.wire.transport.listener import LARGE_BYTES, Group, Listener
from penstock.wire.transport.stream import Lane, default_lanes
from penstock.wire.transport.tls import HandshakeError, Tls, kernel_tls

__all__ = [
    "LARGE_BYTES",
    "CallerSide",
    "Connection",
    "Group",
    "HandshakeError",
    "Lane",
    "Listener",
    "Owner",
    "ServerSide",
    "Side",
    "Tls",
    "default_lanes",
    "kernel_tls",
]
