"""What travels between requester and responder: a request with its type, an answer with the time it took there.

An answer begins with 4 bytes: the responder's t4 - t3 in microseconds, or the largest number if it took longer.
Nothing that arrives is believed: lengths are checked before anything is read.
"""

import struct
from typing import NamedTuple

from penstock.wire import Malformed

ASK, WRITE, READ = 0, 1, 2
_HEAD = struct.Struct("<BBQQ")
_TOOK = struct.Struct("<I")
HEADER_BYTES = _TOOK.size
_LONGEST = (1 << 32) - 1


class Request(NamedTuple):
    """What is asked: `name` is a request type (ASK) or a region of memory (WRITE, READ)."""

    operation: int
    name: str
    payload: bytes = b""
    offset: int = 0
    size: int = 0


def pack_request(request: Request) -> bytes:
    """A request as bytes."""
    name = request.name.encode()
    if len(name) > 255:
        raise Malformed(f"The name {request.name[:40]!r}... is longer than 255 bytes.")
    return _HEAD.pack(request.operation, len(name), request.offset, request.size) + name + request.payload


def unpack_request(message: bytes) -> Request:
    """The request in a message, or Malformed."""
    if len(message) < _HEAD.size:
        raise Malformed(f"A request of {len(message)} bytes is shorter than its head.")
    operation, length, offset, size = _HEAD.unpack_from(message)
    end = _HEAD.size + length
    if operation not in (ASK, WRITE, READ) or len(message) < end:
        raise Malformed("A request's head does not fit the request.")
    try:
        name = message[_HEAD.size : end].decode()
    except UnicodeDecodeError:
        raise Malformed("The name in a request is not UTF-8.") from None
    return Request(operation, name, message[end:], offset, size)


def pack_answer(took_us: float, payload: bytes) -> bytes:
    """An answer with the time between t3 and t4."""
    return _TOOK.pack(min(max(round(took_us), 0), _LONGEST)) + payload


def unpack_answer(message: bytes) -> tuple[float, bytes]:
    """Microseconds between t3 and t4, and the payload; or Malformed."""
    if len(message) < HEADER_BYTES:
        raise Malformed(f"An answer of {len(message)} bytes has no header.")
    return float(_TOOK.unpack_from(message)[0]), message[HEADER_BYTES:]
