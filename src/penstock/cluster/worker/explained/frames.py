"""Messages between a worker and its explainer through pipes: a JSON document and named arrays, never code."""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

_LENGTH = struct.Struct(">Q")
_MOST = 1 << 40
Read = Callable[[int], bytes]
"""Reads exactly so many bytes."""


class Frame(NamedTuple):
    """A message: a document and named arrays."""

    document: dict[str, Any]
    arrays: dict[str, Array]


def encoded(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """A message as bytes, which the other process's `decoded` reads."""
    kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = [[name, array.dtype.str, list(array.shape)] for name, array in kept.items()]
    header = json.dumps({"document": document, "arrays": described}).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *(array.tobytes() for array in kept.values())])


def read_frame(read: Read) -> Frame:
    """The next message; whatever `read` raises at the end of the stream is raised."""
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    try:
        header = json.loads(read(length) if length < _MOST else b"")
        arrays = {}
        for name, kind, shape in header["arrays"]:
            dtype = np.dtype(kind)
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            arrays[str(name)] = np.frombuffer(bytearray(read(size)), dtype).reshape(shape)
        return Frame(dict(header["document"]), arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise PenstockError(f"The explainer's message cannot be read ({error}).", code="malformed-message") from None
