"""From a spec to the fields its table gives, and from fields to arrays on disk."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, open_array
from penstock.graph.blocks import ranges
from penstock.graph.data import SPLITS
from penstock.graph.schema import edge_key, file_name
from penstock.graph.tables.features import feature_fields
from penstock.graph.tables.fields import Field, PlainField, TimeField, WeightField, as_text
from penstock.graph.tables.labels import ClassLabel, FlagLabel, FloatLabel, LabelField, MultiLabel
from penstock.graph.tables.reader import Role, Table, TableChunk
from penstock.graph.tables.spec import EdgeSpec, LabelSpec, NodeSpec
from penstock.progress import Progress

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
    """The arrays of some fields, written as the chunks come; leaving it closes their files."""

    def __init__(self, fields: list[Field], folder: Path) -> None:
        super().__init__()
        self._fields, self._folder = fields, folder
        self._writers: dict[str, ArrayWriter] = {}

    def append(self, chunk: TableChunk, keep: Array | None = None) -> None:
        """The rows of a chunk, or those marked in `keep`."""
        for field in self._fields:
            rows = field.rows(chunk)
            if field.name not in self._writers:
                path = self._folder / f"field.{file_name(field.name)}.npy"
                writer = ArrayWriter(path, rows.dtype, rows.shape[1:])
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
