"""Plain `.npy` files: opened mapped, written through files, appended to while their length is unknown."""

import os
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.lib import format as npy

from penstock.errors import PenstockError
from penstock.graph.output_files import open_bytes

Array = np.ndarray[Any, np.dtype[Any]]

_HEADER_BYTES = 128
_PLAIN_KINDS = "biufcSU"
_COPY_BYTES = 64 << 20


def open_array(path: Path, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Array:
    """Map an `.npy` file read-only, after checking that it is whole and what its document says it is."""
    try:
        with path.open("rb") as file:
            stored_shape, fortran, stored_dtype = _read_header(file)
            offset = file.tell()
            size = os.fstat(file.fileno()).st_size
        expected_dtype = None if dtype is None else np.dtype(dtype)
    except FileNotFoundError:
        raise PenstockError(
            f"{path} is missing: the folder is incomplete, make or copy it again.", code="damaged-file"
        ) from None
    except TypeError:
        raise PenstockError(
            f"graph.json says that {path} holds {dtype!r}, which is not a numeric type: correct graph.json.",
            code="damaged-file",
        ) from None
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:
        raise PenstockError(
            f"{path} is not a readable .npy file ({error}): copy it again.", code="damaged-file"
        ) from None
    expected = offset + int(np.prod(stored_shape, dtype=np.int64)) * stored_dtype.itemsize
    if size != expected:
        raise PenstockError(
            f"{path} is {size:,} bytes where its header says {expected:,}: it is truncated or damaged, copy it again.",
            code="damaged-file",
        )
    if fortran or stored_dtype.hasobject or not stored_dtype.isnative:
        raise PenstockError(
            f"{path} is stored in an order or type that cannot be mapped: write it C-ordered, plain, and in this"
            " machine's byte order.",
            code="wrong-type",
        )
    if expected_dtype is not None and expected_dtype != stored_dtype:
        raise PenstockError(
            f"{path} holds {stored_dtype} where graph.json says {dtype}: make the folder again.", code="damaged-file"
        )
    if shape is not None and tuple(shape) != stored_shape:
        raise PenstockError(
            f"{path} has shape {stored_shape} where graph.json says {tuple(shape)}: make the folder again.",
            code="damaged-file",
        )
    if expected == offset:
        return np.empty(stored_shape, stored_dtype)
    mapped = np.memmap(path, stored_dtype, "r", offset, stored_shape)
    return mapped.view(np.ndarray)


def write_array(path: Path, values: Array) -> None:
    """Write an array of known length, in slices, so that a mapped source is never held in memory whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_bytes(path, "xb") as file:
        _write_header(file, values.shape, values.dtype)
        rows = max(1, _COPY_BYTES // max(1, values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))))
        for start in range(0, len(values), rows):
            file.write(np.ascontiguousarray(values[start : start + rows]).data)


class ArrayWriter:
    """An `.npy` file that grows row by row; the header is completed on close."""

    def __init__(self, path: Path, dtype: Any, row_shape: tuple[int, ...] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.dtype, self.row_shape, self.rows = path, np.dtype(dtype), row_shape, 0
        self._file = open_bytes(path, "xb", 1 << 20)
        _write_header(self._file, (0, *row_shape), self.dtype)

    def append(self, rows: Array) -> None:
        """Add rows at the end; they are converted to the file's dtype."""
        if rows.shape[1:] != self.row_shape:
            raise ValueError(f"{self.path}: rows of shape {rows.shape[1:]} do not fit {self.row_shape}")
        self._file.write(np.ascontiguousarray(rows, self.dtype).data)
        self.rows += len(rows)

    def close(self) -> None:
        """Complete the header. A second call does nothing."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            self._file.seek(0)
            _write_header(self._file, (self.rows, *self.row_shape), self.dtype)
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def _abandon(self) -> None:
        # On a full disk the buffer cannot be flushed; the error under way says so already.
        with suppress(OSError):
            self._file.close()


def release_pages(array: Array) -> None:
    """Drop a mapped array's pages from this process; the file keeps them. Holds peak memory down after one pass."""
    base: Any = array
    while base is not None and not hasattr(base, "madvise"):
        base = getattr(base, "_mmap", None) or getattr(base, "base", None)
    if base is not None:
        import mmap

        base.madvise(mmap.MADV_DONTNEED)


def _write_header(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """A version-1 header padded to a fixed length, so that the shape can be rewritten in place."""
    if dtype.kind not in _PLAIN_KINDS:
        raise PenstockError(
            f"An array of {dtype} cannot be stored: convert it to numbers or fixed-size strings.", code="wrong-type"
        )
    descr = npy.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {tuple(int(n) for n in shape)!r}, }}"
    magic = npy.magic(1, 0)
    padded = text.ljust(_HEADER_BYTES - len(magic) - 2 - 1) + "\n"
    file.write(magic + len(padded).to_bytes(2, "little") + padded.encode("latin1"))


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return reader(file)
