"""OpenSSL's authenticated encryption through ctypes, where the library can be loaded.

The `cryptography` package holds Python's interpreter lock while it encrypts; a call through ctypes does not, so that
several records are sealed at once and a process's other threads go on meanwhile. The library is the one that Python's
own `ssl` uses on most systems. Before it is trusted it must give, byte for byte, what `cryptography` gives.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.transport.ciphers import TAG_BYTES, Aead, Cipher, ForgedError, nonce

_NAMES = ("libcrypto.so.3", "libcrypto.3.dylib")
_GET_TAG, _SET_TAG = 0x10, 0x11
"""EVP_CTRL_AEAD_GET_TAG and EVP_CTRL_AEAD_SET_TAG."""
_SMALL = 1 << 15
"""Bytes of a record that are sooner sealed than OpenSSL's functions are called one by one."""
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "EVP_CIPHER_CTX_new": (_POINTER, []),
    "EVP_CIPHER_CTX_free": (None, [_POINTER]),
    "EVP_CipherInit_ex": (_INT, [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT]),
    "EVP_CipherUpdate": (_INT, [_POINTER, _POINTER, _POINTER, _POINTER, _INT]),
    "EVP_CipherFinal_ex": (_INT, [_POINTER, _POINTER, _POINTER]),
    "EVP_CIPHER_CTX_ctrl": (_INT, [_POINTER, _INT, _INT, _POINTER]),
    "EVP_aes_128_gcm": (_POINTER, []),
    "EVP_chacha20_poly1305": (_POINTER, []),
}


@functools.cache
def library() -> Any:
    """The loaded library, or None where there is none that can be used."""
    places = [str(Path(sys.prefix, "lib", name)) for name in _NAMES] + list(_NAMES)
    for place in places:
        try:
            found = ctypes.CDLL(place)
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(found, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError):
            continue
        return found
    return None


class OpenSsl:
    """See `Cipher`. A context of OpenSSL's serves one thread at a time: there are as many as are needed at once."""

    def __init__(self, algorithm: str, key: bytes, small: Cipher) -> None:
        """`algorithm` is the name of OpenSSL's function for it; `small` is quicker for few bytes."""
        self._library, self._key, self._small = library(), key, small
        self._cipher = getattr(self._library, algorithm)()
        self._idle: dict[int, list[_Context]] = {0: [], 1: []}

    def seal(self, place: int, about: bytes, data: Array, out: Array) -> None:
        """See `Cipher`."""
        size = data.nbytes
        if size < _SMALL:
            self._small.seal(place, about, data, out)
            return
        if out.nbytes < size + TAG_BYTES:
            raise ValueError("a sealed record is longer than where it should go")
        context, target = self._begin(1, place, about), _address(out)
        context.update(target, _address(data), size)
        context.control(_GET_TAG, target + size)
        self._idle[1].append(context)

    def open(self, place: int, about: bytes, data: Array, out: Array) -> None:
        """See `Cipher`."""
        size = data.nbytes - TAG_BYTES
        if size < _SMALL:
            self._small.open(place, about, data, out)
            return
        if out.nbytes < size:
            raise ValueError("an opened record is longer than where it should go")
        context, source = self._begin(0, place, about), _address(data)
        context.control(_SET_TAG, source + size)
        context.update(_address(out), source, size)
        self._idle[0].append(context)

    def _begin(self, sealing: int, place: int, about: bytes) -> "_Context":
        try:
            context = self._idle[sealing].pop()
        except IndexError:
            context = _Context(self._library, self._cipher, self._key, sealing)
        context.begin(nonce(place), about)
        return context


class _Context:
    """One of OpenSSL's contexts, for one direction. One in which something failed is not used again."""

    def __init__(self, crypto: Any, cipher: int, key: bytes, sealing: int) -> None:
        self._crypto, self._sealing, self._number = crypto, sealing, _INT()
        # Where OpenSSL says how much it has written, and writes nothing at the end.
        self._written, self._rest = ctypes.byref(self._number), ctypes.create_string_buffer(TAG_BYTES)
        self._own = crypto.EVP_CIPHER_CTX_new()
        if not self._own:
            raise MemoryError("OpenSSL made no context")
        self._must(crypto.EVP_CipherInit_ex(self._own, cipher, None, key, None, sealing))

    def begin(self, number: bytes, about: bytes) -> None:
        crypto = self._crypto
        self._must(crypto.EVP_CipherInit_ex(self._own, None, None, None, number, self._sealing))
        if about:
            self._must(crypto.EVP_CipherUpdate(self._own, None, self._written, about, len(about)))

    def update(self, target: int, source: int, size: int) -> None:
        """All of a record, to its end."""
        self._must(self._crypto.EVP_CipherUpdate(self._own, target, self._written, source, size))
        self._must(self._crypto.EVP_CipherFinal_ex(self._own, self._rest, self._written))

    def control(self, command: int, address: int) -> None:
        self._must(self._crypto.EVP_CIPHER_CTX_ctrl(self._own, command, TAG_BYTES, address))

    def __del__(self) -> None:
        if getattr(self, "_own", None):
            self._crypto.EVP_CIPHER_CTX_free(self._own)

    def _must(self, result: int) -> None:
        if result != 1:
            raise ForgedError("a record was altered, repeated or left out on its way")


def _address(data: Array) -> int:
    """The address of a contiguous array's memory."""
    if not data.flags.c_contiguous:
        raise ValueError("a record is not in one piece")
    return int(data.__array_interface__["data"][0])


Make = Callable[[bytes, bool], Cipher]
"""(key, whether several threads seal and open at once) -> the cipher."""


def quickest(algorithm: Any, name: str, key_bytes: int) -> Make:
    """What makes the cipher of a key: for several threads OpenSSL's, if it can be used here and agrees with
    `cryptography`'s, which is quicker for one thread that would give the interpreter lock away again and again."""

    def made(key: bytes, parallel: bool) -> Cipher:
        key = key[:key_bytes]
        always = Aead(algorithm, key)
        return OpenSsl(name, key, always) if parallel and _agrees(algorithm, name, key_bytes) else always

    return made


@functools.cache
def _agrees(algorithm: Any, name: str, key_bytes: int) -> bool:
    if library() is None:
        return False
    key, data = os.urandom(key_bytes), np.frombuffer(os.urandom(2 * _SMALL + 3), np.uint8)
    outs = [np.empty(len(data) + TAG_BYTES, np.uint8) for _ in range(2)]
    back = np.empty_like(data)
    always = Aead(algorithm, key)
    ciphers: list[Cipher] = [always, OpenSsl(name, key, always)]
    try:
        for cipher, out in zip(ciphers, outs, strict=True):
            cipher.seal(7, b"about", data, out)
        ciphers[1].open(7, b"about", outs[0], back)
    except ForgedError:
        return False
    return bool(np.array_equal(outs[0], outs[1]) and np.array_equal(back, data))
