"""Bounds the size of requests, whatever they say about it."""

import json
from typing import Any

MOST_BODY_BYTES = 1 << 20
_MOST_DISCARDED = 64 * MOST_BODY_BYTES
_REFUSAL = json.dumps(
    {"error": f"The request has more than {MOST_BODY_BYTES:,} bytes: send less.", "code": "too-large"}
).encode()


class BodyLimit:
    """An ASGI layer that keeps no more of a request than is allowed, and answers 413 to one that is longer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, size, more = b"", 0, True
        while more and size <= _MOST_DISCARDED:
            message = await receive()
            if message["type"] != "http.request":
                return
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            # What is too much is read and dropped for a while: a client that still sends would not hear the answer.
            body = body + part if size <= MOST_BODY_BYTES else b""
        if size > MOST_BODY_BYTES:
            await _refuse(send)
            return
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Any:
            return given.pop() if given else await receive()

        await self._app(scope, replayed, send)


async def _refuse(send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSAL})
