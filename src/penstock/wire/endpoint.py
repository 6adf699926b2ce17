"""A process's endpoint on the wire: one thread owns every socket, a few run handlers."""

import socket
import threading
import time
from typing import Any

from penstock.closed_on_exit import ClosedOnExit
from penstock.errors import PenstockError, nearest
from penstock.wire.channel import Channel, Link
from penstock.wire.coflows import Coflows
from penstock.wire.egress import POLICIES, Egress, FlowCount, Outgoing, Route
from penstock.wire.message import LIMITS, Malformed, decode, frame_bytes
from penstock.wire.options import WireOptions
from penstock.wire.request_server import Handler, ReceivedRequest, RequestServer
from penstock.wire.sockets import ADDRESS, EventLoop, joined, listening_socket, set_options
from penstock.wire.transport.connection import LARGE_BYTES, CallerSide, Connection, Listener, Owner, ServerSide, Side
from penstock.wire.transport.frames import Frames
from penstock.wire.transport.stream import StreamThread, default_lanes
from penstock.wire.transport.tls import Credentials, Tls

# The work of the wire's thread: reads, sends, and timeouts of calls.

_AT_ONCE = 64
"""Messages sent before received data is read."""
_TICK, _IDLE = 0.1, 1.0
"""Seconds between checks of the clock: with calls in progress, and without."""
_DRAIN = 0.5
"""Seconds that answers in flight are given at the end."""
_LABELS = 256
"""The most flows that one peer may open."""


class CallExchange:
    """Calls in both directions: it implements `Answers` for those made and `Requests` for those served.

    Used only by the loop's thread, except for `stop` and the counters.
    """

    def __init__(
        self,
        tls: Tls,
        options: WireOptions,
        egress: Egress,
        serving: RequestServer,
        lanes: list[StreamThread],
        sockets: list[socket.socket],
    ) -> None:
        """`lanes` are threads for large messages; `sockets` are where peers connect, one for each class of packets."""
        self.malformed = 0
        self._name, self._egress, self._serving = tls.credentials.name, egress, serving
        self.loop = EventLoop(self._name, self._turn, self._close)
        self._tls, self._options, self._lanes = tls, options, lanes
        self._links: dict[int, Link] = {}
        """By the identity of their flow."""
        self._labels: dict[str, set[str]] = {}
        self._next_tick, self._retry, self._end = 0.0, float("inf"), float("inf")
        self._calls = False
        """Whether a call may be in progress, as the last tick found or a request has left since."""
        self._hears, self._leaving = True, 0
        # Heartbeats must be sent, and missed, in time.
        self._tick, self._idle = (min(each, options.heartbeat / 8) for each in (_TICK, _IDLE))
        self.listeners = [
            Listener(self.loop, each, port_index, self._accepted, self) for port_index, each in enumerate(sockets)
        ]

    @property
    def refused(self) -> int:
        """The number of connections that failed to authenticate."""
        return sum(listener.refused for listener in self.listeners)

    def stop(self) -> None:
        """End soon, when messages in flight have left."""
        self._end = time.monotonic() + _DRAIN
        self.loop.soon()

    def add(self, link: Link) -> None:
        """Add a link, whose calls are timed even while the peer's address is unknown."""
        self._links[id(link.channel.flow)] = link
        self._egress.unblock(link.channel.flow)

    def calling(self, own: socket.socket, peer: str, group: bytes, stripe: int, owner: Owner) -> Connection:
        """The connection of a socket that is being connected to a peer."""
        return self._connection(own, CallerSide(self._tls, peer, group, stripe), owner, True)

    def connected(self, link: Link) -> None:
        """Send what has waited for this connection (`Answers.connected`)."""
        self._egress.unblock(link.channel.flow)

    def retry(self, moment: float) -> None:
        """A lost connection is retried at its own time, not at the next tick (`Answers.retry`)."""
        self._retry = min(self._retry, moment)
        self._next_tick = min(self._next_tick, moment)

    def answered(self, link: Link, frames: Frames) -> None:
        try:
            received = decode(frames)
            if received.sign == "ask":
                raise Malformed("it sends a request over a connection for answers.")
            size = frame_bytes(frames)
            if size >= LARGE_BYTES:
                link.widen()
            link.channel.receive(received, size)
        except Malformed:
            self.malformed += 1

    def asked(self, port_index: int, connection: Connection, frames: Frames) -> None:
        try:
            self._request(port_index, connection, frames)
        except Malformed:
            self.malformed += 1
        self._mind_inbox()

    def _accepted(self, own: socket.socket, port_index: int, owner: Owner) -> Connection:
        # Answers have the DSCP mark of the port at which the request arrived.
        set_options(own, self._options.marks[port_index], self._options.send_buffer_bytes)
        return self._connection(own, ServerSide(self._tls), owner, False)

    def _connection(self, own: socket.socket, side: Side, owner: Owner, connecting: bool) -> Connection:
        heartbeat = self._options.heartbeat
        return Connection(self.loop, own, side, owner, LIMITS, heartbeat, self._lanes, connecting=connecting)

    def _turn(self) -> float | None:
        more = self._send()
        now = time.monotonic()
        if now >= self._next_tick:
            self._look(now)
        leaving = self._leaving > 0 or self._egress.waiting() > 0
        if now >= self._end or (self._end < float("inf") and not leaving):
            return None
        if more:
            return 0.0
        busy = leaving or not self._hears or self._calls
        return min(self._tick if busy else self._idle, max(0.0, self._retry - now))

    def _look(self, now: float) -> None:
        """Check the clock of every link and listener. Only here are all of them passed: there may be thousands."""
        self._retry = float("inf")
        for link in list(self._links.values()):
            link.channel.tick(now)
            link.tick(now)
        for listener in self.listeners:
            listener.tick(now)
        self._mind_inbox()
        links = self._links.values()
        self._calls = any(link.channel.busy for link in links)
        self._next_tick = now + self._tick
        self.retry(min((link.soonest() for link in links), default=float("inf")))

    def _send(self) -> bool:
        """Send what may go; returns whether there is more."""
        for _ in range(_AT_ONCE):
            out = self._egress.take(time.monotonic())
            if out is None:
                return False
            self._hand_over(out)
        return True

    def _hand_over(self, out: Outgoing) -> None:
        if out.route is None:
            self._calls = True
            link = self._links.get(id(out.flow))
            if link is None or link.group is None:
                # The peer's address is unknown, or it does not run; or the channel was faster than its link.
                self._egress.put_back(out)
            else:
                if out.size >= LARGE_BYTES:
                    link.widen()
                self._give(link.group.choose(out.size), out)
            return
        group = self.listeners[out.route.port_index].groups.get(out.route.identity)
        if group is None:
            # The caller is gone.
            out.frames.clear()
            out.sent(False)
            self._left(out)
        else:
            self._give(group.choose(out.size), out)

    def _give(self, connection: Connection, out: Outgoing) -> None:
        self._leaving += 1
        self._egress.handed_over(out)
        out.sent(True)

        def left() -> None:
            self._leaving -= 1
            self._left(out)

        frames, out.frames = out.frames, []
        connection.send(frames, out.size, left)

    def _left(self, out: Outgoing) -> None:
        self._egress.left(out, time.monotonic())
        out.left()

    def _request(self, port_index: int, connection: Connection, frames: Frames) -> None:
        route = Route(port_index, self.listeners[port_index].number_of(connection))
        # The sender is the name that the handshake authenticated, not what the message says.
        sender = connection.peer
        received = decode(frames)
        if received.sign != "ask":
            raise Malformed("it answers no request.")
        labels = self._labels.setdefault(sender, set())
        labels.add(received.flow)
        if len(labels) > _LABELS:
            labels.discard(received.flow)
            raise Malformed("its sender has too many flows.")
        flow = self._egress.flow(flow_name(sender, self._name, received.flow), received.priority, serving=True)
        size = frame_bytes(frames)
        self._egress.received(flow, size)
        self._serving.request(ReceivedRequest(received, sender, route, flow, size))

    def _mind_inbox(self) -> None:
        """Read requests only while there is room for them."""
        hears = not self._serving.full()
        if hears != self._hears:
            self._hears = hears
            for listener in self.listeners:
                listener.pause(not hears)

    def _close(self) -> None:
        for link in self._links.values():
            link.channel.close()
            link.close()
        for flow in self._egress.flows():
            for out in self._egress.withdraw(flow, everything=True):
                out.sent(False)
                out.left()
        for listener in self.listeners:
            listener.close()


def flow_name(caller: str, server: str, label: str) -> str:
    """The full name of a flow."""
    return f"{caller}>{server}/{label}" if label else f"{caller}>{server}"


class Endpoint(ClosedOnExit):
    """Serves requests of peers, and opens channels to them. Close it, or use it as a context manager."""

    address: str
    """tcp://HOST:PORT, where peers connect; with a port for each of the options' `dscp_classes`."""

    def __init__(
        self,
        credentials: Credentials,
        interface: str = "127.0.0.1",
        options: WireOptions | None = None,
        handler_threads: int = 2,
    ) -> None:
        """Listens on `interface` only (an address, or a device's name), at a port that the system chooses."""
        self.name, self._credentials, self._options = credentials.name, credentials, options or WireOptions()
        tls = Tls(credentials, self._options)
        sockets, addresses = self._listen(interface)
        self.address = joined(addresses)
        policy = POLICIES[self._options.egress]
        threads = self._options.io_threads
        self._lanes = [
            StreamThread(f"{self.name}-lane-{number}", self._options.heartbeat)
            for number in range(default_lanes() if threads is None else threads)
        ]
        self._egress, self._coflows = Egress(policy, self._options.window_bytes), Coflows(self.name)
        self._serving = RequestServer(self.name, handler_threads, self._put, cuts=policy.within)
        self._exchange = CallExchange(tls, self._options, self._egress, self._serving, self._lanes, sockets)
        self._links: dict[tuple[str, str], Link] = {}
        self._addresses: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._exchange.loop.start()

    def serve(self, kind: str, handler: Handler, at_once: bool = False) -> None:
        """Have requests of a kind answered by `handler(request, sender)`: by a message, or by parts one by one.

        Handlers run in the endpoint's threads, may be called twice for one call, and may raise: the caller gets the
        error. One that never waits may run `at_once` in the thread that owns the sockets: waking another one takes
        longer than such a handler does.
        """
        self._serving.register(kind, handler, at_once)

    def meet(self, name: str, address: str) -> None:
        """Set a peer's address. Its channels connect there, and unanswered requests are sent again."""
        self._check(name)
        if not ADDRESS.fullmatch(address):
            raise PenstockError(
                f"{name} cannot have the address {address!r}: write tcp://HOST:PORT.", code="invalid-value"
            )
        with self._lock:
            if self._addresses.get(name) == address:
                return
            self._addresses[name] = address
            for link in self._links.values():
                if link.channel.peer == name:
                    self._connect(link, address)

    def channel(self, peer: str, flow: str = "", priority: int = 0) -> Channel:
        """The channel to a peer, with a connection of its own; the same one for the same arguments."""
        self._check(peer)
        with self._lock:
            link = self._links.get((peer, flow))
            if link is None:
                link = self._links[peer, flow] = self._link(peer, flow, priority)
                if peer in self._addresses:
                    self._connect(link, self._addresses[peer])
        if link.channel.flow.priority != priority:
            raise PenstockError(
                f"The flow {link.channel.flow.name} already has priority {link.channel.flow.priority}, not {priority}:"
                " give the other one a name of its own.",
                code="duplicate",
            )
        return link.channel

    def flows(self) -> list[FlowCount]:
        """The traffic of every flow to or from this process."""
        return [flow.count() for flow in self._egress.flows()]

    def coflows(self) -> dict[str, dict[str, Any]]:
        """Figures of the coflows of this process's calls, by kind, as `coflow_figures` reads them."""
        return self._coflows.tallies()

    def served(self) -> dict[str, float]:
        """CPU seconds spent on answers, by the peer that asked."""
        return self._serving.seconds()

    @property
    def refused(self) -> int:
        """The number of connections that failed to authenticate."""
        return self._exchange.refused

    @property
    def malformed(self) -> int:
        """The number of malformed messages from authenticated peers."""
        return self._exchange.malformed

    def close(self) -> None:
        """End calls and handlers, let answers leave, join every thread; may be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            links = list(self._links.values())
        for link in links:
            link.channel.close()
        self._serving.close()
        self._exchange.stop()
        self._exchange.loop.join()
        for lane in self._lanes:
            lane.close()

    def _listen(self, interface: str) -> tuple[list[socket.socket], list[str]]:
        """A socket for each class of packets, and their addresses."""
        sockets, addresses = list[socket.socket](), list[str]()
        try:
            for mark in self._options.marks:
                made, address = listening_socket(interface, mark, self._options.send_buffer_bytes)
                sockets.append(made)
                addresses.append(address)
        except BaseException as error:
            for made in sockets:
                made.close()
            if isinstance(error, OSError):
                raise PenstockError(
                    f"{self.name} cannot listen on {interface!r} ({error}): name an address of this machine.",
                    code="invalid-value",
                ) from None
            raise
        return sockets, addresses

    def _link(self, peer: str, label: str, priority: int) -> Link:
        loop = self._exchange.loop
        flow = self._egress.flow(flow_name(self.name, peer, label), priority)
        channel = Channel(peer, label, flow, self._egress, self._coflows, self._options.call_timeout, loop.soon)
        link = Link(channel, loop, self._options, self._exchange.calling, self._exchange, len(self._lanes))
        loop.soon(lambda: self._exchange.add(link))
        return link

    def _connect(self, link: Link, address: str) -> None:
        self._exchange.loop.soon(lambda: link.connect(address))

    def _put(self, out: Outgoing) -> None:
        self._egress.put(out)
        self._exchange.loop.soon()

    def _check(self, peer: str) -> None:
        if peer not in self._credentials.peers:
            raise PenstockError(
                f"{self.name} knows no peer {peer!r}{nearest(peer, self._credentials.peers)}", code="unknown-name"
            )
        if self._closed:
            raise PenstockError(
                f"The endpoint {self.name} is closed: open channels to {peer} before closing it.", code="closed"
            )
