"""The server side of a process: handlers by kind, threads that run them, answers that stream."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.wire.coflows import within_coflow
from penstock.wire.egress import Flow, Outgoing, Route
from penstock.wire.message import SLICE_BYTES, Loan, Message, Received, cut, encode, frame_bytes

# One answer: whole, or in parts that are produced no faster than they are sent.

log = logging.getLogger("penstock.wire")

_AHEAD, _RESUMED = 8, 2
"""The most parts that wait in the egress queue, and the number at which more are produced: several for one waking of a
thread.
"""
_SENTENCE = 4096
"""Characters of an error that are sent."""

Step = Callable[[], None]


class ReceivedRequest(NamedTuple):
    """A request and where it came from."""

    received: Received
    sender: str
    route: Route
    flow: Flow
    size: int
    """Bytes."""


class StreamedAnswer:
    """An answer that holds no thread between two parts: `again` gets the next step when there is room for one."""

    def __init__(
        self,
        asked: ReceivedRequest,
        name: str,
        put: Callable[[Outgoing], None],
        again: Callable[[Step], None],
        wanted: Callable[[], bool],
        ended: Callable[[ReceivedRequest], None],
        cuts: bool = False,
    ) -> None:
        """`put` queues a message, `wanted` says whether others wait for the thread, `ended` is called when nothing more
        will leave. With `cuts` large messages leave in slices.
        """
        self._cuts = cuts
        self._asked, self._name, self._put, self._ended = asked, name, put, ended
        self._again, self._wanted = again, wanted
        self._parts: Iterator[Message] = iter(())
        self._number = self._waiting = 0
        self._parked = self._gone = False
        self._lock = threading.Lock()

    def whole(self, message: Message) -> None:
        """Send it in one piece."""
        self._send(message, "answer", 0)

    def stream(self, parts: Iterator[Message]) -> None:
        """Send it part by part."""
        self._parts = parts
        self._steps()

    def fail(self, error: Exception) -> None:
        """Send an error: for a PenstockError its sentence; anything else is a fault, and its traceback is logged."""
        kind, sentence = self._asked.received.message.kind, str(error)
        if not isinstance(error, PenstockError):
            log.error("%s failed at %r.", self._name, kind, exc_info=error)
            sentence = f"{self._name} failed at {kind!r} ({type(error).__name__}: {error}): its log has the traceback."
        # An error may quote what the caller sent, or a file's name: characters that are not text cannot be sent.
        said = sentence[:_SENTENCE].encode(errors="backslashreplace").decode()
        code = error.code if isinstance(error, PenstockError) else "unexpected-failure"
        self._send(Message("error", {"sentence": said, "type": type(error).__name__, "code": code}), "error", 0)

    def _steps(self) -> None:
        """Make and send parts as long as there is room for them and no other request needs the thread."""
        while self._step():
            if self._wanted():
                self._again(self._steps)
                return

    def _step(self) -> bool:
        """Make and send the next part; returns whether there is room for another."""
        try:
            part = None if self._gone else next(self._parts, None)
            if part is None:
                self._finish()
                return False
            with self._lock:
                self._waiting += 1
            self._send(part, "part", self._number)
        except Exception as error:
            self._close()
            self.fail(error)
            return False
        self._number += 1
        with self._lock:
            self._parked = self._waiting >= _AHEAD and not self._gone
            return not self._parked

    def _finish(self) -> None:
        if self._gone:
            self._close()
            self._ended(self._asked)
        else:
            self._send(Message("end"), "end", self._number)

    def _close(self) -> None:
        """Close a generator, so that it can clean up."""
        close = getattr(self._parts, "close", None)
        if close is not None:
            close()

    def _send(self, message: Message, sign: str, number: int) -> None:
        loan = Loan(message.done)
        try:
            frames = self._frames(message, sign, number)
            pieces = [frames]
            if self._cuts and sign in ("answer", "part") and frame_bytes(frames) > SLICE_BYTES:
                pieces = [self._frames(piece, "slice", place) for place, piece in enumerate(cut(frames))]
        except PenstockError:
            loan.release()
            raise
        sent = self._part_sent if sign == "part" else self._last_sent
        asked = self._asked
        for place, piece in enumerate(pieces, 1):
            last = place == len(pieces)
            if not last:
                loan.hold()
            told = sent if last else _nothing
            turn = asked.received.coflow.turn
            self._put(Outgoing(asked.flow, asked.route, piece, frame_bytes(piece), told, loan.release, turn))

    def _frames(self, message: Message, sign: str, number: int) -> list[bytes | Array]:
        """Answers have the priority and the coflow of their request."""
        asked = self._asked.received
        return encode(message, asked.call, sign, number, "", asked.priority, asked.coflow)

    def _part_sent(self, handed_over: bool) -> None:
        with self._lock:
            self._waiting -= 1
            self._gone = self._gone or not handed_over
            resumed = self._parked and (self._gone or self._waiting <= _RESUMED)
            self._parked = self._parked and not resumed
        if resumed:
            self._again(self._steps)

    def _last_sent(self, handed_over: bool) -> None:
        self._ended(self._asked)


def _nothing(handed_over: bool) -> None:
    """Do nothing: only the last slice of a message is reported."""


Handler = Callable[[Message, str], Message | Iterable[Message]]
"""(the request, the sender's authenticated name) -> the answer, or its parts one by one."""

_INBOX_BYTES = 256 << 20
"""Bytes of requests that wait for a thread; beyond that no more are read from peers."""
_PATIENCE = 5.0
"""Seconds that closing waits for handlers."""


class RequestServer:
    """Runs handlers in threads of its own. Answers that wait for the network hold no thread."""

    def __init__(self, name: str, threads: int, put: Callable[[Outgoing], None], cuts: bool = False) -> None:
        """`put` queues a message; with `cuts` large messages leave in slices."""
        self._name, self._put, self._cuts = name, put, cuts
        self._handlers: dict[str, Handler] = {}
        self._at_once: set[str] = set()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._under_way: set[tuple[Route, int]] = set()
        self._inbox = 0
        self._seconds: dict[str, float] = {}
        self._closing = False
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"wire-{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def register(self, kind: str, handler: Handler, at_once: bool = False) -> None:
        """Set the handler of a kind of request; `at_once`: the caller of `request` runs it."""
        self._handlers[kind] = handler
        (self._at_once.add if at_once else self._at_once.discard)(kind)

    def request(self, asked: ReceivedRequest) -> None:
        """Have a request answered, unless the same one came over the same connection and is being answered."""
        key = (asked.route, asked.received.call)
        with self._lock:
            if key in self._under_way:
                return
            self._under_way.add(key)
            self._inbox += asked.size
        step = self._counted(asked, lambda: self._begin(asked))
        if asked.received.message.kind in self._at_once:
            self._do(step)
        else:
            self._work.put(step)

    def full(self) -> bool:
        """Whether so many requests wait that no more should be read."""
        return self._inbox > _INBOX_BYTES

    def seconds(self) -> dict[str, float]:
        """CPU seconds that answers have taken so far, by the caller's name."""
        with self._lock:
            return dict(self._seconds)

    def close(self) -> None:
        """Let the threads finish their current requests, and no others."""
        self._closing = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(_PATIENCE)
            if thread.is_alive():
                log.warning("%s: a handler does not end; %s closes without it.", thread.name, self._name)

    def _run(self) -> None:
        while (step := self._work.get()) is not None and not self._closing:
            self._do(step)

    def _do(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            log.exception("%s: an answer failed.", self._name)

    def _begin(self, asked: ReceivedRequest) -> None:
        with self._lock:
            self._inbox -= asked.size
        again, name = partial(self._again, asked), self._name
        answer = StreamedAnswer(asked, name, self._put, again, self._wanted, self._ended, self._cuts)
        try:
            made = self._handler(asked.received.message.kind)(asked.received.message, asked.sender)
            if isinstance(made, Message):
                answer.whole(made)
            else:
                answer.stream(iter(made))
        except Exception as error:
            answer.fail(error)

    def _again(self, asked: ReceivedRequest, step: Callable[[], None]) -> None:
        """Have a step of an answer done by a thread."""
        self._work.put(self._counted(asked, step))

    def _counted(self, asked: ReceivedRequest, step: Callable[[], None]) -> Callable[[], None]:
        """The step, with its time counted."""

        def counted() -> None:
            began = time.thread_time()
            try:
                with within_coflow(asked.received.coflow):
                    step()
            finally:
                spent = time.thread_time() - began
                with self._lock:
                    self._seconds[asked.sender] = self._seconds.get(asked.sender, 0.0) + spent

        return counted

    def _wanted(self) -> bool:
        return self._closing or not self._work.empty()

    def _ended(self, asked: ReceivedRequest) -> None:
        with self._lock:
            self._under_way.discard((asked.route, asked.received.call))

    def _handler(self, kind: str) -> Handler:
        handler = self._handlers.get(kind)
        if handler is None:
            raise PenstockError(
                f"{self._name} does not serve {kind!r}{nearest(kind, self._handlers)}", code="unknown-name"
            )
        return handler
