"""A NumPy archive whose arrays are read when they are asked for, and never unpickled.

A sparse matrix in it is four arrays, as SciPy keeps a CSR matrix: data, indices, indptr and shape.
"""

import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, read_member
from penstock.graph.input_files import open_regular


class Archive(Mapping[str, Array]):
    """The arrays of an `.npz` file by name. Arrays that nobody asks for may be of any kind."""

    def __init__(self, path: Path) -> None:
        self._read: dict[str, Array] = {}
        try:
            self._file = open_regular(path)
        except FileNotFoundError:
            raise PenstockError(f"{path} does not exist: check the path.", code="file-not-found") from None
        except OSError as error:
            raise PenstockError(f"{path} cannot be read ({error}): check the path.", code="wrong-file") from None
        try:
            self._zip = zipfile.ZipFile(self._file)
        except (OSError, ValueError, RuntimeError, LookupError, OverflowError, zipfile.BadZipFile, struct.error):
            self._file.close()
            raise PenstockError(
                f"{path} is not an .npz archive: copy it again, or write one with numpy.savez.", code="wrong-file"
            ) from None
        self._members = {info.filename.removesuffix(".npy"): info for info in self._zip.infolist()}

    def close(self) -> None:
        """Let the file go; arrays that were read stay."""
        self._zip.close()
        self._file.close()

    def __getitem__(self, key: str) -> Array:
        if key not in self._read:
            try:
                self._read[key] = read_member(self._zip, self._members[key])
            except ValueError as error:
                raise PenstockError(
                    f"it is not a readable .npz archive of plain arrays ({error}): make it again.", code="damaged-file"
                ) from None
        return self._read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def strings(self, key: str) -> list[str] | None:
        """An array of strings, or None where there is none or it holds Python objects, which would be unpickled."""
        try:
            found = self.get(key)
        except PenstockError:
            return None
        return found.tolist() if found is not None and found.dtype.kind == "U" and found.ndim == 1 else None


class Entries(NamedTuple):
    """The stored entries of a matrix, checked."""

    rows: Array
    columns: Array
    values: Array
    shape: tuple[int, int]


def csr_entries(archive: Mapping[str, Array], prefix: str, what: str) -> Entries:
    """The matrix kept under `<prefix>data`, `<prefix>indices`, `<prefix>indptr` and `<prefix>shape`."""
    values, columns, indptr, shape = (archive[prefix + name] for name in ("data", "indices", "indptr", "shape"))
    for name, array in (("indices", columns), ("indptr", indptr), ("shape", shape)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise _misfit(what, f"{prefix}{name} is {array.dtype} of shape {array.shape}, not a list of integers")
    if len(shape) != 2 or shape.min() < 0:
        raise _misfit(what, f"{prefix}shape is {shape.tolist()}, not the two sizes of a matrix")
    if values.shape != columns.shape or values.dtype.kind not in "biuf":
        raise _misfit(what, f"{prefix}data is {values.dtype} of shape {values.shape} for {len(columns):,} indices")
    height, width = int(shape[0]), int(shape[1])
    indptr = indptr.astype(np.int64, copy=False)
    lengths = np.diff(indptr)
    if len(indptr) != height + 1 or indptr[0] != 0 or indptr[-1] != len(columns) or np.any(lengths < 0):
        raise _misfit(what, f"{prefix}indptr does not lead through {len(columns):,} entries in {height:,} rows")
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < width:
        raise _misfit(what, f"{prefix}indices has numbers outside 0 to {width - 1:,}")
    return Entries(np.repeat(np.arange(height), lengths), columns, values, (height, width))


def dense_rows(entries: Entries) -> Array:
    """The matrix with all of its zeros, float32; entries of one place are summed, as SciPy does."""
    dense = np.zeros(entries.shape, np.float32)
    np.add.at(dense, (entries.rows, entries.columns), entries.values.astype(np.float32, copy=False))
    return dense


def _misfit(what: str, why: str) -> PenstockError:
    return PenstockError(f"The {what} do not fit together ({why}): make the archive again.", code="shape-mismatch")
