"""Authenticated encryption of the records of one direction of a connection.

A record's nonce is its place in the direction's order, which both sides count: a record that was left out, repeated,
moved or altered does not open. A key belongs to one direction of one connection, so no nonce is used twice with it.
"""

from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from penstock.graph.arrays import Array

TAG_BYTES = 16
"""By which a sealed record is longer."""
_NONCE_BYTES = 12


class ForgedError(Exception):
    """A record is not what the peer sealed in this place."""


class Cipher(Protocol):
    """Seals or opens. Any thread may call, several at once."""

    def seal(self, place: int, about: bytes, data: Array, out: Array) -> None:
        """Encrypt bytes into `out`, which is TAG_BYTES longer; `about` must be the same when it is opened."""

    def open(self, place: int, about: bytes, data: Array, out: Array) -> None:
        """Decrypt bytes into `out`. Raises ForgedError, and then what is in `out` must not be used."""


class Aead:
    """By the `cryptography` package, which holds Python's interpreter lock meanwhile."""

    def __init__(self, algorithm: type[AESGCM] | type[ChaCha20Poly1305], key: bytes) -> None:
        self._aead = algorithm(key)

    def seal(self, place: int, about: bytes, data: Array, out: Array) -> None:
        """See `Cipher`."""
        self._aead.encrypt_into(nonce(place), data.data, about, out.data)

    def open(self, place: int, about: bytes, data: Array, out: Array) -> None:
        """See `Cipher`."""
        try:
            self._aead.decrypt_into(nonce(place), data.data, about, out.data)
        except InvalidTag:
            raise ForgedError("a record was altered, repeated or left out on its way") from None


def nonce(place: int) -> bytes:
    """The nonce of a record: its position in the order of its direction."""
    return place.to_bytes(_NONCE_BYTES, "little")
