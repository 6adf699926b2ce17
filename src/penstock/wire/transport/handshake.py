"""Mutual authentication of two tasks of a run, and fresh keys for one connection. No bytes are moved here.

Three messages of fixed sizes:

    caller -> server   hello: protocol, security, the caller's name, an ephemeral public key, a MAC by the run's token
    server -> caller   reply: an ephemeral public key, a MAC
    caller -> server   proof: a MAC

The keys of both MACs, and of the connection, come from three X25519 exchanges (both ephemeral keys; the caller's
ephemeral and the server's long-term key; the server's ephemeral and the caller's long-term key), the run's token and
everything that was said. So each side proves that it holds the secret of the public key by which the run knows it, a
recording of one handshake is worth nothing in another, and somebody who learns the long-term keys later cannot read
what was recorded before. The MAC of the hello costs an unknown caller a hash before it costs us an exchange.
"""

import hashlib
import hmac
from collections.abc import Generator
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.wire.keys import Credentials

_PROTOCOL = b"PENSTOCK/4"
_SECURITY_BYTES, _NAME_BYTES, _KEY_BYTES, _MAC_BYTES = 6, 64, 32, 32
_FIELDS = len(_PROTOCOL) + _SECURITY_BYTES + _NAME_BYTES + _KEY_BYTES
HELLO_BYTES = _FIELDS + _MAC_BYTES
REPLY_BYTES = _KEY_BYTES + _MAC_BYTES
PROOF_BYTES = _MAC_BYTES


class HandshakeError(Exception):
    """The other side is no task of this run, or not the one it says it is."""


class SessionKeys(NamedTuple):
    """Keys of one connection, one for each direction."""

    to_server: bytes
    to_caller: bytes


class PeerSession(NamedTuple):
    """What a handshake has come to."""

    peer: str
    """Who is at the other end."""
    sending: bytes
    """The key of what is sent,"""
    receiving: bytes
    """and of what is received."""
    proof: bytes = b""
    """What is still to be sent before anything else."""


Handshake = Generator[tuple[bytes, int], bytes, PeerSession]
"""Yields what to send and how many bytes to wait for, is sent those, and returns the session."""


def client_handshake(credentials: Credentials, peer: str, security: str) -> Handshake:
    """The handshake of the side that connects."""
    handshake = ClientHandshake(credentials, peer, security)
    reply = yield handshake.hello, REPLY_BYTES
    proof, keys = handshake.finish(reply)
    return PeerSession(peer, keys.to_server, keys.to_caller, proof)


def server_handshake(credentials: Credentials, security: str) -> Handshake:
    """The handshake of the side that was connected to."""
    hello = yield b"", HELLO_BYTES
    handshake = ServerHandshake(credentials, security, hello)
    proof = yield handshake.reply, PROOF_BYTES
    keys = handshake.finish(proof)
    return PeerSession(handshake.peer, keys.to_caller, keys.to_server)


class _Secrets(NamedTuple):
    session: SessionKeys
    reply: bytes
    proof: bytes


class ClientHandshake:
    """The side that connects. `hello` is sent first."""

    def __init__(self, credentials: Credentials, peer: str, security: str) -> None:
        self._own, self._peer = credentials, peer
        self._ephemeral = X25519PrivateKey.generate()
        fields = [
            _PROTOCOL,
            security.encode().ljust(_SECURITY_BYTES, b"\0"),
            credentials.name.encode().ljust(_NAME_BYTES, b"\0"),
            self._ephemeral.public_key().public_bytes_raw(),
        ]
        said = b"".join(fields)
        self.hello = said + _hello_mac(credentials, peer, said)

    def finish(self, reply: bytes) -> tuple[bytes, SessionKeys]:
        """The proof to send, and the connection's keys. Raises HandshakeError if the server is not the peer."""
        try:
            theirs = X25519PublicKey.from_public_bytes(reply[:_KEY_BYTES])
            server = X25519PublicKey.from_public_bytes(bytes.fromhex(self._own.peers[self._peer]))
            exchanges = [
                self._ephemeral.exchange(theirs),
                self._ephemeral.exchange(server),
                _private(self._own).exchange(theirs),
            ]
        except ValueError as error:
            raise HandshakeError("its key is not valid") from error
        secrets = _derive(self._own, self._peer, exchanges, self.hello + reply[:_KEY_BYTES])
        if len(reply) != REPLY_BYTES or not hmac.compare_digest(reply[_KEY_BYTES:], secrets.reply):
            raise HandshakeError("it does not hold the key of the task that was called")
        return secrets.proof, secrets.session


class ServerHandshake:
    """The side that was connected to. `reply` is sent when a hello is accepted; `peer` is who it claims to be."""

    def __init__(self, credentials: Credentials, security: str, hello: bytes) -> None:
        """Raises HandshakeError unless the hello was made by somebody who knows the run's token."""
        said, mac = hello[:_FIELDS], hello[_FIELDS:]
        if len(hello) != HELLO_BYTES or not said.startswith(_PROTOCOL):
            raise HandshakeError("it does not speak Penstock's protocol")
        if not hmac.compare_digest(mac, _hello_mac(credentials, credentials.name, said)):
            raise HandshakeError("it does not know the run's token, or calls another task")
        rest = said[len(_PROTOCOL) :]
        if rest[:_SECURITY_BYTES].rstrip(b"\0") != security.encode():
            raise HandshakeError("it has another setting of security")
        name = rest[_SECURITY_BYTES : _SECURITY_BYTES + _NAME_BYTES].rstrip(b"\0")
        self.peer = next((each for each in credentials.peers if each.encode() == name), "")
        if not self.peer:
            raise HandshakeError("it is no task of this run")
        ephemeral = X25519PrivateKey.generate()
        public = ephemeral.public_key().public_bytes_raw()
        try:
            theirs = X25519PublicKey.from_public_bytes(rest[-_KEY_BYTES:])
            caller = X25519PublicKey.from_public_bytes(bytes.fromhex(credentials.peers[self.peer]))
            exchanges = [ephemeral.exchange(theirs), _private(credentials).exchange(theirs), ephemeral.exchange(caller)]
        except ValueError as error:
            raise HandshakeError("its key is not valid") from error
        self._secrets = _derive(credentials, credentials.name, exchanges, hello + public)
        self.reply = public + self._secrets.reply

    def finish(self, proof: bytes) -> SessionKeys:
        """The connection's keys. Raises HandshakeError if the caller is not who it claims to be."""
        if not hmac.compare_digest(proof, self._secrets.proof):
            raise HandshakeError(f"it does not hold the key of {self.peer}")
        return self._secrets.session


def _hello_mac(credentials: Credentials, server: str, said: bytes) -> bytes:
    return hmac.new(credentials.token.encode(), b"hello\0" + server.encode() + b"\0" + said, "sha256").digest()


def _derive(credentials: Credentials, server: str, exchanges: list[bytes], said: bytes) -> _Secrets:
    salt = hashlib.sha256(b"penstock token\0" + credentials.token.encode()).digest()
    info = b"penstock session\0" + server.encode() + b"\0" + hashlib.sha256(said).digest()
    made = HKDF(SHA256(), 4 * _KEY_BYTES, salt, info).derive(b"".join(exchanges))
    to_server, to_caller, reply, proof = (made[n : n + _KEY_BYTES] for n in range(0, len(made), _KEY_BYTES))
    return _Secrets(SessionKeys(to_server, to_caller), reply, proof)


def _private(credentials: Credentials) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(credentials.keys.secret))
