"""Connections to a service: how many there may be at once, and how long one may take to say what it wants."""

import asyncio
import resource
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

AUTHORISED = "penstock.authorised"
"""In a request's scope once it has shown the token."""
REQUEST_S = 15.0
"""Seconds from the opening of a connection, or from its last answer, until a request with the token is complete; of a
request without one, until it is answered and the answer has been read."""
_MOST, _FEWEST, _SHARE = 256, 8, 4
"""Connections at once: so many, or one in four of the descriptors that the process may open. The others are for jobs,
of which each takes two, and for what is opened for a moment."""
_MOST_PENDING = 64


def most_connections() -> int:
    """How many connections the service keeps at once."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if allowed == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, allowed // _SHARE))


def most_pending() -> int:
    """How many connections the system keeps until they are accepted; as many may be accepted in one go."""
    return min(_MOST_PENDING, most_connections())


class Connection(H11Protocol):
    """HTTP on one connection, which is closed when its request does not come, or for others when there are too many.

    Whoever has shown the token and waits for an answer is never closed. Of the others the one goes first that has
    waited longest, so that a flood of them keeps nobody out whose request follows at once.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._since = time.monotonic()
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, in the place of another one where there are too many."""
        super().connection_made(transport)
        self._wait_for_request()
        if len(self.connections) > most_connections():
            others: list[Any] = list(self.connections)
            min((each for each in others if not each.is_authorised), key=lambda each: each.since).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, as the end of a request whose beginning was: nothing else is sent for that one."""
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """The next request has as much time as the first one had."""
        super().on_response_complete()
        self._wait_for_request()

    @property
    def is_authorised(self) -> bool:
        """Whether a request with the token is being read or answered."""
        return self._is_answering and bool(self.scope.get(AUTHORISED))

    @property
    def since(self) -> float:
        """When it was opened, or when its last answer was complete."""
        return self._since

    def drop(self) -> None:
        """Close it at once, whatever is still to be sent."""
        self.connections.discard(self)
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_request(self) -> None:
        self._since = time.monotonic()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_S, self._late)

    def _late(self) -> None:
        # Where a request with the token is under way, its body has a deadline of its own, and its answer none.
        if not self.is_authorised:
            self.drop()
