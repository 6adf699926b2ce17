"""Non-blocking TCP sockets, and the one thread that owns every socket of a process."""

import errno
import fcntl
import ipaddress
import logging
import re
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

# One thread that owns every socket of a process and waits for events.

log = logging.getLogger("penstock.wire")

_REST = 0.1
"""Seconds that the thread sleeps after a turn that failed, so that one that always fails does not occupy a core."""

Happened = Callable[[], None]


class EventLoop:
    """An event loop. Only `soon`, `start` and `join` may be called from other threads."""

    def __init__(self, name: str, turn: Callable[[], float | None], ended: Callable[[], None]) -> None:
        """`turn` is called after every event, and returns the seconds until it must be called again, or None to end;
        `ended` is called last.
        """
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
        self._thread.start()

    def join(self) -> None:
        """Wait for the loop's thread to end."""
        self._thread.join()

    def soon(self, command: Callable[[], None] | None = None) -> None:
        """Have the loop's thread run a command; without one, just wake it."""
        if command is not None:
            self._commands.append(command)
        if self._finished:
            self._obey()
        elif not self._awake:
            self._awake = True
            # The pipe is full or closed: either way the thread need not be woken.
            with suppress(OSError):
                self._far.send(b".")

    def watch(self, own: socket.socket, reads: Happened | None, writes: Happened | None) -> None:
        """Call `reads` when data has arrived or the peer has hung up, `writes` when more can be written."""
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        if not events:
            self.unwatch(own)
        elif self._knows(own):
            self._selector.modify(own, events, (reads, writes))
        else:
            self._selector.register(own, events, (reads, writes))

    def unwatch(self, own: socket.socket) -> None:
        """Stop watching a socket; one that is not watched is left as it is."""
        if self._knows(own):
            self._selector.unregister(own)

    def _run(self) -> None:
        rest: float | None = 0.0
        try:
            while rest is not None:
                found = self._selector.select(rest)
                # Wake-ups that are requested from here on are handled below without the pipe.
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
        """The result of the turn. No received message may end this thread."""
        try:
            return self._turn()
        except Exception:
            self._log("a turn failed")
            time.sleep(_REST)
            return 0.0

    def _happened(self, key: selectors.SelectorKey, events: int) -> None:
        reads, writes = key.data
        for event, call in ((selectors.EVENT_READ, reads), (selectors.EVENT_WRITE, writes)):
            # The first callback may have closed the connection.
            if events & event and call is not None and self._watches(key):
                try:
                    call()
                except Exception:
                    self._log("what came over a connection failed")

    def _watches(self, key: selectors.SelectorKey) -> bool:
        # By descriptor: a socket that has been closed since has none, and looking it up would raise.
        found = self._selector.get_map().get(key.fd)
        return found is not None and found.data is key.data

    def _knows(self, own: socket.socket) -> bool:
        """Whether a socket is watched."""
        try:
            return own in self._selector.get_map()
        except ValueError:
            return False

    def _woken(self) -> None:
        # Drain the pipe before commands are run: one that comes in between wakes the thread again.
        with suppress(BlockingIOError):
            self._near.recv(64)

    def _log(self, what: str) -> None:
        log.exception("%s: %s; the wire continues.", self._thread.name, what)

    def _obey(self) -> None:
        with suppress(IndexError):
            while True:
                command = self._commands.popleft()
                try:
                    command()
                except Exception:
                    log.exception("%s: a command failed.", self._thread.name)


# TCP sockets with the wire's options: non-blocking, without delay, with DSCP marks and buffer sizes. An endpoint's
# address is tcp://HOST:PORT, with one port for each class of packets, most urgent first.

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
    """Whether a host is a numeric address, which needs no lookup."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def connecting_socket(host: str, port: int, mark: int | None, send_buffer: int | None) -> socket.socket:
    """A socket that is being connected to a numeric address: it becomes writable when that has succeeded or failed."""
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
    """Set no delay, and the DSCP mark and send buffer if given."""
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if send_buffer is not None:
        # Linux reserves twice what is asked for, half of it for its own bookkeeping.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    if mark is not None:
        # DSCP is the upper six bits of the former type of service.
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
