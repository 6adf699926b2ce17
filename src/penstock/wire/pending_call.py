"""A call in progress: its answer or the parts of it as they arrive, how it can fail, and the bytes it received."""

import threading
import time
from collections.abc import Callable, Iterator

from penstock.coflow_context import NO_COFLOW, Coflow
from penstock.errors import Code, PenstockError, known_code
from penstock.wire.egress import Outgoing
from penstock.wire.loan import Loan
from penstock.wire.message import Message, Received
from penstock.wire.slices import Joining


class PeerLost(PenstockError):  # noqa: N818
    """A peer gave no sign for as long as the call would wait."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="peer-lost")


class RemoteError(PenstockError):
    """The peer's handler raised. `type` is the name of what it raised."""

    def __init__(self, sentence: str, type: str = "PenstockError", code: Code = "unexpected-failure") -> None:
        super().__init__(sentence, code=code)
        self.type = type


class PendingCall:
    """Waited for by the caller's thread, filled by the wire's. Its time runs anew with every sign of the peer."""

    def __init__(
        self,
        message: Message,
        call: int,
        peer: str,
        timeout: float,
        explain: Callable[[], str],
        coflow: Coflow = NO_COFLOW,
    ) -> None:
        """`timeout` in seconds; `explain` says how the connection stands, for the error."""
        self.message, self.call, self.timeout, self.loan = message, call, timeout, Loan(message.done)
        self.outgoing: Outgoing | None = None
        """The request while it waits to be sent."""
        self.coflow, self.meter = coflow, own_meter()
        """Of whoever made the call."""
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
        """Wait for the one answer. Raises PeerLost, or RemoteError if the handler raised."""
        if self._answer is None:
            self._answer = next(self.parts(), None)
        if self._answer is None or not self._single:
            raise PenstockError(
                f"{self._peer} answers {self.message.kind!r} in parts: take them from parts().",
                code="malformed-message",
            )
        return self._answer

    def parts(self) -> Iterator[Message]:
        """The parts of the answer, in order, each as soon as it is there; an answer in one piece is its only part."""
        number = 0
        while (part := self._part(number)) is not None:
            yield part
            number += 1

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        with self._changed:
            return self._over()

    @property
    def deadline(self) -> float:
        """When the call has failed unless there is a sign before, in seconds of `time.monotonic`."""
        return self.last_sign + self.timeout

    def accept(self, received: Received) -> None:
        """What the peer sent. A part that is there already is not taken twice."""
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
        """The call's time is over."""
        self.fail(self._lost())

    def fail(self, error: PenstockError) -> None:
        """End the call, unless it has ended."""
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
                    # Also where a peer numbered its parts wrongly, so that this one will never come.
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
        """More has arrived from a peer, over a flow of that name."""
        self._bytes[peer, flow] = self._bytes.get((peer, flow), 0) + size

    def take(self) -> dict[tuple[str, str], int]:
        """What arrived since the last time, by (peer, flow)."""
        found, self._bytes = self._bytes, {}
        return found


def own_meter() -> Meter:
    """The meter of the calling thread."""
    meter: Meter | None = getattr(_THREAD, "meter", None)
    if meter is None:
        meter = _THREAD.meter = Meter()
    return meter
