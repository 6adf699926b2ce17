"""NaN and infinite numbers where a model or a sampler needs real ones: which field, which row, how many."""

from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.integrity.scan import nan_rows, non_finite_rows
from penstock.graph.schema import file_name

READ_AT_START = 4 << 30
"""Bytes of a field up to which it is read through before training; a larger one when a loss is not finite."""


class NonFinite(NamedTuple):
    """Rows of a field with NaN or infinite numbers."""

    where: str
    rows: int
    first: int
    value: float

    def __str__(self) -> str:
        rows = f"{self.rows:,} row{'s' if self.rows > 1 else ''}"
        return f"{self.where} has NaN or infinite numbers in {rows}, first {self.value} in row {self.first}"


def non_finite(owner: NodeSet | EdgeSet, name: str, field: str) -> NonFinite | None:
    """The rows of a field that are not finite as float32, read once; None: there are none. `name` is of the type."""
    values, file = owner.fields[field], f"field.{file_name(field)}"
    if values.dtype.kind != "f":
        return None
    rows, first = owner.facts.of(file, values, "non-finite", non_finite_rows)
    if not rows:
        return None
    row = np.asarray(values[first]).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        bad = row[~np.isfinite(row.astype(np.float32))]
    return NonFinite(owner.facts.where(file, values, name), rows, first, float(bad[0]))


def require_finite(owner: NodeSet | EdgeSet, name: str, field: str, use: str, most: int = READ_AT_START) -> None:
    """Refuse a field with NaN or infinite numbers, unless it is trusted or has more than `most` bytes."""
    if owner.facts.trusted or owner.fields[field].nbytes > most:
        return
    if found := non_finite(owner, name, field):
        raise PenstockError(f"{found}: {use} must be finite; replace these numbers.", code="not-finite")


def require_times(owner: NodeSet, name: str, field: str) -> None:
    """Refuse times of vertices that are NaN; infinite ones are before or after all others."""
    values, file = owner.fields[field], f"field.{file_name(field)}"
    if owner.facts.trusted or values.dtype.kind != "f":
        return
    rows, first = owner.facts.of(file, values, "NaN", nan_rows)
    if rows:
        where = owner.facts.where(file, values, name)
        raise PenstockError(
            f"{where} has {rows:,} times that are NaN, the first in row {first}: give each row a time.",
            code="not-finite",
        )
