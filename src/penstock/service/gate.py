"""Checks of a request before its body is read: the right host and the token; and the body's bounds.

A browser that another site's page has directed here under that site's name (DNS rebinding) sends the wrong host.
"""

import asyncio
import ipaddress
import json
import re
import resource
import secrets
import socket
import time
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import Code

# Connections to a service: how many there may be at once, and how long one may take to send its request.

AUTHORISED = "penstock.authorised"
"""The key, in a request's scope, that is set once it has shown the token."""
REQUEST_S = 15.0
"""Seconds from the opening of a connection, or from its last answer, until a request with the token is complete; for
one without the token, until it is answered and the answer has been read.
"""
_MOST, _FEWEST, _SHARE = 256, 8, 4
"""Upper and lower bound of connections at once, and the part of the process's file descriptors that they may use. The
others are for jobs, which take two each, and for short use.
"""
_MOST_PENDING = 64


def most_connections() -> int:
    """The most connections that the service keeps at once."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if allowed == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, allowed // _SHARE))


def most_pending() -> int:
    """The most connections that the system keeps until they are accepted; as many may be accepted at once."""
    return min(_MOST_PENDING, most_connections())


class HttpConnection(H11Protocol):
    """HTTP on one connection, which is closed when its request does not come in time, or when there are too many
    connections.

    A connection that has shown the token and waits for an answer is never closed. Of the others the one that has waited
    longest is closed first, so that a flood of them does not exclude clients that send their request at once.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._since = time.monotonic()
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; if there are too many connections, another one is closed."""
        super().connection_made(transport)
        self._wait_for_request()
        if len(self.connections) > most_connections():
            others: list[Any] = list(self.connections)
            min((each for each in others if not each.is_authorised), key=lambda each: each.since).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP, unless an answer to the same request has begun."""
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """Restart the deadline for the next request."""
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
        # A request with the token has its own deadline for the body, and none for its answer.
        if not self.is_authorised:
            self.drop()


MOST_BODY_BYTES = 1 << 20
BODY_S = 30.0
"""Seconds for the body of a request that has shown the token."""
OPEN_PATHS = ("/", "/api")
"""Pages without data, which need no token."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers that forbid framing, loading from elsewhere, and caching."""
_DROPPED_BYTES, _DROPPED_S = 8 * MOST_BODY_BYTES, 2.0
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d{0,5})?")
_Refusal = tuple[int, str, Code]


class Gate:
    """An ASGI layer that passes on valid requests with their whole body, and answers all others itself."""

    def __init__(self, app: Any, token: str, host: str) -> None:
        """`host` is the address that the service was started with."""
        self._app, self._token = app, token.encode()
        self._names = {"localhost", host.lower(), socket.gethostname().lower()} - {""}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = self._refusal(scope["path"], headers)
        if refusal is None and scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if refusal is None:
            scope[AUTHORISED] = True
            refusal, body = await _received(receive)
        if refusal is not None:
            await _refuse(send, refusal)
            # A client that is still sending would not read the answer, so what it sends is dropped for a moment. One
            # that waits for permission to send sends nothing.
            if b"expect" not in headers:
                await _dropped(receive)
            await send({"type": "http.response.body", "body": b""})
            return
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Any:
            return given.pop() if given else await receive()

        await self._app(scope, replayed, send)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> _Refusal | None:
        """Why the request is refused; None where it may pass."""
        if not self._is_host(headers.get(b"host", b"").decode("latin-1")):
            sentence = (
                "The request names another host than this one: use the address at which the service listens,"
                " localhost, this machine's name, or the one given with --host."
            )
            return 403, sentence, "not-permitted"
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if path in OPEN_PATHS or (scheme.lower() == b"bearer" and secrets.compare_digest(given.strip(), self._token)):
            return None
        return 401, "Send the service's token: Authorization: Bearer TOKEN.", "not-permitted"

    def _is_host(self, given: str) -> bool:
        """Whether a Host header means this machine. Addresses are accepted: only a name can be made to resolve
        elsewhere.
        """
        found = _HOST.fullmatch(given)
        name = found[1].strip("[]").lower() if found else ""
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in self._names


async def _received(receive: Any) -> tuple[_Refusal | None, bytes]:
    """The body of a request, or why it is refused."""
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return (400, "The request ended before its body was complete: send it again.", "closed"), b""
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > MOST_BODY_BYTES:
                    return (413, f"The request has more than {MOST_BODY_BYTES:,} bytes: send less.", "too-large"), b""
    except TimeoutError:
        return (408, f"The body of the request did not come within {BODY_S:.0f} s: send it again.", "closed"), b""
    return None, bytes(body)


async def _refuse(send: Any, refusal: _Refusal) -> None:
    status, sentence, code = refusal
    body = json.dumps({"error": sentence, "code": code}).encode()
    headers = {**HEADERS, "Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
    sent = [(name.lower().encode(), str(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _dropped(receive: Any) -> None:
    """Read and discard the rest of a body, for a moment and up to a bound."""
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_DROPPED_S):
            while more and size < _DROPPED_BYTES:
                message = await receive()
                size, more = size + len(message.get("body", b"")), message.get("more_body", False)
