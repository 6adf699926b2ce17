"""TCP connections between two tasks of a run that have authenticated each other.

`handshake` authenticates both sides and agrees on fresh keys, `securities` lists what protects the bytes afterwards,
`ciphers` seals and opens records, with `libcrypto` where OpenSSL can be loaded so that other Python threads go on
meanwhile, and `workers` are the threads that do it. `layout` says how a message's frames lie on a connection, `outbox`
writes them, `inbox` reads them, `connection` is one TCP connection from handshake to end, `listener` accepts
connections and bounds how many may be there, `tcp` makes the sockets themselves.
What is in a message is not known here.
"""

from penstock.wire.transport.connection import Connection, Owner
from penstock.wire.transport.handshake import ClientHandshake, HandshakeError, ServerHandshake
from penstock.wire.transport.listener import Listener
from penstock.wire.transport.securities import SECURITIES, Security
from penstock.wire.transport.workers import Workers

__all__ = [
    "SECURITIES",
    "ClientHandshake",
    "Connection",
    "HandshakeError",
    "Listener",
    "Owner",
    "Security",
    "ServerHandshake",
    "Workers",
]
