"""Messages and their form on the wire: a msgpack header, then every array's bytes in a frame of its own.

Everything that arrives is validated: sizes, types and shapes are checked before an array is made, and an array is a
read-only view of its frame. What is sent is the array's own memory.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, NamedTuple

import msgpack
import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.wire.coflows import NO_COFLOW, Coflow

VERSION = 2
FORMER = 1
"""The version before there were coflows, in which journals of older runs are."""
SIGNS = ("ask", "answer", "part", "end", "error", "slice")
"""A request; a whole answer; a part of an answer; the number of parts; an error; a slice of an answer, or of a part,
that was cut (see `cut`).
"""
_DTYPES = {
    code: np.dtype("<" + code)
    for code in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}  # fmt: skip
"""By their code in a header. bfloat16 is sent as u2."""
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_LARGEST = (1 << 63) - 1
_DEPTH = 16


@dataclass
class Message:
    """A kind, a few plain values, and arrays."""

    kind: str
    body: dict[str, Any] = field(default_factory=dict)
    """Anything msgpack supports, with strings as keys: numbers, strings, bytes, lists, mappings."""
    arrays: tuple[Array, ...] = ()
    done: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    """Called once when the arrays' memory may be reused: until then the wire reads from it."""


class Malformed(PenstockError):  # noqa: N818
    """Bytes that are not a valid message."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="malformed-message")


@dataclass(frozen=True)
class Limits:
    """Upper bounds of a message, sent or received."""

    header_bytes: int = 1 << 20
    arrays: int = 64
    array_bytes: int = 1 << 30
    dims: int = 8
    name_chars: int = 128
    """Characters of a kind, of a flow's name, and of a coflow's kind and owner."""


LIMITS = Limits()


class Received(NamedTuple):
    """A message and the fields of its header."""

    message: Message
    call: int
    """The call that it belongs to, by the caller's count."""
    sign: str
    """One of SIGNS."""
    number: int
    """Of a part, its number; of an end, the number of parts."""
    flow: str
    priority: int
    """Lower is more urgent. Answers have that of the request."""
    coflow: Coflow
    """The coflow that it belongs to. Answers have that of the request."""


def encode(
    message: Message,
    call: int,
    sign: str,
    number: int = 0,
    flow: str = "",
    priority: int = 0,
    coflow: Coflow = NO_COFLOW,
    limits: Limits = LIMITS,
) -> list[bytes | Array]:
    """The frames of a message: a header, and each array's own memory as flat bytes."""
    arrays = [_sendable(array) for array in message.arrays]
    specs = [[_CODES[array.dtype], *array.shape] for array in arrays]
    fields = [VERSION, sign, call, number, flow, priority, list(coflow), message.kind, message.body, specs]
    try:
        header = msgpack.packb(fields, use_bin_type=True)
        # What the receiver would refuse is refused here, where the caller can be told.
        _checked(header, [array.nbytes for array in arrays], limits)
    except (TypeError, ValueError, OverflowError, Malformed) as error:
        raise PenstockError(f"A message of kind {message.kind!r} cannot be sent: {error}", code="wrong-type") from None
    return [header, *(array.reshape(-1).view(np.uint8) for array in arrays)]


def decode(frames: Sequence[bytes | Array], limits: Limits = LIMITS, former: bool = False) -> Received:
    """The message in these frames, or Malformed. Its arrays are read-only views of the frames.

    With `former` also one of the previous version.
    """
    views = [_bytes_of(frame) for frame in frames]
    if not views:
        raise Malformed("it has no frames.")
    fields, shapes = _checked(views[0], [view.nbytes for view in views[1:]], limits, former)
    _, sign, call, number, flow, priority, coflow, kind, body, _ = fields
    arrays = tuple(_view(view, dtype, shape) for view, (dtype, shape) in zip(views[1:], shapes, strict=True))
    return Received(Message(kind, body, arrays), call, sign, number, flow, priority, Coflow(*coflow))


def frame_bytes(frames: Sequence[bytes | Array]) -> int:
    """The bytes of all frames."""
    return sum(frame.nbytes if isinstance(frame, np.ndarray) else len(frame) for frame in frames)


Shape = tuple[np.dtype[Any], tuple[int, ...]]


def _checked(
    header: bytes | memoryview, sizes: list[int], limits: Limits, former: bool = False
) -> tuple[list[Any], list[Shape]]:
    """A header's fields and its arrays' types and shapes, which must agree with the frames' sizes in bytes."""
    if len(header) > limits.header_bytes:
        raise Malformed(f"its header of {len(header):,} bytes is over {limits.header_bytes:,}.")
    if len(sizes) > limits.arrays:
        raise Malformed(f"its {len(sizes)} arrays are over {limits.arrays}.")
    fields = _unpacked(header)
    if former and isinstance(fields, list) and len(fields) == 9 and fields[0] == FORMER:
        fields = [VERSION, *fields[1:6], list(NO_COFLOW), *fields[6:]]
    if not isinstance(fields, list) or len(fields) != 10 or fields[0] != VERSION:
        raise Malformed(f"its header is not one of version {VERSION}.")
    _, sign, call, number, flow, priority, coflow, kind, body, specs = fields
    if sign not in SIGNS:
        raise Malformed("its sign is not known.")
    if not (_count(call) and _count(number) and isinstance(priority, int) and not isinstance(priority, bool)):
        raise Malformed("its call, number or priority is not a number.")
    if not _names_coflow(coflow, limits):
        raise Malformed("its coflow is not a kind, an owner and a turn.")
    if not (_short(flow, limits) and _short(kind, limits)):
        raise Malformed(f"its flow or kind is not a string of up to {limits.name_chars} characters.")
    if not isinstance(body, dict) or not _plain(body, _DEPTH):
        raise Malformed("its body is not a mapping from names to plain values.")
    if not isinstance(specs, list) or len(specs) != len(sizes):
        raise Malformed(f"it has {len(sizes)} arrays, and its header lists another number.")
    return fields, [_shape(spec, size, limits) for spec, size in zip(specs, sizes, strict=True)]


def _unpacked(header: bytes | memoryview) -> Any:
    try:
        return msgpack.unpackb(header, raw=False, strict_map_key=True, ext_hook=_no_extensions)
    except Malformed:
        raise
    except Exception as error:  # msgpack raises many kinds, and means one thing by all of them
        raise Malformed(f"its header is not valid msgpack ({type(error).__name__}).") from None


def _no_extensions(code: int, data: bytes) -> Any:
    raise Malformed("its header holds a type of its own.")


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _names_coflow(value: Any, limits: Limits) -> bool:
    known = isinstance(value, list) and len(value) == len(NO_COFLOW)
    return known and _short(value[0], limits) and _short(value[1], limits) and _count(value[2])


def _short(value: Any, limits: Limits) -> bool:
    return isinstance(value, str) and len(value) <= limits.name_chars


def _plain(value: Any, depth: int) -> bool:
    if value is None or type(value) in (bool, int, float, str, bytes):
        return True
    if depth == 0:
        return False
    if type(value) is dict:
        return all(type(key) is str and _plain(each, depth - 1) for key, each in value.items())
    return type(value) is list and all(_plain(each, depth - 1) for each in value)


def _shape(spec: Any, size: int, limits: Limits) -> Shape:
    """An array's type and shape by its entry in the header, if a frame of `size` bytes fits it."""
    if not isinstance(spec, list) or not spec or not isinstance(spec[0], str) or spec[0] not in _DTYPES:
        raise Malformed("an array's type is not one of booleans, integers and floats.")
    dtype, shape = _DTYPES[spec[0]], spec[1:]
    if len(shape) > limits.dims or not all(_count(each) for each in shape):
        raise Malformed(f"an array's shape is not up to {limits.dims} sizes.")
    if size > limits.array_bytes:
        raise Malformed(f"an array of {size:,} bytes is over {limits.array_bytes:,}.")
    if math.prod(shape) * dtype.itemsize != size:
        raise Malformed(f"an array of {size:,} bytes does not have the shape in the header.")
    # NumPy multiplies the sizes of an empty array as well, without its zeros, and refuses what overflows.
    if math.prod(each for each in shape if each) * dtype.itemsize > limits.array_bytes:
        raise Malformed("an empty array's shape is beyond all limits.")
    return dtype, tuple(shape)


def _sendable(array: Array) -> Array:
    """The array itself, or a contiguous copy in the wire's byte order."""
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _CODES:
        raise PenstockError(
            f"An array of {array.dtype} cannot be sent: use booleans, integers or floats of 2 to 8 bytes.",
            code="wrong-type",
        )
    return array.astype(dtype, order="C", copy=False)


def _bytes_of(frame: Any) -> memoryview:
    return memoryview(frame)


def _view(frame: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    array = np.frombuffer(frame, dtype).reshape(shape) if frame.nbytes else np.empty(shape, dtype)
    if not array.flags.aligned:
        # Small frames may be unaligned in their receive buffer, and kernels need aligned words.
        array = array.copy()
    array.flags.writeable = False
    return array


# Large messages in slices, so that a later and more urgent message can pass between them.

SLICE_BYTES = 1 << 18
"""Bytes of a slice: 20 ms at 100 Mbit/s."""
_KIND = "slice"
_KEPT = 4
"""Messages of one call that may be incomplete at once. Older ones came over connections that were lost: a peer sends
one after the other.
"""


def cut(frames: Sequence[bytes | Array], size: int = SLICE_BYTES, limits: Limits = LIMITS) -> list[Message]:
    """A message's frames as messages of up to `size` bytes each, which are views of the frames' own memory."""
    runs: list[list[Array]] = [[]]
    room = size
    for frame in frames:
        rest = np.frombuffer(frame, np.uint8) if len(frame) else np.empty(0, np.uint8)
        while len(rest):
            if not room or len(runs[-1]) == limits.arrays:
                runs.append([])
                room = size
            runs[-1].append(rest[:room])
            taken = len(runs[-1][-1])
            rest, room = rest[taken:], room - taken
    # A repeated call may be answered twice, and slices of two answers must not be mixed.
    body = {"of": token_hex(8), "slices": len(runs), "sizes": [frame_bytes([frame]) for frame in frames]}
    return [Message(_KIND, body, tuple(run)) for run in runs]


@dataclass
class _Pieces:
    """The slices of one message that have arrived."""

    count: int
    sizes: list[int]
    """Bytes of its frames."""
    found: dict[int, Message] = field(default_factory=dict)
    bytes: int = 0

    def add(self, number: int, piece: Message) -> None:
        """Add a slice; a repeated one is ignored."""
        if number not in self.found:
            self.found[number] = piece
            self.bytes += frame_bytes(piece.arrays)


class Joining:
    """The slices of one call's answers, until a message is whole."""

    def __init__(self) -> None:
        self._found: dict[str, _Pieces] = {}

    def take(self, received: Received) -> Received | None:
        """Add a slice; returns the message if it was the last one. Malformed if slices do not form the announced
        message.
        """
        name, count, sizes = _said(received.message)
        pieces = self._found.setdefault(name, _Pieces(count, sizes))
        if len(self._found) > _KEPT:
            del self._found[next(iter(self._found))]
        try:
            return self._joined(name, pieces, received, count, sizes)
        except Malformed:
            self._found.pop(name, None)
            raise

    def clear(self) -> None:
        """Forget messages of which some parts have not arrived."""
        self._found.clear()

    def _joined(self, name: str, pieces: _Pieces, received: Received, count: int, sizes: list[int]) -> Received | None:
        if (count, sizes) != (pieces.count, pieces.sizes) or received.number >= count:
            raise Malformed("its slices belong to different messages.")
        pieces.add(received.number, received.message)
        if pieces.bytes > sum(sizes):
            raise Malformed("its slices do not have the announced sizes.")
        if len(pieces.found) < count:
            return None
        del self._found[name]
        whole = decode(_frames([pieces.found[number] for number in range(count)], sizes))
        if whole.call != received.call or whole.sign not in ("answer", "part"):
            raise Malformed("its slices do not form an answer.")
        return whole


def _said(message: Message, limits: Limits = LIMITS) -> tuple[str, int, list[int]]:
    """What a slice announces about its message: its name, the number of slices, and its frames' sizes in bytes."""
    name, count, sizes = (message.body.get(key) for key in ("of", "slices", "sizes"))
    if not isinstance(name, str) or type(count) is not int or not isinstance(sizes, list):
        raise Malformed("it is a slice of an empty message.")
    if len(name) > limits.name_chars or len(sizes) > limits.arrays + 1:
        raise Malformed("it is a slice of more than a message can hold.")
    if any(type(size) is not int or not 0 <= size <= limits.array_bytes for size in sizes):
        raise Malformed("it is a slice of frames that are not valid.")
    if any(array.dtype != np.uint8 for array in message.arrays):
        raise Malformed("its slices are not bytes.")
    return name, count, sizes


def _frames(slices: list[Message], sizes: list[int]) -> list[Any]:
    """The frames, each in memory of its own, where arrays are aligned."""
    pieces = [array for each in slices for array in each.arrays]
    if sum(sizes) != sum(piece.nbytes for piece in pieces):
        raise Malformed("its slices do not have the announced sizes.")
    frames = [np.empty(size, np.uint8) for size in sizes]
    at, place = 0, 0
    for piece in pieces:
        rest = piece.reshape(-1)
        while len(rest):
            while at == len(frames[place]):
                place, at = place + 1, 0
            some = rest[: len(frames[place]) - at]
            frames[place][at : at + len(some)] = some
            at, rest = at + len(some), rest[len(some) :]
    return frames


# Memory that a message is sent from, and the callback when it may be reused.

log = logging.getLogger("penstock.wire")


class Loan:
    """Memory with several readers: `done` is called once, when the last one releases it."""

    def __init__(self, done: Callable[[], None] | None) -> None:
        self._done, self._holders, self._lock = done, 1, threading.Lock()

    def hold(self) -> None:
        """Add a reader, for whom the buffer must stay unchanged until it is released."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """Release one use of the memory."""
        with self._lock:
            self._holders -= 1
            done = self._done if self._holders == 0 else None
        if done is None:
            return
        try:
            done()
        except Exception:
            log.exception("What was to be done when a message had left failed.")
