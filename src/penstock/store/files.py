"""Rows that are written while they are mapped."""

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.files import open_bytes, take_blocks

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
