"""What protects the bytes of a connection after its handshake: the securities by name.

The handshake is the same for all: both sides prove who they are, and recordings of it are worth nothing. AES is that
with 128 bits, which X25519's strength is as well.
"""

from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from penstock.wire.transport.libcrypto import Make, quickest


class Security(NamedTuple):
    """A way to protect what is sent."""

    name: str
    cipher: Make | None
    """Makes the cipher of one direction from its key of 32 bytes; None: bytes travel in the clear."""
    warning: str = ""
    """What whoever chooses it should know, in one sentence."""


SECURITIES = {
    each.name: each
    for each in (
        Security("aes", quickest(AESGCM, "EVP_aes_128_gcm", 16)),
        Security("curve", quickest(ChaCha20Poly1305, "EVP_chacha20_poly1305", 32)),
        Security(
            "token",
            None,
            "security: token encrypts nothing: whoever can listen on the network reads features, labels and gradients,"
            " and whoever can alter its packets can alter them; use aes unless the network is your own.",
        ),
    )
}
