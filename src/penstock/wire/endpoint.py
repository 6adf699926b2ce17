"""A process's endpoint on the wire: one thread owns every socket, a few run handlers."""

import socket
import threading
from typing import Any

from penstock.closed_on_exit import ClosedOnExit
from penstock.errors import PenstockError, nearest
from penstock.wire.channel import Channel
from penstock.wire.coflows import Coflows
from penstock.wire.egress import POLICIES, Egress, FlowCount, Outgoing
from penstock.wire.exchange import CallExchange, flow_name
from penstock.wire.keys import Credentials
from penstock.wire.link import Link
from penstock.wire.options import WireOptions
from penstock.wire.request_server import Handler, RequestServer
from penstock.wire.transport import Lane, Tls, default_lanes
from penstock.wire.transport.tcp import ADDRESS, joined, listening_socket


class Endpoint(ClosedOnExit):
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
        tls = Tls(credentials, self._options)
        sockets, addresses = self._listen(interface)
        self.address = joined(addresses)
        policy = POLICIES[self._options.egress]
        threads = self._options.io_threads
        self._lanes = [
            Lane(f"{self.name}-lane-{number}", self._options.heartbeat)
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

        Handlers run in the post's threads, may be called twice for one call, and may raise: the caller is told. One
        that only puts away what came, and never waits, may run `at_once` in the thread that owns the sockets: waking
        another one takes longer than such a handler does.
        """
        self._serving.register(kind, handler, at_once)

    def meet(self, name: str, address: str) -> None:
        """Say where a peer is now. Its channels connect there, and what it has not answered is asked again."""
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
        """The number of connections that failed to authenticate."""
        return self._exchange.refused

    @property
    def malformed(self) -> int:
        """The number of malformed messages from authenticated peers."""
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
