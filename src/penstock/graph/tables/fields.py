"""From a spec to the fields its tables give, and from fields to arrays on disk."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, open_array
from penstock.graph.data import SPLITS
from penstock.graph.schema import edge_key, file_name
from penstock.graph.tables.columns import (
    ClassLabel,
    CodeField,
    Field,
    FlagLabel,
    FloatLabel,
    LabelField,
    MultiLabel,
    NumberColumn,
    PlainField,
    TimeField,
    Vocabulary,
    WeightField,
    as_text,
    refuse_infinite,
)
from penstock.graph.tables.reader import Role, Table, TableChunk
from penstock.graph.tables.spec import EdgeSpec, FeatureSpec, LabelSpec, NodeSpec
from penstock.processes import ranges
from penstock.progress import Progress

# The feature matrix x: columns side by side as float32, standardised or one-hot where the spec says so.


def feature_fields(specs: list[FeatureSpec]) -> list[Field]:
    """The field x, if any column goes into it, and one field per column kept as codes."""
    fields: list[Field] = [CodeField(spec.column, spec.categories) for spec in specs if spec.categorical == "codes"]
    parts = [
        _OneHot(spec.column, spec.categories) if spec.categorical else _Numbers(spec.column, spec.standardise)
        for spec in specs
        if spec.categorical != "codes"
    ]
    return [FeatureField(parts), *fields] if parts else fields


def standardise_as(fields: list[Field], moments: Mapping[str, Sequence[Any]]) -> list[str]:
    """Use known means and deviations for the columns among the fields; returns those that are still to be learned."""
    matrix = next((field for field in fields if isinstance(field, FeatureField)), None)
    return matrix.standardise_as(moments) if matrix else []


def standardised(fields: list[Field]) -> dict[str, list[float | list[float]]]:
    """[mean, deviation] of every standardised column among the fields."""
    matrix = next((field for field in fields if isinstance(field, FeatureField)), None)
    return matrix.standardised() if matrix else {}


_ROUNDING = 1e-12


class FeatureField(Field):
    """float32 [n, width], every value finite."""

    name = "x"

    def __init__(self, parts: list["_Numbers | _OneHot"]) -> None:
        self._parts = parts
        self.roles = {part.column: part.role for part in parts}
        self.learns = any(part.learns for part in parts)

    def learn(self, chunk: TableChunk) -> None:
        """Words of one-hot columns, mean and deviation of standardised ones."""
        for part in self._parts:
            if part.learns:
                part.learn(chunk)

    def learned(self) -> Any:
        """What each part has recorded."""
        return [part.learned() for part in self._parts]

    def use_learned(self, learned: Any) -> None:
        """Hand each part what another process has recorded for it."""
        for part, each in zip(self._parts, learned, strict=True):
            part.use_learned(each)

    def rows(self, chunk: TableChunk) -> Array:
        """The parts in the order of the spec."""
        blocks = [part.rows(chunk) for part in self._parts]
        out = np.empty((len(chunk), sum(block.shape[1] for block in blocks)), np.float32)
        start = 0
        for part, block in zip(self._parts, blocks, strict=True):
            target = out[:, start : start + block.shape[1]]
            with np.errstate(over="ignore"):
                target[...] = block
            refuse_infinite(target, chunk, part.column)
            start += block.shape[1]
        return out

    @property
    def learned_columns(self) -> list[str]:
        """The columns the first pass needs."""
        return [part.column for part in self._parts if part.learns]

    def standardise_as(self, moments: Mapping[str, Sequence[Any]]) -> list[str]:
        """Use known means and deviations; returns the columns that are still to be learned."""
        for part in self._parts:
            if isinstance(part, _Numbers) and part.column in moments:
                part.use(*moments[part.column])
        self.learns = any(part.learns for part in self._parts)
        return self.learned_columns

    def standardised(self) -> dict[str, list[float | list[float]]]:
        """[mean, deviation] of every standardised column; lists of them where the column holds lists."""
        return {part.column: part.moments() for part in self._parts if isinstance(part, _Numbers) and part.learns}


class _Numbers:
    """A number or a list of numbers, minus its mean and over its deviation when standardised."""

    role: Role = "number"

    def __init__(self, column: str, standardise: bool) -> None:
        self.column, self.learns, self._standardise = column, standardise, standardise
        self._numbers = NumberColumn(column)
        self._count, self._mean, self._squares = 0, np.zeros(1), np.zeros(1)
        self._given: Array | None = None

    def use(self, mean: float | list[float], deviation: float | list[float]) -> None:
        """Standardise with a mean and a deviation that are known."""
        self._mean, self._given, self.learns = np.atleast_1d(mean), np.atleast_1d(deviation), False

    def learn(self, chunk: TableChunk) -> None:
        """Merge a chunk's mean and squared deviations (Chan's rule: no cancellation, whatever the scale)."""
        values = self._read(chunk)
        refuse_infinite(values, chunk, self.column)
        if len(values) == 0:
            return
        count, mean = self._count + len(values), values.mean(axis=0)
        shift = mean - self._mean
        self._squares = (
            self._squares + ((values - mean) ** 2).sum(axis=0) + shift**2 * self._count * len(values) / count
        )
        self._mean = self._mean + shift * len(values) / count
        self._count = count

    def learned(self) -> Any:
        return [self._count, self._mean.tolist(), self._squares.tolist()]

    def use_learned(self, learned: Any) -> None:
        self._count, mean, squares = learned
        self._mean, self._squares = np.array(mean, np.float64), np.array(squares, np.float64)

    def rows(self, chunk: TableChunk) -> Array:
        values = self._read(chunk)
        return (values - self._mean) / self._deviation() if self._standardise else values

    def moments(self) -> list[float | list[float]]:
        mean, deviation = self._mean.tolist(), self._deviation().tolist()
        return [mean[0], deviation[0]] if len(mean) == 1 else [mean, deviation]

    def _read(self, chunk: TableChunk) -> Array:
        values = self._numbers.read(chunk)
        values = values[:, None] if values.ndim == 1 else values
        return values.astype(np.float64, copy=False) if self._standardise else values

    def _deviation(self) -> Array:
        """A constant column has deviation 0, up to rounding, and is only shifted to 0."""
        if self._given is not None:
            return self._given
        deviation: Array = np.sqrt(self._squares / max(1, self._count))
        return np.where(deviation > _ROUNDING * np.abs(self._mean), deviation, 1.0)


class _OneHot:
    """A 1 in the column of the word."""

    role: Role = "text"

    def __init__(self, column: str, categories: list[str] | None) -> None:
        self.column, self._vocabulary = column, Vocabulary(categories)
        self.learns = not self._vocabulary.is_given

    def learn(self, chunk: TableChunk) -> None:
        self._vocabulary.learn(chunk.column(self.column))

    def learned(self) -> Any:
        return self._vocabulary.words

    def use_learned(self, learned: Any) -> None:
        self._vocabulary.use(learned)

    def rows(self, chunk: TableChunk) -> Array:
        codes = self._vocabulary.codes(chunk.column(self.column), chunk, self.column)
        missing = np.flatnonzero(codes < 0)
        if len(missing):
            what = "the word is missing: fill it in or remove the row"
            raise chunk.wrong(missing[0], self.column, what, "missing-data")
        hot = np.zeros((len(codes), len(self._vocabulary.words)), np.float32)
        hot[np.arange(len(codes)), codes] = 1
        return hot


_BLANK_ROWS = 1 << 14


def node_fields(spec: NodeSpec) -> list[Field]:
    """The fields of a node type, the label last."""
    fields = feature_fields(spec.features) + [PlainField(field) for field in spec.fields]
    if spec.label is not None:
        fields.append(_label_field(spec.label))
    return _distinct(fields, f"node type {spec.type}")


def edge_fields(spec: EdgeSpec) -> list[Field]:
    """The fields of an edge type."""
    fields = feature_fields(spec.features) + [PlainField(field) for field in spec.fields]
    if spec.weight is not None:
        fields.append(WeightField(spec.weight))
    if spec.time is not None:
        fields.append(TimeField(spec.time))
    return _distinct(fields, f"edge type {edge_key(spec.type)}")


def roles_of(fields: Iterable[Field]) -> dict[str, Role]:
    """The role in which every column is read; of several, the one that loses least: words, a type,
    unchanged, a number.
    """
    roles: dict[str, Role] = {}
    for field in fields:
        for column, role in field.roles.items():
            roles[column] = max(roles.get(column, role), role, key=_fidelity)
    return roles


def _fidelity(role: Role) -> int:
    return {"number": 0, "any": 1, "text": 3}.get(role, 2) if isinstance(role, str) else 2


def learn_fields(fields: list[Field], table: Table, columns: set[str], progress: Progress) -> Iterator[TableChunk]:
    """The first pass: fields that need it see all chunks; the chunks are passed on."""
    learning = [field for field in fields if field.learns]
    wanted = columns.union(*(field.learned_columns for field in learning))
    for chunk in table.chunks(wanted):
        for field in learning:
            field.learn(chunk)
        yield chunk
        progress.advance(len(chunk))


class FieldWriters(ExitStack):
    """The arrays of some fields, written as the chunks come; leaving it closes their files.

    Those that are `known` were written by another process, and rows can be added once they are opened again.
    """

    def __init__(self, fields: list[Field], folder: Path, known: bool = False) -> None:
        super().__init__()
        self._fields, self._folder = fields, folder
        self._writers: dict[str, ArrayWriter] = {}
        for name in [field.name for field in fields if known]:
            self._writers[name] = ArrayWriter.existing(self._path(name))

    def reopen(self) -> None:
        """Add to files that are complete."""
        for writer in self._writers.values():
            self.enter_context(writer.reopen())

    @property
    def files(self) -> list[ArrayWriter]:
        """The files that were begun."""
        return list(self._writers.values())

    def try_on(self, chunk: TableChunk) -> None:
        """Let a first chunk decide types and widths, and write nothing."""
        for field in self._fields:
            field.rows(chunk)

    def try_on_first(self, table: Table, begin: bool = False) -> None:
        """The same with the first chunk of the whole table, where perhaps a shard is read; `begin` makes the files."""
        shard, table.shard = table.shard, None
        try:
            with closing(table.chunks(set(roles_of(self._fields)) or set(table.roles))) as chunks:
                first = next(chunks)
        finally:
            table.shard = shard
        if begin:
            self.append(first, np.zeros(len(first), np.bool_))
        else:
            self.try_on(first)

    def append(self, chunk: TableChunk, keep: Array | None = None) -> None:
        """The rows of a chunk, or those marked in `keep`."""
        for field in self._fields:
            rows = field.rows(chunk)
            if field.name not in self._writers:
                writer = ArrayWriter(self._path(field.name), rows.dtype, rows.shape[1:])
                self._writers[field.name] = self.enter_context(writer)
            self._writers[field.name].append(rows if keep is None else rows[keep])

    def append_blank(self, count: int) -> None:
        """Add rows for vertices that are in no table."""
        for field in self._fields:
            writer = self._writers[field.name]
            for start, stop in ranges(count, _BLANK_ROWS):
                writer.append(np.full((stop - start, *writer.row_shape), field.fill, writer.dtype))

    def finish(self) -> dict[str, Array]:
        """Complete the files and map them."""
        self.close()
        return {name: open_array(writer.path) for name, writer in self._writers.items()}

    def categories(self) -> dict[str, list[str]]:
        """What the codes of the fields that hold codes mean."""
        return {field.name: field.categories for field in self._fields if field.categories is not None}

    def _path(self, name: str) -> Path:
        return self._folder / f"field.{file_name(name)}.npy"


def _label_field(spec: LabelSpec) -> LabelField:
    if spec.kind == "float":
        return FloatLabel(spec)
    if spec.kind == "class":
        return ClassLabel(spec)
    return MultiLabel(spec) if spec.column is not None else FlagLabel(spec)


def _distinct(fields: list[Field], what: str) -> list[Field]:
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise PenstockError(
                f"Two columns of {what} become the field {name!r}: give one of them another name in 'fields'.",
                code="duplicate",
            )
    return fields


# Split columns: which rows are train, val and test.

NO_SPLIT = -1
_CODES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "": NO_SPLIT}


def fold_codes(chunk: TableChunk, column: str) -> Array:
    """int8 place of each row's split in train, val, test; -1 for none."""
    encoded = pc.dictionary_encode(as_text(chunk.column(column)))
    words = encoded.dictionary.to_pylist()
    codes = np.array([_CODES.get(word.strip().lower(), -2) for word in words] + [NO_SPLIT], np.int8)
    out: Array = codes[encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)]
    wrong = np.flatnonzero(out == -2)
    if len(wrong):
        value = chunk.column(column)[int(wrong[0])].as_py()
        what = f"{value!r} is not a split: use {', '.join(SPLITS)}, or leave it empty for none"
        raise chunk.wrong(wrong[0], column, what, "unknown-name")
    return out
