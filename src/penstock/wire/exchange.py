"""What the wire's thread does with its sockets: lets peers in, reads, sends, and keeps calls to their time."""

import time
from collections.abc import Callable
from functools import partial

import zmq
from zmq.utils.monitor import recv_monitor_message

from penstock.wire.answer import Asked
from penstock.wire.departure import send
from penstock.wire.egress import Egress, Outgoing, Route
from penstock.wire.gate import Gate
from penstock.wire.link import Link
from penstock.wire.loop import Loop
from penstock.wire.message import Malformed, decode, frame_bytes
from penstock.wire.serving import Serving
from penstock.wire.sockets import STRANGE, Socket, monitor_of

_AT_ONCE = 64
"""Messages read from one socket, or sent, before the others have their turn."""
_TICK, _IDLE = 0.1, 1.0
"""Seconds between looks at the clock: with something under way, and without."""
_DRAIN, _LINGER_MS = 0.5, 200
"""What answers on their way are given at the end: seconds in our queues, milliseconds in ZeroMQ's."""
_LABELS = 256
"""Flows that one peer may open."""


class Exchange:
    """Belongs to the loop's thread, but for `stop` and the counters."""

    def __init__(
        self, name: str, egress: Egress, serving: Serving, gate: Gate, routers: list[Socket], door: Socket
    ) -> None:
        """`routers` are where peers ask, one for each class of packets; at `door` ZeroMQ asks the gate about them."""
        self.malformed = self.strangers = 0
        self.loop = Loop(name, self._turn, self._close)
        self._name, self._egress, self._serving = name, egress, serving
        self._gate, self._routers, self._door = gate, routers, door
        self._links: dict[int, Link] = {}
        """By the identity of their flow."""
        self._labels: dict[str, set[str]] = {}
        self._events = [monitor_of(router, STRANGE) for router in routers]
        self._next_tick, self._end = 0.0, float("inf")
        self._hears, self._lent = False, 0
        self.loop.watch(door, self._let_in)
        for events in self._events:
            self.loop.watch(events, partial(self._count_strangers, events))
        self._mind_inbox()

    def stop(self) -> None:
        """End soon, when what is on its way has left."""
        self._end = time.monotonic() + _DRAIN
        self.loop.soon()

    def add(self, link: Link) -> None:
        """Keep its calls to their time, also while nobody knows where the peer is."""
        self._links[id(link.channel.flow)] = link
        self._egress.unblock(link.channel.flow)

    def connect(self, link: Link, address: str, anew: bool = False) -> None:
        """Open a link, or open it anew, at the peer's address."""
        for socket in (link.socket, link.monitor):
            if socket is not None:
                self.loop.unwatch(socket)
        link.connect(address, anew)
        if link.socket is not None and link.monitor is not None:
            self.loop.watch(link.socket, partial(self._read_answers, link))
            self.loop.watch(link.monitor, partial(self._hear_of, link))

    def _hear_of(self, link: Link) -> None:
        """Send when there is a connection. Of one that was lost nothing stays with ZeroMQ, neither way."""
        if link.hear():
            self.connect(link, link.address, anew=True)
        elif link.connected:
            self._egress.unblock(link.channel.flow)

    def _turn(self) -> float | None:
        more = self._send()
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + _TICK
            for link in self._links.values():
                link.channel.tick(now)
            self._mind_inbox()
        leaving = self._lent > 0 or self._egress.waiting() > 0
        if now >= self._end or (self._end < float("inf") and not leaving):
            return None
        busy = leaving or not self._hears or any(link.channel.busy for link in self._links.values())
        return 0.0 if more else (_TICK if busy else _IDLE)

    def _send(self) -> bool:
        """Send what may go; whether there is more."""
        for _ in range(_AT_ONCE):
            out = self._egress.take(time.monotonic())
            if out is None:
                return False
            self._hand_over(out)
        return True

    def _hand_over(self, out: Outgoing) -> None:
        if out.route is None:
            self._ask(out, self._links.get(id(out.flow)))
            return
        try:
            self._give(self._routers[out.route.entrance], out)
        except zmq.ZMQError:
            # Who asked is gone.
            out.frames.clear()
            out.sent(False)
            self._left(out)

    def _ask(self, out: Outgoing, link: Link | None) -> None:
        if link is None or link.socket is None or not link.connected:
            # Nobody has met the peer, or it is not there; or the channel was faster than its link, on its way here.
            self._egress.put_back(out)
        else:
            self._give(link.socket, out)

    def _give(self, socket: Socket, out: Outgoing) -> None:
        identity = None if out.route is None else out.route.identity
        gone = send(socket, identity, out.frames, lambda: self._tell_left(out))
        self._egress.handed_over(out)
        out.sent(True)
        if gone:
            self._left(out)
        else:
            self._lent += 1

    def _tell_left(self, out: Outgoing) -> None:
        """From any thread. There is room again for more than one message when half of them have left."""

        def returned() -> None:
            self._lent -= 1
            self._left(out)

        self.loop.soon(returned, together=self._lent // 2)

    def _left(self, out: Outgoing) -> None:
        self._egress.left(out, time.monotonic())
        out.left()

    def _read_requests(self, entrance: int) -> None:
        self._each(self._routers[entrance], partial(self._request, entrance))
        self._mind_inbox()

    def _read_answers(self, link: Link) -> None:
        if link.socket is not None:
            self._each(link.socket, lambda frames: self._answer(link, frames))

    def _each(self, socket: Socket, take: Callable[[list[zmq.Frame]], None]) -> None:
        for _ in range(_AT_ONCE):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.ZMQError:
                return
            try:
                take(frames)
            except Malformed:
                self.malformed += 1

    def _request(self, entrance: int, frames: list[zmq.Frame]) -> None:
        route, content = Route(entrance, frames[0].bytes), frames[1:]
        # The name that the gate gave this connection; what a message says of its sender is worth nothing.
        sender = str(content[0].get("User-Id"))
        received = decode(content)
        if received.sign != "ask":
            raise Malformed("it answers nothing.")
        labels = self._labels.setdefault(sender, set())
        labels.add(received.flow)
        if len(labels) > _LABELS:
            labels.discard(received.flow)
            raise Malformed("its sender has too many flows.")
        flow = self._egress.flow(flow_name(sender, self._name, received.flow), received.priority, serving=True)
        size = frame_bytes(content)
        self._egress.received(flow, size)
        self._serving.request(Asked(received, sender, route, flow, size))

    def _answer(self, link: Link, frames: list[zmq.Frame]) -> None:
        received = decode(frames)
        if received.sign == "ask":
            raise Malformed("it asks over a connection that answers.")
        link.channel.receive(received, frame_bytes(frames))

    def _mind_inbox(self) -> None:
        """Read requests only while they can be held."""
        hears = not self._serving.full()
        for entrance, router in enumerate(self._routers):
            if hears and not self._hears:
                self.loop.watch(router, partial(self._read_requests, entrance))
            elif self._hears and not hears:
                self.loop.unwatch(router)
        self._hears = hears

    def _let_in(self) -> None:
        while self._door.poll(0):
            self._door.send_multipart(self._gate.answer(self._door.recv_multipart()))

    def _count_strangers(self, events: Socket) -> None:
        while events.poll(0):
            recv_monitor_message(events, zmq.NOBLOCK)
            self.strangers += 1

    def _close(self) -> None:
        for link in self._links.values():
            link.channel.close()
            link.close()
        for flow in self._egress.flows():
            for out in self._egress.withdraw(flow, everything=True):
                out.sent(False)
                out.left()
        for router, events in zip(self._routers, self._events, strict=True):
            router.disable_monitor()
            events.close(0)
            router.close(_LINGER_MS)
        # The door last: without it ZeroMQ would let anybody in.
        self._door.close(0)


def flow_name(caller: str, server: str, label: str) -> str:
    """How a flow is called everywhere."""
    return f"{caller}>{server}/{label}" if label else f"{caller}>{server}"
