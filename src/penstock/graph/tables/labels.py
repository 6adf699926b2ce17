"""The labels y: a class, a number, or several classes at once."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.tables.fields import Field, NumberColumn, Vocabulary, refuse_nulls
from penstock.graph.tables.reader import TableChunk
from penstock.graph.tables.spec import LabelSpec


class LabelField(Field):
    """A field y that knows which rows have a label at all."""

    name = "y"

    def known(self, chunk: TableChunk) -> Array:
        """Whether each row is labelled."""
        raise NotImplementedError


class _ColumnLabel(LabelField):
    """A label from one column, of class numbers or of words, which a first pass tells apart."""

    def __init__(self, spec: LabelSpec) -> None:
        self._column, self._classes = spec.column or "", spec.classes
        self._vocabulary = Vocabulary(spec.categories)
        self._has_words = self._vocabulary.is_given
        self.learns = not self._has_words
        self.roles = {self._column: "any"}

    @property
    def categories(self) -> list[str] | None:
        """The words, if the classes were words."""
        return self._vocabulary.words if self._has_words else None


class ClassLabel(_ColumnLabel):
    """int64 class numbers, -1 where there is none. Words become their place in the sorted vocabulary."""

    fill = -1

    def __init__(self, spec: LabelSpec) -> None:
        super().__init__(spec)
        self.roles = {self._column: "text" if self._has_words else "any"}

    def learn(self, chunk: TableChunk) -> None:
        """Whether the classes are words, and which."""
        values = chunk.column(self._column)
        if is_text(values.type):
            self._has_words = True
            self._vocabulary.learn(values)

    def rows(self, chunk: TableChunk) -> Array:
        """Checked against the number of classes, where that is given."""
        values = chunk.column(self._column)
        if self._has_words:
            numbers = self._vocabulary.codes(values, chunk, self._column).astype(np.int64)
        else:
            numbers = whole_numbers(values, chunk, self._column)
        refuse_range(numbers, self._classes, chunk, self._column)
        return numbers

    def known(self, chunk: TableChunk) -> Array:
        """Which rows have a label, that is, not -1."""
        return self.rows(chunk) >= 0


class FloatLabel(LabelField):
    """float32, NaN where there is none."""

    fill = float("nan")

    def __init__(self, spec: LabelSpec) -> None:
        self._column = spec.column or ""
        self.roles = {self._column: "number"}

    def rows(self, chunk: TableChunk) -> Array:
        """The labels as float32; infinite ones are refused."""
        values = chunk.column(self._column)
        if not (kinds.is_integer(values.type) or kinds.is_floating(values.type) or kinds.is_null(values.type)):
            raise PenstockError(
                f"Column {self._column!r} of {chunk.file} is {values.type}: a float label needs numbers.",
                code="wrong-type",
            )
        with np.errstate(over="ignore"):
            numbers: Array = values.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float32)
        infinite = np.flatnonzero(np.isinf(numbers))
        if len(infinite):
            what = "the label is infinite: leave it empty or correct it"
            raise chunk.wrong(infinite[0], self._column, what, "not-finite")
        return numbers

    def known(self, chunk: TableChunk) -> Array:
        """Which rows have a label, that is, not NaN."""
        return ~np.isnan(self.rows(chunk))


def refuse_range(numbers: Array, classes: int | None, chunk: TableChunk, column: str) -> None:
    """Refuse class numbers of `classes` or more; -1 means no label."""
    if classes is None:
        return
    wrong = np.flatnonzero(numbers >= classes)
    if len(wrong):
        what = f"label {numbers[wrong[0]]} is out of range: 'classes: {classes}' allows 0 to {classes - 1}"
        raise chunk.wrong(wrong[0], column, what, "value-out-of-range")


def whole_numbers(values: pa.Array, chunk: TableChunk, column: str) -> Array:
    """int64 labels, -1 for none. Integral floats are accepted too: a column with gaps often has no integers."""
    kind = values.type
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_null(kind)):
        raise PenstockError(
            f"Column {column!r} of {chunk.file} is {kind}: a class label needs integers or strings.", code="wrong-type"
        )
    if kinds.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, kind), values)
    numbers = values.cast(pa.float64() if kinds.is_floating(kind) else pa.int64(), safe=False)
    present = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    # Unsigned numbers beyond int64 arrive as negative ones.
    wrong = np.flatnonzero((present < 0) | ~(present < 2.0**63) | (present != np.floor(present)))
    if len(wrong):
        what = f"label {present[wrong[0]]} is not an integer of 0 or more: correct it, or leave it empty for no label"
        raise chunk.wrong(wrong[0], column, what, "value-out-of-range")
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, present, -1).astype(np.int64)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds words."""
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


# Labels of several classes at once, as a 0 or 1 for each.

_MOST_CLASSES = 1_000_000


class MultiLabel(_ColumnLabel):
    """uint8 [n, classes] from lists of class numbers or words."""

    _highest = -1

    def learn(self, chunk: TableChunk) -> None:
        """The words, or how high the class numbers go."""
        _, values = self._flat(chunk)
        if is_text(values.type):
            self._has_words = True
            self._vocabulary.learn(values)
        elif len(values) and not kinds.is_null(values.type):
            self._highest = max(self._highest, int(pc.max(values).as_py() or 0))
            if self._classes is None and self._highest >= _MOST_CLASSES:
                raise PenstockError(
                    f"Column {self._column!r} of {chunk.file} has label {self._highest}: each row would need a column"
                    " for every class up to it; number the classes from 0, or set 'classes'.",
                    code="too-large",
                )

    def rows(self, chunk: TableChunk) -> Array:
        """A 1 for every class in the list of a row; no list, no 1."""
        owners, values = self._flat(chunk)
        flat = replace(chunk, owners=owners)
        if self._has_words:
            classes = self._vocabulary.codes(values, flat, self._column).astype(np.int64)
            width = len(self._vocabulary.words)
        else:
            width = self._classes or self._highest + 1
            classes = whole_numbers(values, flat, self._column)
        refuse_nulls(values, flat, self._column)
        refuse_range(classes, self._classes, flat, self._column)
        out = np.zeros((len(chunk), max(width, self._classes or 0)), np.uint8)
        out[owners, classes] = 1
        return out

    def known(self, chunk: TableChunk) -> Array:
        """Whether each row has a list, even an empty one."""
        known: Array = chunk.column(self._column).is_valid().to_numpy(zero_copy_only=False)
        return known

    def _flat(self, chunk: TableChunk) -> tuple[Array, pa.Array]:
        """The row of every list entry, and the entries."""
        lists = chunk.column(self._column)
        if kinds.is_null(lists.type):
            return np.empty(0, np.int64), pa.array([], pa.int64())
        if (
            not kinds.is_list(lists.type)
            and not kinds.is_large_list(lists.type)
            and not kinds.is_fixed_size_list(lists.type)
        ):
            raise PenstockError(
                f"Column {self._column!r} of {chunk.file} is {lists.type}: a multi-label is a column of lists"
                " or 'columns: [...]' of 0 and 1.",
                code="wrong-type",
            )
        owners: Array = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        values = pc.list_flatten(lists)
        return owners, values.dictionary_decode() if kinds.is_dictionary(values.type) else values


class FlagLabel(LabelField):
    """uint8 [n, classes] from one column of 0 and 1 per class."""

    def __init__(self, spec: LabelSpec) -> None:
        self._columns = [NumberColumn(column) for column in spec.columns or []]
        self._categories = spec.categories or [column.column for column in self._columns]
        self.roles = {column.column: "number" for column in self._columns}

    def rows(self, chunk: TableChunk) -> Array:
        """The columns side by side."""
        out = np.empty((len(chunk), len(self._columns)), np.uint8)
        for place, column in enumerate(self._columns):
            values = column.read(chunk)
            if values.ndim != 1:
                raise chunk.wrong(0, column.column, "a flag is a 0 or 1, not a list", "wrong-type")
            wrong = np.flatnonzero((values != 0) & (values != 1))
            if len(wrong):
                what = f"{values[wrong[0]]} is neither 0 nor 1"
                raise chunk.wrong(wrong[0], column.column, what, "value-out-of-range")
            out[:, place] = values
        return out

    def known(self, chunk: TableChunk) -> Array:
        """All rows: a missing 0 or 1 is an error."""
        return np.ones(len(chunk), np.bool_)

    @property
    def categories(self) -> list[str] | None:
        """The names of the columns, or of the classes where the spec gives them."""
        return self._categories
