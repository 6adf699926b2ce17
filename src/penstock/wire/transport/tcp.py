"""TCP sockets as the wire wants them: never waiting, without delay, with the marks and buffers that were asked for.

An endpoint's address is tcp://HOST:PORT, with one port for each class of packets, most urgent first.
"""

import errno
import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Sequence

_BACKLOG = 256
_INTERFACE_ADDRESS = 0x8915
"""SIOCGIFADDR: the IPv4 address of a network device."""
PROGRESSING = (0, errno.EINPROGRESS)


def listening_socket(interface: str, mark: int | None, send_buffer: int | None) -> tuple[socket.socket, str]:
    """A socket that listens on one interface (an address, or a device's name) at a free port; and tcp://HOST:PORT."""
    host = _address_of(interface)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        set_options(listener, mark, send_buffer)
        listener.bind((host, 0))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    host, port = listener.getsockname()[:2]
    return listener, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of tcp://HOST:PORT. Raises ValueError if it has none."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    number = int(port)
    if not 0 < number < 1 << 16:
        raise ValueError(f"{number} is no port")
    return host.strip("[]"), number


def is_numeric(host: str) -> bool:
    """Whether a host is an address already, so that nobody must be asked for it."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def connecting_socket(host: str, port: int, mark: int | None, send_buffer: int | None) -> socket.socket:
    """A socket that is being connected to a numeric address: it becomes writable when that is decided."""
    family, kind, protocol, _, target = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        set_options(made, mark, send_buffer)
        error = made.connect_ex(target)
        if error not in PROGRESSING:
            raise OSError(error, "cannot be connected")
    except BaseException:
        made.close()
        raise
    return made


def set_options(own: socket.socket, mark: int | None, send_buffer: int | None) -> None:
    """No delay; DSCP mark and send buffer where there are any."""
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if send_buffer is not None:
        # Linux reserves twice what is asked for, half of it for its own bookkeeping.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    if mark is not None:
        # DSCP is the upper six bits of what used to be the type of service.
        if own.family == socket.AF_INET6:
            own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, mark << 2)
        else:
            own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, mark << 2)


def _address_of(interface: str) -> str:
    if interface not in (name for _, name in socket.if_nameindex()):
        return interface
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(asking.fileno(), _INTERFACE_ADDRESS, request)[20:24])


ADDRESS = re.compile(r"tcp://[^\s/,]+:[0-9]{1,5}(,[0-9]{1,5}){0,7}")


def joined(addresses: Sequence[str]) -> str:
    """One address for sockets of one host."""
    ports = [address.rpartition(":")[2] for address in addresses[1:]]
    return ",".join([addresses[0], *ports])


def endpoint(address: str, place: int) -> str:
    """The address of one of the ports; of the last one if there are fewer."""
    host, _, ports = address.rpartition(":")
    each = ports.split(",")
    return f"{host}:{each[min(place, len(each) - 1)]}"
