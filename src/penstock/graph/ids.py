"""The ids that users gave their vertices: validated by converters, kept for export."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit

if TYPE_CHECKING:
    import pyarrow as pa


class StringIds:
    """Strings as one run of UTF-8 bytes and n + 1 offsets: mappable, and Arrow's own layout."""

    def __init__(self, offsets: Array, data: Array) -> None:
        self.offsets, self.data = offsets, data

    @classmethod
    def of(cls, strings: Sequence[str]) -> "StringIds":
        """Ids from a sequence of Python strings."""
        import pyarrow as pa

        return cls.from_arrow(pa.array(strings, pa.large_string()))

    @classmethod
    def from_arrow(cls, array: "pa.Array") -> "StringIds":
        """From an Arrow string array without nulls."""
        import pyarrow as pa

        array = array.cast(pa.large_string())
        _, offsets_buffer, data_buffer = array.buffers()
        if len(array) == 0 or offsets_buffer is None:
            return cls(np.zeros(1, np.int64), np.empty(0, np.uint8))
        offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
        return cls(offsets - offsets[0], data[offsets[0] : offsets[-1]])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        return bytes(self.data[self.offsets[index] : self.offsets[index + 1]]).decode()

    def take(self, rows: Array) -> "StringIds":
        """The ids of some rows, in their order."""
        lengths = np.asarray(self.offsets)[rows + 1] - np.asarray(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        _take_bytes(self.offsets, self.data, np.asarray(rows, np.int64), offsets, data)
        return StringIds(offsets, data)

    def to_arrow(self) -> "pa.Array":
        """The ids as an Arrow large_string array, without copying."""
        import pyarrow as pa

        return pa.LargeStringArray.from_buffers(
            len(self),
            pa.py_buffer(np.ascontiguousarray(self.offsets)),
            pa.py_buffer(np.ascontiguousarray(self.data)),
        )

    def tolist(self) -> list[str]:
        """The ids as Python strings."""
        values: list[str] = self.to_arrow().to_pylist()
        return values


Ids = StringIds | Array
"""Strings, or an int64 array."""


def concatenate(pieces: Sequence[Ids]) -> Ids:
    """Concatenated ids, all of one kind."""
    if not isinstance(pieces[0], StringIds):
        return np.concatenate([np.asarray(piece) for piece in pieces])
    import pyarrow as pa

    return StringIds.from_arrow(pa.concat_arrays([piece.to_arrow() for piece in pieces]))  # type: ignore[union-attr]


def take_ids(ids: Ids, rows: Array) -> Ids:
    """The ids of some rows, in their order."""
    return ids.take(rows) if isinstance(ids, StringIds) else ids[rows]


@njit(nogil=True, cache=True, writes=("out",))
def _take_bytes(offsets: Array, data: Array, rows: Array, out_offsets: Array, out: Array) -> None:
    # Numbers without a sign: Numba then does not ask at every byte whether its position counts from the end, which
    # takes five times as long.
    for i in range(rows.shape[0]):
        start, at = np.uint64(offsets[rows[i]]), np.uint64(out_offsets[i])
        for k in range(np.uint64(out_offsets[i + 1]) - at):
            out[at + k] = data[start + k]


# Checked ids of any converter: integers or strings, none of them twice.


def array_ids(values: Array, where: str) -> Ids:
    """Ids from an array of integers (as int64) or of strings. `where` names it in errors."""
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        raise PenstockError(
            f"{where} is {values.dtype} of shape {values.shape}, not a list of integers or strings: convert the ids.",
            code="wrong-type",
        )
    if values.dtype.kind == "U":
        return string_ids(values.tolist(), where)
    if values.dtype.kind == "u" and values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise PenstockError(
            f"{where} holds {int(values.max())}, which does not fit int64: give the ids as strings.",
            code="value-out-of-range",
        )
    found, counts = np.unique(values, return_counts=True)
    if len(found) < len(values):
        raise PenstockError(
            f"{where} holds {int(found[np.argmax(counts > 1)])} twice: give every vertex its own id.", code="duplicate"
        )
    return values.astype(np.int64, copy=False)


def string_ids(strings: Sequence[str], where: str) -> StringIds:
    """Ids from strings that are different and valid UTF-8."""
    seen = set[str]()
    for text in strings:
        if text in seen:
            raise PenstockError(f"{where} holds {text!r} twice: give every vertex its own id.", code="duplicate")
        seen.add(text)
    try:
        return StringIds.of(strings)
    except UnicodeEncodeError as error:
        raise PenstockError(
            f"{where} holds the id {error.object!r}, which is not valid Unicode: rename it.", code="invalid-value"
        ) from None
