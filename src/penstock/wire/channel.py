"""Channels: calls from this task to another, in progress and answered, over a connection that is reopened."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.errors import Code, PenstockError, known_code
from penstock.wire.coflows import NO_COFLOW, Coflow, Coflows
from penstock.wire.egress import Egress, Flow, Outgoing
from penstock.wire.message import Joining, Loan, Message, Received, encode, frame_bytes
from penstock.wire.options import WireOptions
from penstock.wire.sockets import EventLoop, connecting_socket, endpoint, is_numeric, split_address
from penstock.wire.transport.connection import Connection, ConnectionGroup, Owner, new_group
from penstock.wire.transport.frames import Frames

# A call in progress: its answer or the parts of it as they arrive, how it can fail, and the bytes it received.


class PeerLost(PenstockError):  # noqa: N818
    """A peer was silent for as long as the call would wait."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="peer-lost")


class RemoteError(PenstockError):
    """The peer's handler raised an error; `type` is the name of its class."""

    def __init__(self, sentence: str, type: str = "PenstockError", code: Code = "unexpected-failure") -> None:
        super().__init__(sentence, code=code)
        self.type = type


class PendingCall:
    """A call that the caller's thread waits for and the wire's fills. Its timeout begins anew with every message of the
    peer.
    """

    def __init__(
        self,
        message: Message,
        call: int,
        peer: str,
        timeout: float,
        explain: Callable[[], str],
        coflow: Coflow = NO_COFLOW,
    ) -> None:
        """`timeout` in seconds; `explain` describes the state of the connection, for the error."""
        self.message, self.call, self.timeout, self.loan = message, call, timeout, Loan(message.done)
        self.outgoing: Outgoing | None = None
        """The request while it waits to be sent."""
        self.coflow, self.meter = coflow, own_meter()
        """The coflow and the meter of the caller."""
        self.last_sent = self.last_sign = time.monotonic()
        self._peer, self._explain = peer, explain
        self._parts: dict[int, Message] = {}
        self._seen: set[int] = set()
        self._slices = Joining()
        self._total, self._single = -1, False
        self._answer: Message | None = None
        self._error: PenstockError | None = None
        self._changed = threading.Condition()

    def result(self) -> Message:
        """Wait for the single answer. Raises PeerLost, or RemoteError if the handler raised."""
        if self._answer is None:
            self._answer = next(self.parts(), None)
        if self._answer is None or not self._single:
            raise PenstockError(
                f"{self._peer} answers {self.message.kind!r} in parts: take them from parts().",
                code="malformed-message",
            )
        return self._answer

    def parts(self) -> Iterator[Message]:
        """The parts of the answer, in order, each as soon as it has arrived; an answer in one piece
        is its only part.
        """
        number = 0
        while (part := self._part(number)) is not None:
            yield part
            number += 1

    @property
    def over(self) -> bool:
        """Whether the call has ended."""
        with self._changed:
            return self._over()

    @property
    def deadline(self) -> float:
        """When the call fails unless the peer sends something before, in seconds of `time.monotonic`."""
        return self.last_sign + self.timeout

    def accept(self, received: Received) -> None:
        """Store what the peer sent. A repeated part is ignored."""
        with self._changed:
            if self._over():
                return
            self.last_sign = time.monotonic()
            if received.sign == "slice":
                whole = self._slices.take(received)
                if whole is None:
                    return
                received = whole
            if received.sign == "error":
                self._error = _remote_error(received.message)
            elif received.sign == "end":
                self._total = received.number
            elif received.number not in self._seen:
                self._seen.add(received.number)
                self._parts[received.number] = received.message
                if received.sign == "answer":
                    self._total, self._single = 1, True
            if self._over():
                self._slices.clear()
            self._changed.notify_all()

    def lose(self) -> None:
        """Fail the call because its time is over."""
        self.fail(self._lost())

    def fail(self, error: PenstockError) -> None:
        """Fail the call, unless it has ended."""
        with self._changed:
            if not self._over():
                self._error = error
                self._slices.clear()
                self._changed.notify_all()

    def _over(self) -> bool:
        return self._error is not None or len(self._seen) == self._total

    def _lost(self) -> PeerLost:
        kind, seconds = self.message.kind, self.timeout
        return PeerLost(f"{self._peer} did not answer {kind!r} within {seconds:g} s: {self._explain()}.")

    def _part(self, number: int) -> Message | None:
        with self._changed:
            while number not in self._parts:
                if self._error is not None:
                    raise self._error
                if number == self._total:
                    return None
                rest = self.deadline - time.monotonic()
                if rest <= 0:
                    # This includes a peer that numbered its parts wrongly, so that this one will never come.
                    self._error = self._lost()
                else:
                    self._changed.wait(rest)
            return self._parts.pop(number)


def _remote_error(message: Message) -> RemoteError:
    body = message.body
    return RemoteError(str(body.get("sentence", "")), str(body.get("type", "")), known_code(body.get("code")))


_THREAD = threading.local()


class Meter:
    """Bytes received in answers to the calls of one thread."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, str], int] = {}

    def count(self, peer: str, flow: str, size: int) -> None:
        """Count bytes that arrived from a peer over a flow."""
        self._bytes[peer, flow] = self._bytes.get((peer, flow), 0) + size

    def take(self) -> dict[tuple[str, str], int]:
        """The bytes that arrived since the last call, by (peer, flow)."""
        found, self._bytes = self._bytes, {}
        return found


def own_meter() -> Meter:
    """The meter of the calling thread."""
    meter: Meter | None = getattr(_THREAD, "meter", None)
    if meter is None:
        meter = _THREAD.meter = Meter()
    return meter


# A channel: calls from this task to another, over a connection of their own.

_CALLS = itertools.count(1)
"""Numbers of calls, unique in a process."""


class Channel:
    """Calls to one peer. Any thread may call, many at once. Answers come in any order.

    A call is sent again when the connection was reopened or the peer was silent for long: handlers may see it twice.
    """

    def __init__(
        self,
        peer: str,
        label: str,
        flow: Flow,
        egress: Egress,
        coflows: Coflows,
        timeout: float,
        wake: Callable[[], None],
    ) -> None:
        """`timeout`: default seconds of calls; `wake` makes the wire look at its queues."""
        self.peer, self.label, self.flow = peer, label, flow
        self.state = "it is not known where it is"
        """The state of the connection, in words."""
        self._egress, self._coflows, self._timeout, self._wake = egress, coflows, timeout, wake
        self._calls: dict[int, PendingCall] = {}
        self._closed = False
        self._lock = threading.Lock()

    def call(self, message: Message, timeout: float | None = None) -> Message:
        """Send a request and wait for the single answer. Raises PeerLost when the peer was silent for `timeout`
        seconds.
        """
        return self.start(message, timeout).result()

    def start(self, message: Message, timeout: float | None = None) -> PendingCall:
        """Send a request and wait later. `message` and its arrays must not change until the answer has arrived."""
        seconds = self._timeout if timeout is None else timeout
        pending = PendingCall(message, next(_CALLS), self.peer, seconds, lambda: self.state, self._coflows.own())
        out = self._outgoing(pending)
        with self._lock:
            if self._closed:
                raise PenstockError(f"The channel to {self.peer} is closed: call before closing it.", code="closed")
            # Counted before the call can end: coflows count calls in progress.
            self._coflows.asked(pending.coflow, out.size, self.label)
            self._calls[pending.call] = pending
            pending.outgoing = out
        self._egress.put(out)
        self._wake()
        return pending

    def receive(self, received: Received, size: int) -> None:
        """Handle an answer of `size` bytes, or a part of one. The call may have ended already."""
        self._egress.received(self.flow, size)
        pending = self._calls.get(received.call)
        if pending is not None:
            pending.meter.count(self.peer, self.label, size)
            self._coflows.answered(pending.coflow, size, self.label)
            pending.accept(received)
            if pending.over:
                self._forget(pending)

    def repeat(self) -> None:
        """Send all unanswered requests again over a new connection."""
        for pending in self._open_calls():
            self._resend(pending)

    def tick(self, now: float) -> None:
        """Fail calls whose time is over; repeat requests after a quarter of it without a message."""
        for pending in self._open_calls():
            if pending.over or now >= pending.deadline:
                pending.lose()
                self._forget(pending)
            elif now - max(pending.last_sent, pending.last_sign) > pending.timeout / 4:
                self._resend(pending)

    def close(self) -> None:
        """Close the channel; unanswered calls fail."""
        with self._lock:
            self._closed = True
        for pending in self._open_calls():
            pending.fail(PenstockError(f"The channel to {self.peer} was closed before it answered.", code="closed"))
            self._forget(pending)

    @property
    def busy(self) -> bool:
        """Whether any request is unanswered."""
        return bool(self._calls)

    def _open_calls(self) -> list[PendingCall]:
        with self._lock:
            return list(self._calls.values())

    def _resend(self, pending: PendingCall) -> None:
        if pending.outgoing is None:
            pending.outgoing = self._outgoing(pending)
            self._egress.put(pending.outgoing)

    def _outgoing(self, pending: PendingCall) -> Outgoing:
        flow = self.flow
        frames = encode(pending.message, pending.call, "ask", 0, self.label, flow.priority, pending.coflow)
        pending.loan.hold()

        def sent(handed_over: bool) -> None:
            pending.outgoing, pending.last_sent = None, time.monotonic()

        return Outgoing(flow, None, frames, frame_bytes(frames), sent, pending.loan.release, pending.coflow.turn)

    def _forget(self, pending: PendingCall) -> None:
        with self._lock:
            if self._calls.pop(pending.call, None) is None:
                return
        self._coflows.ended(pending.coflow)
        if pending.outgoing is not None:
            pending.outgoing.cancelled = True
        for out in self._egress.withdraw(self.flow):
            out.sent(False)
            out.left()
        pending.loan.release()


# The connection behind a channel; it is reopened when it was lost or the peer has moved.

_SOONEST, _LATEST = 0.05, 1.0
"""Seconds between two attempts to connect: the first, doubled every time up to the last."""

Call = Callable[[socket.socket, str, bytes, int, Owner], Connection]
"""Makes the connection of a socket that is being connected to a peer: one of a group, with its number there."""


class Answers(Protocol):
    """Receives the answers that arrive on a link, and its loss."""

    def connected(self, link: "Link") -> None:
        """Called when there is an authenticated connection to the peer."""

    def answered(self, link: "Link", frames: Frames) -> None:
        """Called with an answer. May raise Malformed."""

    def retry(self, moment: float) -> None:
        """Called with the time at which `Link.tick` should be called, in seconds of `time.monotonic`."""


class Link:
    """The sending side of a channel to one peer, and the `Owner` of its connection. Used only by the loop's thread."""

    def __init__(
        self, channel: Channel, loop: EventLoop, options: WireOptions, call: Call, answers: Answers, more: int
    ) -> None:
        """`more`: connections for large messages, beside the first."""
        self.channel = channel
        self.group: ConnectionGroup | None = None
        """Its connections, once the peer is authenticated."""
        self._loop, self._options, self._call, self._answers = loop, options, call, answers
        self._more, self._is_wide = more, False
        self._name, self._dialled = b"", set[Connection]()
        """The group's name, and its connections that are not open yet."""
        self._address, self._numeric = "", ("", 0)
        self._attempt = 0
        """Counts addresses and attempts, so that the result of an earlier lookup is not used."""
        self._wait, self._next = _SOONEST, float("inf")

    @property
    def connected(self) -> bool:
        """Whether there is an authenticated peer at the other end."""
        return self.group is not None

    def connect(self, address: str) -> None:
        """Connect to the peer's current address; unanswered requests are sent again."""
        if address == self._address:
            return
        self.close()
        self._address, self._wait = address, _SOONEST
        self.channel.state = f"there is no connection to {address}"
        self.channel.repeat()
        self._try()

    def tick(self, now: float) -> None:
        """Check timeouts; reconnect when it is time to."""
        for connection in self._all():
            connection.tick(now)
        if self.group is not None:
            for connection in self.group.worn():
                self._replace(connection.stripe)
        if now >= self._next:
            self._try()

    def soonest(self) -> float:
        """When `tick` should be called, in seconds of `time.monotonic`."""
        return self._next

    def close(self) -> None:
        """Close the connection and drop what waits."""
        self._attempt += 1
        self._next, self._address = float("inf"), ""
        self._drop()

    def widen(self) -> None:
        """Open connections for large messages, unless there are some."""
        if not self._is_wide and self.group is not None:
            self._is_wide = True
            for stripe in range(1, self._more + 1):
                self._dial(stripe)

    def opened(self, connection: Connection) -> None:
        self._dialled.discard(connection)
        if self.group is not None:
            self.group.add(connection)
            return
        self.group = ConnectionGroup(connection)
        self.channel.state = f"it is connected at {self._address} but gave no sign"
        self._wait = _SOONEST
        self._answers.connected(self)

    def received(self, connection: Connection, frames: Frames) -> None:
        self._answers.answered(self, frames)

    def lost(self, connection: Connection, reason: str) -> None:
        """Repeat requests that were sent over a lost connection over the next one, as they may not have left."""
        if self.group is not None:
            # A further connection that failed, or one that was replaced, is not needed.
            self._dialled.discard(connection)
            if not self.group.ends_with(connection, reason):
                return
        self._drop()
        if connection.peer:
            self.channel.state = f"there is no connection to {self._address}"
            self.channel.repeat()
            self._try()
        elif connection.reached:
            self._failed(f"{self._address} refuses this task, or is not {self.channel.peer} ({reason})")
        else:
            self._failed(f"there is no connection to {self._address}")

    def _failed(self, state: str) -> None:
        self.channel.state = state
        self._next = time.monotonic() + self._wait
        self._answers.retry(self._next)
        self._wait = min(2 * self._wait, _LATEST)

    def _try(self) -> None:
        self._attempt += 1
        self._next = float("inf")
        try:
            host, port = split_address(endpoint(self._address, self._place))
        except ValueError:
            self._failed(f"there is no connection to {self._address}, which has no port between 1 and 65535")
            return
        if is_numeric(host):
            self._begin(host, port)
        else:
            given = host, port, self._attempt
            threading.Thread(target=self._look_up, args=given, name="wire-looks-up", daemon=True).start()

    @property
    def _place(self) -> int:
        return self._options.class_of(self.channel.flow.priority)

    def _look_up(self, host: str, port: int, attempt: int) -> None:
        """Resolve a host's name in a thread, as the system may take long."""
        try:
            found = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            found = ""

        def dial() -> None:
            if attempt != self._attempt:
                return
            if found:
                self._begin(found, port)
            else:
                self._failed(f"there is no connection to {self._address}, whose host name cannot be resolved")

        self._loop.soon(dial)

    def _begin(self, host: str, port: int) -> None:
        self._numeric, self._name = (host, port), new_group()
        self._dial(0)

    def _replace(self, stripe: int) -> None:
        """Open a connection with fresh keys, unless one is being opened."""
        if all(each.stripe != stripe for each in self._dialled):
            self._dial(stripe)

    def _dial(self, stripe: int) -> None:
        options = self._options
        try:
            made = connecting_socket(*self._numeric, options.marks[self._place], options.send_buffer_bytes)
        except OSError as error:
            if self.group is None:
                self._failed(f"there is no connection to {self._address} ({error.strerror})")
            return
        connection = self._call(made, self.channel.peer, self._name, stripe, self)
        self._dialled.add(connection)
        connection.start()

    def _all(self) -> list[Connection]:
        return [*self._dialled, *(self.group.connections() if self.group is not None else ())]

    def _drop(self) -> None:
        for connection in self._all():
            connection.close()
        self.group, self._is_wide = None, False
        self._dialled.clear()
