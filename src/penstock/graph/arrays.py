"""Arrays: plain `.npy` files, opened mapped or written through files, and torch tensors without copies."""

import math
import os
import re
import tempfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.lib import format as npy

from penstock.errors import PenstockError
from penstock.graph.files import open_bytes, open_regular, replace_whole, take_blocks

# Plain `.npy` files: opened mapped, written through files, appended to while their length is unknown.

Array = np.ndarray[Any, np.dtype[Any]]

_HEADER_BYTES = 128
_PLAIN_KINDS = "biufcSU"
_COPY_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
_MAGIC = npy.MAGIC_PREFIX
_LONGEST_HEADER = 1 << 16
_ENTRY = re.compile(r"'(descr|fortran_order|shape)'\s*:\s*('[^'\\]*'|True|False|\([\d, L]*\))")
_DESCR = re.compile(r"'[<>|=]?[biufcSUmMOV]\d*(\[\w+\])?'")
"""A type as NumPy writes it, such as '<f4' or '<M8[ns]'."""
_DAMAGED_MEMBER = OSError, ValueError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile, zlib.error
"""Exceptions that reading a damaged zip file raises; a changed version or flag is a RuntimeError."""


def index_dtype(num_sources: int) -> np.dtype[np.signedinteger]:
    """int32 when vertex numbers fit, else int64."""
    return np.dtype(np.int32 if num_sources <= np.iinfo(np.int32).max else np.int64)


def open_array(
    path: Path, dtype: str | None = None, shape: tuple[int, ...] | None = None, growing: bool = False
) -> Array:
    """Map an `.npy` file read-only, after checking that it is complete and matches its document.

    A `growing` file has the rows that its document counts, whatever its header says, and perhaps more behind them.
    """
    try:
        with open_regular(path) as file:
            return _mapped(file, path, dtype, shape, growing)
    except FileNotFoundError:
        raise PenstockError(
            f"{path} is missing: the folder is incomplete, make or copy it again.", code="damaged-file"
        ) from None
    except (OSError, ValueError, OverflowError) as error:
        raise PenstockError(
            f"{path} is not a readable .npy file ({error}): copy it again.", code="damaged-file"
        ) from None


def _mapped(
    file: BinaryIO, path: Path, dtype: str | None, shape: tuple[int, ...] | None, growing: bool = False
) -> Array:
    stored_shape, fortran, stored_dtype = read_header(file)
    offset, size = file.tell(), os.fstat(file.fileno()).st_size
    if growing and shape is not None and stored_shape[1:] == tuple(shape[1:]):
        stored_shape = tuple(shape)
        size = min(size, offset + math.prod(shape) * stored_dtype.itemsize)
    expected = offset + math.prod(stored_shape) * stored_dtype.itemsize
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
    if dtype is not None and _named_dtype(path, dtype) != stored_dtype:
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
    return np.memmap(file, stored_dtype, "r", offset, stored_shape).view(np.ndarray)


def mapped_file(array: Array) -> tuple[object, ...]:
    """The file that an array is mapped from, and where in it; for other arrays, which equal none of these, their
    identity. Empty arrays are never mapped: all of one shape are alike.
    """
    if not array.size:
        return array.shape, array.dtype
    base = array.base
    if not isinstance(base, np.memmap) or base.mode != "r":
        return id(array), None
    return base.filename, array.ctypes.data - base.ctypes.data, array.shape, array.dtype


def _named_dtype(path: Path, name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        raise PenstockError(
            f"graph.json says that {path} holds {name!r}, which is not a numeric type: correct graph.json.",
            code="damaged-file",
        ) from None


class ArrayHeader(NamedTuple):
    """The header of a `.npy` file."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def read_header(file: IO[bytes]) -> ArrayHeader:
    """The header at the beginning of an open `.npy` file; ValueError if it is invalid.

    NumPy evaluates headers as Python and raises whatever a parser can; its warnings would be shown to the user too.
    """
    start = file.read(len(_MAGIC) + 2)
    lengths = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
    if not start.startswith(_MAGIC) or start[len(_MAGIC) :] not in lengths:
        raise ValueError("it does not begin as one")
    length = int.from_bytes(file.read(lengths[start[len(_MAGIC) :]]), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header has {length:,} bytes")
    text = file.read(length).decode("latin1").strip()
    entries = dict(_ENTRY.findall(text))
    # Three entries, and nothing else between the braces.
    if len(entries) != 3 or not re.fullmatch(r"\{[\s,]*\}", _ENTRY.sub("", text)):
        raise ValueError("its header is damaged, or it holds records")
    try:
        if not _DESCR.fullmatch(entries["descr"]) or entries["fortran_order"] not in ("True", "False"):
            raise ValueError
        shape, dtype = tuple(map(int, re.findall(r"\d+", entries["shape"]))), np.dtype(entries["descr"][1:-1])
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"its header says that it holds {entries['descr'][:60]}") from None
    return ArrayHeader(shape, entries["fortran_order"] == "True", dtype)


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """The array of a member of a zip file, checked against its checksum; ValueError where it is damaged or not plain.

    It takes no more memory than the file says that the member has.
    """
    try:
        with archive.open(info) as member:
            shape, fortran, dtype = read_header(member)
            size = math.prod(shape) * dtype.itemsize
            if dtype.kind in "OV":
                raise ValueError("it holds Python objects or records")
            if size != info.file_size - member.tell():
                raise ValueError(f"it is not as long as its shape {shape} says")
            array: Array = np.ndarray(shape[::-1] if fortran else shape, dtype)
            view, filled = memoryview(array.reshape(-1).view(np.uint8).data if size else b""), 0
            while piece := member.read(_PIECE_BYTES):
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
    except _DAMAGED_MEMBER as error:
        raise ValueError(f"{info.filename}: {error or type(error).__name__}") from None
    if filled < size:
        raise ValueError(f"{info.filename}: it ends early")
    return array.T if fortran else array


def write_array(path: Path, values: Array) -> None:
    """Write an array of known length, in slices, so that a mapped source is never held in memory completely."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_bytes(path, "xb") as file:
        _write_header(file, values.shape, values.dtype)
        _write_rows(file, values)


def append_rows(path: Path, kept: int, rows: Array) -> None:
    """Write rows behind the first `kept` of a file, durably; its header keeps its number of rows (`settle_rows`)."""
    with open_bytes(path, "r+b") as file:
        header = read_header(file)
        begin, about = file.tell(), os.fstat(file.fileno())
        if begin == _HEADER_BYTES and about.st_nlink == 1:
            file.truncate(begin + kept * header.dtype.itemsize * math.prod(header.shape[1:]))
            file.seek(0, os.SEEK_END)
            _write_rows(file, rows.astype(header.dtype, copy=False))
            file.flush()
            os.fsync(file.fileno())
            return
    # The header has no room for another number, or another folder has the same file: from now on it is this one's own.
    before = open_array(path, shape=(kept, *header.shape[1:]), growing=True)

    def write(file: BinaryIO) -> None:
        _write_header(file, (kept + len(rows), *header.shape[1:]), header.dtype)
        _write_rows(file, before)
        _write_rows(file, rows.astype(header.dtype, copy=False))

    replace_whole(path, write, durable=True)


def write_rows_at(path: Path, start: int, rows: Array, add: int = 0) -> None:
    """Write rows in place, from row `start` of a complete file on; `add` is added to them."""
    with open_bytes(path, "r+b") as file:
        header = read_header(file)
        width = header.dtype.itemsize * math.prod(header.shape[1:])
        file.seek(file.tell() + start * width)
        slice_rows = max(1, _COPY_BYTES // 8 // max(1, width))
        for first in range(0, len(rows), slice_rows):
            some = rows[first : first + slice_rows]
            file.write(np.ascontiguousarray(some + add if add else some, header.dtype).data)


def settle_rows(path: Path, count: int) -> None:
    """Have a file end with its first `count` rows, and its header say so."""
    with open_bytes(path, "r+b") as file:
        header = read_header(file)
        end = file.tell() + count * header.dtype.itemsize * math.prod(header.shape[1:])
        if file.tell() == _HEADER_BYTES and header.shape[0] != count:
            file.seek(0)
            _write_header(file, (count, *header.shape[1:]), header.dtype)
        if os.fstat(file.fileno()).st_size > end:
            file.truncate(end)


def _write_rows(file: BinaryIO, values: Array) -> None:
    """Write rows in slices, so that a mapped source is never held in memory completely."""
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

    @classmethod
    def existing(cls, path: Path) -> Self:
        """A complete file, to which rows can be added once it is opened again."""
        writer = cls.__new__(cls)
        with open_regular(path) as file:
            header = read_header(file)
        writer.path, writer.dtype, writer.row_shape, writer.rows = path, header.dtype, header.shape[1:], header.shape[0]
        writer._file = file
        return writer

    def append(self, rows: Array) -> None:
        """Add rows at the end; they are converted to the file's dtype."""
        if rows.shape[1:] != self.row_shape:
            raise ValueError(f"{self.path}: rows of shape {rows.shape[1:]} do not fit {self.row_shape}")
        self._file.write(np.ascontiguousarray(rows, self.dtype).data)
        self.rows += len(rows)

    def extend(self, rows: int) -> int:
        """Make room for rows that are written in place later; the position of the first of them in the file."""
        self._file.flush()
        begin = self._file.seek(0, os.SEEK_END)
        take_blocks(self._file.fileno(), begin + rows * self.dtype.itemsize * math.prod(self.row_shape))
        self._file.seek(0, os.SEEK_END)
        self.rows += rows
        return begin

    def flush(self) -> None:
        """Pass what was added to the system; readers of the file find it then, behind a header that counts no rows."""
        if not self._file.closed:
            self._file.flush()

    def reopen(self) -> Self:
        """Open the complete file again, to add rows to it."""
        self._file = open_bytes(self.path, "r+b", 1 << 20)
        self._file.seek(0, os.SEEK_END)
        return self

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
            return
        # On a full disk the buffer cannot be flushed; the original error says so already.
        with suppress(OSError):
            self._file.close()


def release_pages(array: Array) -> None:
    """Drop a mapped array's pages from this process; the file keeps them. Bounds peak memory after one pass."""
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


# Rows that are written while they are mapped.

_FLOAT32 = np.dtype(np.float32)


def rows_in_file(path: Path, shape: tuple[int, int]) -> Array:
    """Map a file of float32 rows for writing; it is made, of zeros, if it does not exist in full size."""
    size = math.prod(shape) * 4
    try:
        with open_bytes(path, "r+b" if os.path.lexists(path) else "x+b") as file:
            if os.fstat(file.fileno()).st_size != size:
                os.ftruncate(file.fileno(), 0)
                take_blocks(file.fileno(), size)
            return (
                np.memmap(file, np.float32, "r+", shape=shape).view(np.ndarray) if size else np.empty(shape, np.float32)
            )
    except OSError as error:
        raise PenstockError(
            f"{path} cannot hold {size / 1e6:,.0f} MB ({error.strerror or error}): free space.", code="write-failed"
        ) from error


def passing_rows(
    shape: tuple[int, ...],
    in_memory: int,
    folder: Path | None,
    dtype: np.dtype[Any] = _FLOAT32,
    what: str = "A field",
    mend: str = "",
) -> Array:
    """Temporary rows: in memory up to so many bytes, else in an unlinked file, which is gone with the last reference.

    `what` and `mend` complete the error where it cannot be made.
    """
    size = math.prod(shape) * dtype.itemsize
    if size <= in_memory:
        return np.zeros(shape, dtype)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rows-") as file:
            take_blocks(file.fileno(), size)
            return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)
    except OSError as error:
        where = folder or tempfile.gettempdir()
        raise PenstockError(
            f"{what} needs {size / 1e6:,.0f} MB in a file in {where} ({error.strerror or error}): free space{mend}.",
            code="write-failed",
        ) from error


NUMBERS_IN_MEMORY = 16 << 20
"""Bytes up to which `passing_numbers` are in memory: offsets of two million lists."""


def passing_numbers(count: int, dtype: np.dtype[Any]) -> Array:
    """Temporary numbers (0 at first), one for each vertex of a cut graph: in memory where they are few, else in an
    unlinked file, whose pages the system may take back.
    """
    mend = ", or set TMPDIR to a folder on a larger disk"
    return passing_rows((count,), NUMBERS_IN_MEMORY, None, dtype, "A number for each vertex", mend)


# Torch tensors as NumPy arrays and back, without copies where both sides allow it.


def to_array(value: Any, what: str) -> Array:
    """A tensor or array as an array, shared if it is on the CPU. `what` names it in errors."""
    import torch

    if not isinstance(value, torch.Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise PenstockError(
                f"{what} holds {array.dtype}, which is not numeric: convert or remove it.", code="wrong-type"
            )
        return array
    if value.layout is not torch.strided:
        raise PenstockError(f"{what} is a sparse tensor: give it as a dense one (.to_dense()).", code="wrong-type")
    # Subclasses such as PyG's EdgeIndex override conversions; the plain tensor below them does not.
    plain = value.detach().as_subclass(torch.Tensor).cpu()
    try:
        array = plain.numpy()
    except TypeError:
        raise PenstockError(
            f"{what} is {value.dtype}, which NumPy does not support: convert it, for example with .float().",
            code="wrong-type",
        ) from None
    return array


def to_tensor(array: Array, what: str) -> Any:
    """An array as a tensor that may be written to; a mapped one is mapped again, copy-on-write."""
    import torch

    try:
        return torch.from_numpy(_writable(array.astype(array.dtype.newbyteorder("="), copy=False)))
    except TypeError:
        raise PenstockError(
            f"{what} is {array.dtype}, which torch does not support: convert or remove it.", code="wrong-type"
        ) from None


def _writable(array: Array) -> Array:
    if array.flags.writeable:
        return array
    base = array.base
    if isinstance(base, np.memmap) and base.filename is not None and base.nbytes == array.nbytes:
        return np.memmap(base.filename, array.dtype, "c", base.offset, array.shape).view(np.ndarray)
    return array.copy()


def is_on_disk(table: Array) -> bool:
    """Whether an array's rows can be read from the file that it is mapped from."""
    base = table.base
    return (
        isinstance(base, np.memmap) and base.mode == "r" and base.filename is not None
        and table.size > 0 and table.flags.c_contiguous
    )  # fmt: skip
