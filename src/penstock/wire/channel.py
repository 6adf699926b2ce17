"""A channel: calls from this task to another, over a connection of their own."""

import itertools
import threading
import time
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.wire.coflows import Coflows
from penstock.wire.egress import Egress, Flow, Outgoing
from penstock.wire.message import Message, Received, encode, frame_bytes
from penstock.wire.pending_call import PendingCall

_CALLS = itertools.count(1)
"""Numbers of calls: no two of a process have the same."""


class Channel:
    """Any thread may call, many at once. Answers come in any order.

    A call is sent again when the connection was made anew or nothing was heard for long: handlers may see it twice.
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
        """`timeout`: seconds, of calls that do not say; `wake` makes the wire look at its queues."""
        self.peer, self.label, self.flow = peer, label, flow
        self.state = "it is not known where it is"
        """How the connection stands, in words."""
        self._egress, self._coflows, self._timeout, self._wake = egress, coflows, timeout, wake
        self._calls: dict[int, PendingCall] = {}
        self._closed = False
        self._lock = threading.Lock()

    def call(self, message: Message, timeout: float | None = None) -> Message:
        """Ask, and wait for the one answer. Raises PeerLost when there was no sign for `timeout` seconds."""
        return self.start(message, timeout).result()

    def start(self, message: Message, timeout: float | None = None) -> PendingCall:
        """Ask, and wait later. `message` and its arrays must stay as they are until the answer is there."""
        seconds = self._timeout if timeout is None else timeout
        pending = PendingCall(message, next(_CALLS), self.peer, seconds, lambda: self.state, self._coflows.own())
        out = self._outgoing(pending)
        with self._lock:
            if self._closed:
                raise PenstockError(f"The channel to {self.peer} is closed: call before closing it.", code="closed")
            # Before anybody can end the call: coflows count calls that are under way.
            self._coflows.asked(pending.coflow, out.size, self.label)
            self._calls[pending.call] = pending
            pending.outgoing = out
        self._egress.put(out)
        self._wake()
        return pending

    def receive(self, received: Received, size: int) -> None:
        """An answer of `size` bytes, or a part of one. Nobody may be waiting for it any more."""
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
        """End calls whose time is over; ask again where nothing was heard for a quarter of it."""
        for pending in self._open_calls():
            if pending.over or now >= pending.deadline:
                pending.lose()
                self._forget(pending)
            elif now - max(pending.last_sent, pending.last_sign) > pending.timeout / 4:
                self._resend(pending)

    def close(self) -> None:
        """Nothing more is asked, and what has not been answered has failed."""
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
