"""Arrays from columns of a table, with a row per vertex or edge: numbers, words, times, weights and labels."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.tables.reader import Role, TableChunk
from penstock.graph.tables.spec import FieldSpec, LabelSpec

# Numeric columns as NumPy rows: plain ones [n], lists [n, width]; missing or ragged values are errors.


class NumberColumn:
    """One numeric column; remembers the length of its lists."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._width: int | None = None
        self._temporal: pa.DataType | None = None

    def read(self, chunk: TableChunk) -> Array:
        """The rows of a chunk in the column's own type; times and dates as the integers stored for them."""
        values = chunk.column(self.column)
        if kinds.is_fixed_size_list(values.type) or kinds.is_list(values.type) or kinds.is_large_list(values.type):
            return self._read_lists(chunk, values)
        refuse_nulls(values, chunk, self.column)
        if kinds.is_temporal(values.type):
            # Another file may use another unit.
            self._temporal = self._temporal or values.type
            values = values.cast(self._temporal)
        return _plain(values, chunk, self.column)

    def _read_lists(self, chunk: TableChunk, lists: pa.Array) -> Array:
        refuse_nulls(lists, chunk, self.column)
        self._check_lengths(chunk, lists)
        width = self._width or 0
        flat = lists.flatten()
        if flat.null_count:
            row = flat.is_null().index(True).as_py() // width
            raise chunk.wrong(row, self.column, "the list contains a null: fill it in", "missing-data")
        return _plain(flat, chunk, self.column).reshape(len(lists), width)

    def _check_lengths(self, chunk: TableChunk, lists: pa.Array) -> None:
        fixed = kinds.is_fixed_size_list(lists.type)
        if self._width is None and (fixed or len(lists)):
            self._width = lists.type.list_size if fixed else len(lists[0])
        if fixed and lists.type.list_size == self._width:
            return
        lengths = np.full(len(lists), lists.type.list_size) if fixed else lists.value_lengths().to_numpy()
        wrong = np.flatnonzero(lengths != self._width)
        if len(wrong):
            what = f"the list has {lengths[wrong[0]]} values where the rows before it have {self._width}"
            raise chunk.wrong(wrong[0], self.column, f"{what}: make all lists equally long", "shape-mismatch")


def refuse_nulls(values: pa.Array, chunk: TableChunk, column: str) -> None:
    """Every row must have a value."""
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise chunk.wrong(row, column, "the value is missing: fill it in or remove the row", "missing-data")


def refuse_infinite(values: Array, chunk: TableChunk, column: str) -> None:
    """No NaN and no infinity in any row."""
    finite = np.isfinite(values)
    if not finite.all():
        rows, *inner = np.nonzero(~finite)
        value = values[(rows[0], *(positions[0] for positions in inner))]
        what = f"the value is {value}: fill in a finite number or remove the row"
        raise chunk.wrong(rows[0], column, what, "not-finite")


def _plain(values: pa.Array, chunk: TableChunk, column: str) -> Array:
    kind = values.type
    if kinds.is_timestamp(kind) or kinds.is_duration(kind) or kinds.is_time64(kind) or kinds.is_date64(kind):
        values = values.cast(pa.int64())
    elif kinds.is_date32(kind) or kinds.is_time32(kind):
        values = values.cast(pa.int32())
    elif kinds.is_decimal(kind) or (kinds.is_null(kind) and len(values) == 0):
        values = values.cast(pa.float64())
    elif not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)):
        shown = f", in row {chunk.start + 1} {values[0].as_py()!r}" if len(values) else ""
        raise PenstockError(
            f"Column {column!r} of {chunk.file} is not numeric (it is {kind}{shown}): convert, or use 'categorical'.",
            code="wrong-type",
        )
    array: np.ndarray[Any, np.dtype[Any]] = values.to_numpy(zero_copy_only=False)
    return array


# Words and the codes they are stored as.


class Vocabulary:
    """The words of a column in order: as given, or those met in a first pass, sorted (numbers by value)."""

    def __init__(self, words: list[str] | None = None) -> None:
        self.is_given = words is not None
        self._words = words
        self._met: set[str] = set()

    @property
    def words(self) -> list[str]:
        """The word of every code."""
        if self._words is None:
            self._words = _in_order(self._met)
        return self._words

    def use(self, words: list[str]) -> None:
        """The words are known: those that were met by another process."""
        self._words = words

    def learn(self, values: pa.Array) -> None:
        """Record the words of a chunk."""
        if not self.is_given:
            self._met.update(word for word in as_text(pc.unique(values)).to_pylist() if word is not None)

    def codes(self, values: pa.Array, chunk: TableChunk, column: str) -> Array:
        """int32 codes, -1 where there is no word."""
        words = as_text(values)
        found = pc.index_in(words, value_set=pa.array(self.words, words.type))
        if found.null_count != words.null_count:
            row = pc.and_(found.is_null(), words.is_valid()).index(True).as_py()
            what = f"{words[row].as_py()!r} is not one of the categories in the spec: add it there"
            raise chunk.wrong(row, column, what, "unknown-name")
        codes: Array = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        return codes


def as_text(values: pa.Array) -> pa.Array:
    """Any plain column as strings."""
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _in_order(words: set[str]) -> list[str]:
    try:
        return sorted(words, key=lambda word: (int(word), word))
    except ValueError:
        return sorted(words)


class Field(ABC):
    """A field being built. `rows` of consecutive chunks, concatenated, are the array."""

    name: str
    roles: dict[str, Role]
    """The columns it reads, and their roles."""
    learns = False
    """Whether it must see all chunks once (`learn`) before `rows` can be called."""
    fill: float = 0
    """The value of a vertex that is in no table."""

    @property
    def learned_columns(self) -> list[str]:
        """The columns that `learn` looks at."""
        return list(self.roles) if self.learns else []

    def learn(self, chunk: TableChunk) -> None:
        """Record what the first pass needs of a chunk."""
        raise NotImplementedError

    def learned(self) -> Any:
        """What was recorded, as JSON has it."""
        raise NotImplementedError

    def use_learned(self, learned: Any) -> None:
        """Go on with what another process has recorded, instead of learning."""
        raise NotImplementedError

    @abstractmethod
    def rows(self, chunk: TableChunk) -> Array:
        """The rows of a chunk, always of one dtype and width."""

    @property
    def categories(self) -> list[str] | None:
        """The meaning of codes, if the field holds codes."""
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

    def learned(self) -> Any:
        """The words that it has recorded."""
        return self._vocabulary.words

    def use_learned(self, learned: Any) -> None:
        """Use the words that another process has recorded."""
        self._vocabulary.use(learned)

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
                raise chunk.wrong(0, column.column, "'columns' takes numbers, not lists", "wrong-type")
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
        # A float may be rounded to a narrower one; any other change of a value is an error.
        if self._dtype.kind != "f" and not np.array_equal(typed, values):
            wrong = tuple(axis[0] for axis in np.nonzero(typed != values))
            what = f"{values[wrong]} does not fit {self._dtype}: give the field a wider 'dtype'"
            raise chunk.wrong(wrong[0], column, what, "value-out-of-range")
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
            what = "a time must be one whole number or a timestamp, convert it"
            raise chunk.wrong(wrong[0] if len(wrong) else 0, self._column.column, what, "wrong-type")
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
            raise chunk.wrong(0, column, "a weight must be one number, not a list", "wrong-type")
        with np.errstate(over="ignore"):
            weights = values.astype(np.float32)
        refuse_infinite(weights, chunk, column)
        return weights


# The labels y: a class, a number, or several classes at once.


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

    def learned(self) -> Any:
        """The words, or None where the classes are numbers."""
        return self.categories

    def use_learned(self, learned: Any) -> None:
        """Use these words, if there are any."""
        if learned is not None:
            self._has_words = True
            self._vocabulary.use(learned)

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

    def learned(self) -> Any:
        """The words, and the highest class number."""
        return [self.categories, self._highest]

    def use_learned(self, learned: Any) -> None:
        """Use these words, and this highest number."""
        super().use_learned(learned[0])
        self._highest = learned[1]

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
