"""A process's end of the wire: one thread owns every socket, a few run handlers."""

import threading
from types import TracebackType
from typing import Any, Self

import zmq

from penstock.errors import PenstockError, nearest
from penstock.wire.addresses import ADDRESS, joined
from penstock.wire.channel import Channel
from penstock.wire.coflows import Coflows
from penstock.wire.egress import POLICIES, Egress, FlowCount, Outgoing
from penstock.wire.exchange import Exchange, flow_name
from penstock.wire.gate import Gate
from penstock.wire.keys import Credentials
from penstock.wire.link import Link
from penstock.wire.message import LIMITS
from penstock.wire.options import WireOptions
from penstock.wire.serving import Handler, Serving
from penstock.wire.sockets import Socket, serving_socket

_DOOR = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks whether a peer may come in; the name is its own."""


class Post:
    """Serves requests of peers, and opens channels to them. Close it, or use it as a context."""

    address: str
    """tcp://HOST:PORT, where peers find it; with a port for each of the options' `dscp_classes`."""

    def __init__(
        self,
        credentials: Credentials,
        interface: str = "127.0.0.1",
        options: WireOptions | None = None,
        handler_threads: int = 2,
    ) -> None:
        """Listens on `interface` alone (an address, or a device's name), at a port of the system's choice."""
        self.name, self._credentials, self._options = credentials.name, credentials, options or WireOptions()
        self._context = zmq.Context(self._options.io_threads)
        self._gate = Gate(credentials, self._options.security)
        door = self._context.socket(zmq.REP)
        opened: list[tuple[Socket, str]] = []
        try:
            door.bind(_DOOR)
            for place in range(len(self._options.marks)):
                made = serving_socket(self._context, credentials, interface, self._options, LIMITS, place)
                opened.append(made)
        except BaseException:
            # Also a socket that was only half made: one that stayed open would be waited for without end.
            self._context.destroy(0)
            raise
        self.address = joined([address for _, address in opened])
        policy = POLICIES[self._options.egress]
        self._egress, self._coflows = Egress(policy, self._options.window_bytes), Coflows(self.name)
        self._serving = Serving(self.name, handler_threads, self._put, cuts=policy.within)
        routers = [socket for socket, _ in opened]
        self._exchange = Exchange(self.name, self._egress, self._serving, self._gate, routers, door)
        self._links: dict[tuple[str, str], Link] = {}
        self._addresses: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._exchange.loop.start()

    def serve(self, kind: str, handler: Handler) -> None:
        """Have requests of a kind answered by `handler(request, sender)`: by a message, or by parts one by one.

        Handlers run in the post's threads, may be called twice for one call, and may raise: the caller is told.
        """
        self._serving.register(kind, handler)

    def meet(self, name: str, address: str) -> None:
        """Say where a peer is now. Its channels connect there, and what it has not answered is asked again."""
        self._check(name)
        if not ADDRESS.fullmatch(address):
            raise PenstockError(f"{name} cannot be at {address!r}: an address is tcp://HOST:PORT.")
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
                f"The flow {link.channel.flow.name} has priority {link.channel.flow.priority}, not {priority}:"
                " give the other one a name of its own."
            )
        return link.channel

    def flows(self) -> list[FlowCount]:
        """What every flow to or from this process has carried."""
        return [flow.count() for flow in self._egress.flows()]

    def coflows(self) -> dict[str, dict[str, Any]]:
        """What the coflows of this process's calls took, by kind, as `coflow_figures` reads it."""
        return self._coflows.tallies()

    def served(self) -> dict[str, float]:
        """Processor seconds spent on answers, by the peer that asked."""
        return self._serving.seconds()

    @property
    def refused(self) -> int:
        """Connections that were not let in."""
        return self._gate.refused + self._exchange.strangers

    @property
    def malformed(self) -> int:
        """Messages that were none, from peers that were let in."""
        return self._exchange.malformed

    def close(self) -> None:
        """End calls and handlers, let answers leave, join every thread. Again is no harm."""
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
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _link(self, peer: str, label: str, priority: int) -> Link:
        loop = self._exchange.loop
        flow = self._egress.flow(flow_name(self.name, peer, label), priority)
        channel = Channel(peer, label, flow, self._egress, self._coflows, self._options.call_timeout, loop.soon)
        link = Link(channel, self._context, self._credentials, self._options, LIMITS)
        loop.soon(lambda: self._exchange.add(link))
        return link

    def _connect(self, link: Link, address: str) -> None:
        self._exchange.loop.soon(lambda: self._exchange.connect(link, address))

    def _put(self, out: Outgoing) -> None:
        self._egress.put(out)
        self._exchange.loop.soon()

    def _check(self, peer: str) -> None:
        if peer not in self._credentials.peers:
            raise PenstockError(f"{self.name} knows no peer {peer!r}{nearest(peer, self._credentials.peers)}")
        if self._closed:
            raise PenstockError(f"The post of {self.name} is closed: talk to {peer} before closing it.")
