"""Ways over which a path's messages go: within a process, and over the authenticated wire between two."""

import numpy as np

from penstock.paths.service.responder import Responder
from penstock.wire import Endpoint, Malformed, Message

_KIND = "paths"


class InProcessPath:
    """A path to a node of a responder in the same process."""

    def __init__(self, responder: Responder, role: str) -> None:
        self._responder, self._role = responder, role

    def __call__(self, message: bytes) -> bytes:
        """The answer to a message."""
        return self._responder.handle(message, self._role)


class WirePath:
    """A path over the wire: peers prove who they are, and sockets are bound to the interface of their endpoint."""

    def __init__(self, endpoint: Endpoint, peer: str, role: str, timeout: float | None = None) -> None:
        """`timeout`: seconds without a sign after which a request has failed; the endpoint's by default."""
        self._channel, self._role, self._timeout = endpoint.channel(peer, f"paths {role}"), role, timeout

    def __call__(self, message: bytes) -> bytes:
        """The answer to a message. A message may be handled twice where a connection was lost in between."""
        asked = Message(_KIND, {"role": self._role}, (np.frombuffer(message, np.uint8),))
        return _bytes_of(self._channel.call(asked, self._timeout))


def serve_wire(endpoint: Endpoint, responder: Responder, role: str | None = None) -> None:
    """Have an endpoint's requests handled by a responder; with `role`, only those for that node."""

    def handler(message: Message, sender: str) -> Message:
        asked = message.body.get("role")
        if not isinstance(asked, str) or (role is not None and asked != role):
            raise Malformed(f"{endpoint.name} does not serve the node {asked!r}.")
        answer = responder.handle(_bytes_of(message), asked)
        return Message(_KIND, {}, (np.frombuffer(answer, np.uint8),))

    endpoint.serve(_KIND, handler)


def _bytes_of(message: Message) -> bytes:
    if len(message.arrays) != 1 or message.arrays[0].dtype != np.uint8 or message.arrays[0].ndim != 1:
        raise Malformed("A message of a path must hold one array of bytes.")
    return message.arrays[0].tobytes()
