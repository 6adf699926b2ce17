"""Sparse matrices that an archive keeps as the four arrays of SciPy's CSR: data, indices, indptr, shape."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array


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
