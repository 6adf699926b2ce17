"""Who may come in: answers ZeroMQ's question about every connection (ZAP, rfc.zeromq.org/spec/27)."""

import hmac

from zmq.utils import z85

from penstock.wire.keys import Credentials
from penstock.wire.options import Security

DOMAIN = "penstock"
_VERSION = b"1.0"


class Gate:
    """Knows the run's peers and gives each connection that proves to be one of them its name."""

    def __init__(self, credentials: Credentials, security: Security) -> None:
        self._own, self._token, self._security = credentials.name, credentials.token, security
        self._names = {z85.decode(key.encode()): name for name, key in credentials.peers.items()}
        self.refused = 0

    def answer(self, request: list[bytes]) -> list[bytes]:
        """The reply to a ZAP request, frame by frame."""
        name = self._proven(request) if len(request) >= 6 else None
        number = request[1] if len(request) > 1 else b""
        if name is None:
            self.refused += 1
            return [_VERSION, number, b"400", b"unknown peer", b"", b""]
        return [_VERSION, number, b"200", b"OK", name.encode(), b""]

    def _proven(self, request: list[bytes]) -> str | None:
        version, _, domain, _, _, mechanism, *proof = request
        if version != _VERSION or domain != DOMAIN.encode():
            return None
        if self._security == "curve":
            # ZeroMQ has checked that the peer holds the secret of this public key.
            return self._names.get(proof[0]) if mechanism == b"CURVE" and len(proof) == 1 else None
        if mechanism != b"PLAIN" or len(proof) != 2:
            return None
        name = next((each for each in self._names.values() if each.encode() == proof[0]), None)
        return name if name and hmac.compare_digest(proof[1], password(self._token, name, self._own)) else None


def password(token: str, caller: str, server: str) -> bytes:
    """What `caller` shows `server` under security "token": worth nothing elsewhere, and not the run's secret itself."""
    return hmac.new(token.encode(), f"{caller}>{server}".encode(), "sha256").hexdigest().encode()
