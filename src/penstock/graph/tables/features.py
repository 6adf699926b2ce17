"""The feature matrix x: columns side by side as float32, standardised or one-hot where the spec says so."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.tables.fields import CodeField, Field, NumberColumn, Vocabulary, refuse_infinite
from penstock.graph.tables.reader import Role, TableChunk
from penstock.graph.tables.spec import FeatureSpec


def feature_fields(specs: list[FeatureSpec]) -> list[Field]:
    """The field x, if any column goes into it, and one field per column kept as codes."""
    fields: list[Field] = [CodeField(spec.column, spec.categories) for spec in specs if spec.categorical == "codes"]
    parts = [
        _OneHot(spec.column, spec.categories) if spec.categorical else _Numbers(spec.column, spec.standardise)
        for spec in specs
        if spec.categorical != "codes"
    ]
    return [FeatureField(parts), *fields] if parts else fields


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

    def standardised(self) -> dict[str, list[float | list[float]]]:
        """[mean, deviation] of every standardised column; lists of them where the column holds lists."""
        return {part.column: part.moments() for part in self._parts if isinstance(part, _Numbers) and part.learns}


class _Numbers:
    """A number or a list of numbers, minus its mean and over its deviation when standardised."""

    role: Role = "number"

    def __init__(self, column: str, standardise: bool) -> None:
        self.column, self.learns = column, standardise
        self._numbers = NumberColumn(column)
        self._count, self._mean, self._squares = 0, np.zeros(1), np.zeros(1)

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

    def rows(self, chunk: TableChunk) -> Array:
        values = self._read(chunk)
        return (values - self._mean) / self._deviation() if self.learns else values

    def moments(self) -> list[float | list[float]]:
        mean, deviation = self._mean.tolist(), self._deviation().tolist()
        return [mean[0], deviation[0]] if len(mean) == 1 else [mean, deviation]

    def _read(self, chunk: TableChunk) -> Array:
        values = self._numbers.read(chunk)
        values = values[:, None] if values.ndim == 1 else values
        return values.astype(np.float64, copy=False) if self.learns else values

    def _deviation(self) -> Array:
        """A constant column has deviation 0, up to rounding, and is only shifted to 0."""
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

    def rows(self, chunk: TableChunk) -> Array:
        codes = self._vocabulary.codes(chunk.column(self.column), chunk, self.column)
        missing = np.flatnonzero(codes < 0)
        if len(missing):
            what = "the word is missing: fill it in or remove the row"
            raise chunk.wrong(missing[0], self.column, what, "missing-data")
        hot = np.zeros((len(codes), len(self._vocabulary.words)), np.float32)
        hot[np.arange(len(codes)), codes] = 1
        return hot
