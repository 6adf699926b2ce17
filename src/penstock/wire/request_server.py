"""The server side of a process: handlers by kind, threads that run them, answers that stream."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue

from penstock.coflow_context import within_coflow
from penstock.errors import PenstockError, nearest
from penstock.wire.answer import Answer, ReceivedRequest
from penstock.wire.egress import Outgoing, Route
from penstock.wire.message import Message

Handler = Callable[[Message, str], Message | Iterable[Message]]
"""(the request, the sender's proven name) -> the answer, or its parts one by one."""

log = logging.getLogger("penstock.wire")

_INBOX_BYTES = 256 << 20
"""Bytes of requests that wait for a thread; beyond, peers' requests stay with them."""
_PATIENCE = 5.0
"""Seconds that closing waits for handlers that do not end."""


class RequestServer:
    """Runs handlers in threads of its own. Answers that wait for the network hold no thread."""

    def __init__(self, name: str, threads: int, put: Callable[[Outgoing], None], cuts: bool = False) -> None:
        """`put` lets a message leave; with `cuts` what is large leaves in slices."""
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
        """From now on requests of that kind are the handler's; `at_once`: who calls `request` runs it."""
        self._handlers[kind] = handler
        (self._at_once.add if at_once else self._at_once.discard)(kind)

    def request(self, asked: ReceivedRequest) -> None:
        """Have it answered, unless the same request came over the same connection and is being answered."""
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
        """Whether so much waits that no more should be read."""
        return self._inbox > _INBOX_BYTES

    def seconds(self) -> dict[str, float]:
        """Processor seconds that answers have taken so far, by the caller's name."""
        with self._lock:
            return dict(self._seconds)

    def close(self) -> None:
        """Let the threads end what they are at, and nothing more."""
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
        answer = Answer(asked, name, self._put, again, self._wanted, self._ended, self._cuts)
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
        """The step, its time counted."""

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
