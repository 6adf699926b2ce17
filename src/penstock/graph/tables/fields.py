"""What a column of a table becomes: one array with a row per vertex or edge."""

from abc import ABC, abstractmethod

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.tables.numbers import NumberColumn, refuse_infinite
from penstock.graph.tables.reader import TableChunk
from penstock.graph.tables.roles import Role
from penstock.graph.tables.spec import FieldSpec
from penstock.graph.tables.vocabulary import Vocabulary


class Field(ABC):
    """A field in the making. `rows` of consecutive chunks, one after the other, are the array."""

    name: str
    roles: dict[str, Role]
    """The columns it reads, and what for."""
    learns = False
    """Whether it must see all chunks once (`learn`) before `rows` can be asked for."""
    fill: float = 0
    """What a vertex that stands in no table gets."""

    @property
    def learned_columns(self) -> list[str]:
        """The columns that `learn` looks at."""
        return list(self.roles) if self.learns else []

    def learn(self, chunk: TableChunk) -> None:
        """Take note of a chunk in the first pass."""
        raise NotImplementedError

    @abstractmethod
    def rows(self, chunk: TableChunk) -> Array:
        """The rows of a chunk, always of one dtype and width."""

    @property
    def categories(self) -> list[str] | None:
        """What codes mean, where the field holds codes."""
        return None


class CodeField(Field):
    """A categorical column as int32 codes in a field named after it; -1 where there is no word."""

    fill = -1

    def __init__(self, column: str, categories: list[str] | None) -> None:
        self.name, self.roles = column, {column: "text"}
        self._vocabulary = Vocabulary(categories)
        self.learns = not self._vocabulary.is_given

    def learn(self, chunk: TableChunk) -> None:
        """Collect the words that occur."""
        self._vocabulary.learn(chunk.column(self.name))

    def rows(self, chunk: TableChunk) -> Array:
        """The words' codes as int32."""
        return self._vocabulary.codes(chunk.column(self.name), chunk, self.name)

    @property
    def categories(self) -> list[str] | None:
        """The word of every code."""
        return self._vocabulary.words


class PlainField(Field):
    """Numeric columns kept in their own dtype. A column with categories holds words, kept as codes."""

    def __init__(self, spec: FieldSpec) -> None:
        names = [spec.column] if spec.column is not None else spec.columns or []
        self.name, self._is_matrix = spec.name, spec.columns is not None
        self._columns = [NumberColumn(name) for name in names]
        self._dtype = None if spec.dtype is None else np.dtype(spec.dtype)
        self._vocabulary = None if spec.categories is None else Vocabulary(spec.categories)
        role: Role = "any" if self._dtype is None else pa.from_numpy_dtype(self._dtype)
        if self._vocabulary is not None and not self._is_matrix:
            role = "text"
        self.roles = dict.fromkeys(names, role)

    def rows(self, chunk: TableChunk) -> Array:
        """[n] or [n, width] in the dtype asked for, or in that of the first chunk."""
        if not self._columns:
            return np.empty((len(chunk), 0), self._dtype)
        parts = [self._typed(self._read(column, chunk), chunk, column.column) for column in self._columns]
        if not self._is_matrix:
            return parts[0]
        for column, part in zip(self._columns, parts, strict=True):
            if part.ndim != 1:
                raise PenstockError(
                    f"{chunk.place(0, column.column)}: 'columns' takes numbers, not lists.", code="wrong-type"
                )
        return np.stack(parts, axis=1)

    @property
    def categories(self) -> list[str] | None:
        """The categories that the spec gives."""
        return None if self._vocabulary is None else self._vocabulary.words

    def _read(self, column: NumberColumn, chunk: TableChunk) -> Array:
        values = chunk.column(column.column)
        if self._vocabulary is None or self._is_matrix or kinds.is_nested(values.type):
            return column.read(chunk)
        return self._vocabulary.codes(values, chunk, column.column)

    def _typed(self, values: Array, chunk: TableChunk, column: str) -> Array:
        if self._dtype is None:
            self._dtype = values.dtype
        with np.errstate(all="ignore"):
            typed = values.astype(self._dtype, copy=False)
        # A float may be rounded to a narrower one; nothing else may change on the way.
        if self._dtype.kind != "f" and not np.array_equal(typed, values):
            wrong = tuple(axis[0] for axis in np.nonzero(typed != values))
            raise PenstockError(
                f"{chunk.place(wrong[0], column)}: {values[wrong]} does not fit {self._dtype}:"
                " give the field a wider 'dtype'.",
                code="value-out-of-range",
            )
        return typed


class TimeField(Field):
    """Times as int64 in a field named time: integers as they are, timestamps as they are stored."""

    name = "time"

    def __init__(self, column: str) -> None:
        self._column, self.roles = NumberColumn(column), {column: "any"}

    def rows(self, chunk: TableChunk) -> Array:
        """int64, of whatever unit the table has."""
        values = self._column.read(chunk)
        whole = values if values.dtype.kind in "iub" else np.floor(np.nan_to_num(values))
        beyond = np.abs(whole.astype(np.float64)) >= 2.0**63 if values.dtype.kind in "uf" else False
        wrong = np.flatnonzero((whole != values) | beyond)
        if values.ndim != 1 or len(wrong):
            where = chunk.place(wrong[0] if len(wrong) else 0, self._column.column)
            raise PenstockError(
                f"{where}: a time must be one whole number or a timestamp, convert it.", code="wrong-type"
            )
        return whole.astype(np.int64)


class WeightField(Field):
    """A numeric column as float32 in a field named weight."""

    name = "weight"

    def __init__(self, column: str) -> None:
        self._column, self.roles = NumberColumn(column), {column: "number"}

    def rows(self, chunk: TableChunk) -> Array:
        """The weights as float32; they must be finite."""
        column = self._column.column
        values = self._column.read(chunk)
        if values.ndim != 1:
            raise PenstockError(
                f"{chunk.place(0, column)}: a weight must be one number, not a list.", code="wrong-type"
            )
        with np.errstate(over="ignore"):
            weights = values.astype(np.float32)
        refuse_infinite(weights, chunk, column)
        return weights
