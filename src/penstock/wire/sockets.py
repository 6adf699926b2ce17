"""ZeroMQ sockets as Penstock wants them: secured, limited in size, and quick to notice that a peer is gone."""

import zmq

from penstock.errors import PenstockError
from penstock.wire.addresses import endpoint
from penstock.wire.gate import DOMAIN, password
from penstock.wire.keys import Credentials
from penstock.wire.message import Limits
from penstock.wire.options import WireOptions

Socket = zmq.Socket[bytes]

STRANGE = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
"""Who connected does not speak as a peer does."""
FAILED = STRANGE | zmq.Event.HANDSHAKE_FAILED_AUTH
_UNREAD = 64
"""Requests of one connection that ZeroMQ reads ahead."""
LOST = zmq.Event.DISCONNECTED | zmq.Event.CLOSED | zmq.Event.CONNECT_RETRIED
READY = zmq.Event.HANDSHAKE_SUCCEEDED


def serving_socket(
    context: zmq.Context[Socket],
    credentials: Credentials,
    interface: str,
    options: WireOptions,
    limits: Limits,
    place: int = 0,
) -> tuple[Socket, str]:
    """A socket that peers ask, bound to one interface at a port of the system's choice; and its address.

    Answers leave with the mark of the class in this place: a socket has one for all its connections.
    """
    socket = context.socket(zmq.ROUTER)
    _set_common(socket, options, limits, options.marks[place])
    # Requests that are not read, because too many wait, wait with those who sent them.
    socket.setsockopt(zmq.RCVHWM, _UNREAD)
    # Without this, answers to peers that are gone would vanish, and streams to them go on to their end.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
    if options.security == "curve":
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, credentials.keys.secret)
    else:
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
    socket.setsockopt(zmq.IPV6, int(":" in interface))
    host = f"[{interface}]" if ":" in interface else interface
    try:
        socket.bind(f"tcp://{host}:*")
    except zmq.ZMQError as error:
        socket.close()
        raise PenstockError(
            f"{credentials.name} cannot listen on {interface!r} ({error}): name an address of this machine."
        ) from None
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)


def calling_socket(
    context: zmq.Context[Socket],
    credentials: Credentials,
    peer: str,
    address: str,
    options: WireOptions,
    limits: Limits,
    priority: int = 0,
    events: int = 0,
) -> Socket:
    """A socket that asks one peer, connecting by itself as soon as it can.

    Without a connection nothing must be sent: what waits, waits in our queues, where it can be counted and withdrawn.
    (ZeroMQ would see to that with IMMEDIATE, but then a connection that is lost while a message of several frames is
    being read ends the process: it takes the connection's queue away between two frames, and fails at the second.)
    With `events` there is a monitor of them from the first on, see `monitor_of`.
    """
    socket = context.socket(zmq.DEALER)
    place = options.class_of(priority)
    _set_common(socket, options, limits, options.marks[place])
    address = endpoint(address, place)
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, 3000)
    if options.security == "curve":
        socket.setsockopt_string(zmq.CURVE_SERVERKEY, credentials.peers[peer])
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, credentials.keys.public)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, credentials.keys.secret)
    else:
        socket.setsockopt_string(zmq.PLAIN_USERNAME, credentials.name)
        socket.setsockopt(zmq.PLAIN_PASSWORD, password(credentials.token, credentials.name, peer))
    if events:
        # Before there is a connection that it could miss.
        monitor_of(socket, events)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        if events:
            monitor_of(socket, events).close(0)
            socket.disable_monitor()
        socket.close()
        raise PenstockError(f"{peer} cannot be at {address!r} ({error}): an address is tcp://HOST:PORT.") from None
    return socket


def monitor_of(socket: Socket, events: int) -> Socket:
    """Where ZeroMQ tells what becomes of a socket's connections. A socket has one."""
    return socket.get_monitor_socket(events)


def _set_common(socket: Socket, options: WireOptions, limits: Limits, mark: int | None) -> None:
    milliseconds = max(1, round(1000 * options.heartbeat))
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.MAXMSGSIZE, max(limits.header_bytes, limits.array_bytes)),
        # Bytes, not messages, are limited, and by the egress queue.
        (zmq.SNDHWM, 0),
        (zmq.RCVHWM, 0),
        (zmq.HANDSHAKE_IVL, 10_000),
        (zmq.HEARTBEAT_IVL, max(1, milliseconds // 4)),
        (zmq.HEARTBEAT_TIMEOUT, milliseconds),
        (zmq.HEARTBEAT_TTL, min(milliseconds, 6_000_000)),
    ):
        socket.setsockopt(option, value)
    if options.send_buffer_bytes is not None:
        socket.setsockopt(zmq.SNDBUF, options.send_buffer_bytes)
    if mark is not None:
        # DSCP is the upper six bits of what used to be the type of service.
        socket.setsockopt(zmq.TOS, mark << 2)
