"""Records open only as they were sealed, by either library."""

import os
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from penstock.wire.transport.ciphers import TAG_BYTES, Aead, Cipher, ForgedError
from penstock.wire.transport.libcrypto import OpenSsl, library
from penstock.wire.transport.securities import SECURITIES

KEY = os.urandom(32)
SIZES = [0, 1, 1000, 70_000, 300_000]


def pairs() -> list[tuple[Cipher, Cipher]]:
    """What seals, and what opens."""
    aes, chacha = Aead(AESGCM, KEY[:16]), Aead(ChaCha20Poly1305, KEY)
    found: list[tuple[Cipher, Cipher]] = [(aes, aes), (chacha, chacha)]
    if library() is not None:
        for name, key, always in (("EVP_aes_128_gcm", KEY[:16], aes), ("EVP_chacha20_poly1305", KEY, chacha)):
            quick = OpenSsl(name, key, always)
            found += [(quick, quick), (quick, always), (always, quick)]
    for name in ("aes", "curve"):
        make = SECURITIES[name].cipher
        assert make is not None
        found += [(make(KEY, True), make(KEY, False)), (make(KEY, False), make(KEY, True))]
    return found


def sealed(cipher: Cipher, place: int, about: bytes, data: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    out = np.empty(len(data) + TAG_BYTES, np.uint8)
    cipher.seal(place, about, data, out)
    return out


@pytest.mark.parametrize("size", SIZES)
def test_what_was_sealed_opens(size: int) -> None:
    data = np.frombuffer(os.urandom(size), np.uint8)
    for seals, opens in pairs():
        record, back = sealed(seals, 3, b"x", data), np.empty_like(data)
        opens.open(3, b"x", record, back)
        np.testing.assert_array_equal(back, data)
        assert size < 100 or bytes(data[:100]) not in record.tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", ["place", "about", "first", "last"])
def test_what_was_altered_does_not(size: int, change: str) -> None:
    data = np.frombuffer(os.urandom(size), np.uint8)
    for seals, opens in pairs():
        record, back = sealed(seals, 3, b"x", data), np.empty_like(data)
        record[{"first": 0, "last": -1}.get(change, 0)] ^= change in ("first", "last")
        with pytest.raises(ForgedError):
            opens.open(3 + (change == "place"), b"y" if change == "about" else b"x", record, back)
        # The next one is none the worse for it.
        opens.open(4, b"", sealed(seals, 4, b"", data), back)
        np.testing.assert_array_equal(back, data)


def test_threads_share_a_cipher() -> None:
    make = SECURITIES["aes"].cipher
    assert make is not None
    seals, opens = make(KEY, True), make(KEY, True)
    wrong: list[int] = []

    def work(first: int) -> None:
        for place in range(first, first + 20):
            data = np.full(100_000, place % 256, np.uint8)
            back = np.empty_like(data)
            opens.open(place, b"", sealed(seals, place, b"", data), back)
            if not np.array_equal(back, data):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
