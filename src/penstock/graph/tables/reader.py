"""A table as a stream of chunks that know where they came from, whatever the files' format."""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.tables.csv_files import csv_batches, csv_looks, csv_names
from penstock.graph.tables.json_lines import json_batches, json_looks, json_names
from penstock.graph.tables.parquet_files import parquet_batches
from penstock.graph.tables.roles import ID_ROLES, Role, csv_types, json_types
from penstock.graph.tables.sources import find_files, format_of
from penstock.graph.tables.spec import EdgeSpec, NodeSpec

_DELIMITERS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True)
class TableChunk:
    """Some rows of one file."""

    batch: pa.RecordBatch
    file: Path
    start: int
    """Rows of the file before these."""
    owners: Array | None = None
    """Where a list column was flattened: the row every entry stands in."""

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def column(self, name: str) -> pa.Array:
        """One column; dictionaries are decoded."""
        column = self.batch.column(name)
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column

    def place(self, row: int, column: str | None = None) -> str:
        """Where a row (or list entry) of this chunk stands, as sentences say it."""
        if self.owners is not None:
            row = self.owners[row]
        where = f"{self.file}, row {self.start + int(row) + 1}"
        return where if column is None else f"{where}, column {column!r}"


class Table:
    """The files of one node or edge type, and the columns wanted from them.

    `roles` may be changed until the first chunk is read.
    """

    def __init__(self, spec: NodeSpec | EdgeSpec, folder: Path, what: str, roles: Mapping[str, Role]) -> None:
        self.what, self.roles, self._allow_empty = what, dict(roles), spec.allow_empty
        self.files = find_files(spec.files, folder, what)
        self._format = format_of(self.files, spec.format)
        self.rows = 0
        """Rows of all files; 0 where only reading would tell."""
        # The head of a Parquet file costs nothing to read; of text, other files wait until their turn.
        for path in self.files if self._format == "parquet" else self.files[:1]:
            with _readable(path, self._format):
                self._check_columns(path)
                if self._format == "parquet":
                    self.rows += pq.read_metadata(path).num_rows

    def chunks(self, columns: Collection[str]) -> Iterator[TableChunk]:
        """All rows in order. The next chunk is read while the last one is worked on."""
        stream = self._stream([name for name in self.roles if name in columns])
        rows = 0
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(next, stream, None)
            while (chunk := pending.result()) is not None:
                pending = pool.submit(next, stream, None)
                rows += len(chunk)
                yield chunk
        if rows == 0 and not self._allow_empty:
            raise self._empty(self.files[0])

    def _stream(self, columns: list[str]) -> Iterator[TableChunk]:
        for path in self.files:
            start = 0
            with _readable(path, self._format):
                self._check_columns(path)
                for batch in self._batches(path, columns):
                    yield TableChunk(batch, path, start)
                    start += batch.num_rows
                if start == 0:
                    # An empty chunk still tells the types and widths of its columns.
                    yield TableChunk(self._no_rows(path, columns), path, 0)

    def _batches(self, path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self._format == "parquet":
            return parquet_batches(path, columns, [name for name in columns if self.roles[name] in ID_ROLES])
        types = {name: self._types[name] for name in columns}
        if self._format == "json":
            return json_batches(path, types)
        return csv_batches(path, _DELIMITERS[self._format], types)

    def _no_rows(self, path: Path, columns: list[str]) -> pa.RecordBatch:
        types = self._types
        if self._format == "parquet":
            types = {field.name: field.type for field in pq.read_schema(path)}
        return pa.RecordBatch.from_pylist([], schema=pa.schema([(name, types[name]) for name in columns]))

    def csv_looks(self, columns: Collection[str]) -> dict[str, pa.DataType]:
        """What columns of a text without types of its own look like; nothing for other formats."""
        return self._looks(list(columns)) if self._format in _DELIMITERS else {}

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        """Of text: the type of every column, by what it is for and what it looks like."""
        if self._format == "parquet":
            return {}
        looks = self._looks(list(self.roles))
        return json_types(self.roles, looks) if self._format == "json" else csv_types(self.roles, looks)

    def _looks(self, columns: list[str]) -> dict[str, pa.DataType]:
        """As in the first file that has values; a file with nothing but a header tells nothing."""
        looks: dict[str, pa.DataType] = dict.fromkeys(columns, pa.null())
        for path in self.files:
            with _readable(path, self._format):
                self._check_columns(path)
                unknown = [name for name, kind in looks.items() if pa.types.is_null(kind)]
                if self._format == "json":
                    looks |= json_looks(path, unknown)
                else:
                    looks |= csv_looks(path, _DELIMITERS[self._format], unknown)
            if not any(pa.types.is_null(kind) for kind in looks.values()):
                break
        return looks

    def _check_columns(self, path: Path) -> None:
        names = self._names(path)
        if not names:
            raise self._empty(path)
        for name in self.roles:
            if name not in names:
                raise PenstockError(
                    f"{path} has no column {name!r} for {self.what}: its columns are {', '.join(names) or 'none'}.",
                    code="field-missing",
                )
            if names.count(name) > 1:
                raise PenstockError(
                    f"{path} has {names.count(name)} columns named {name!r}: rename all but one.", code="duplicate"
                )

    def _empty(self, path: Path) -> PenstockError:
        return PenstockError(
            f"{path} has no rows: {self.what} needs at least one; to allow none, set 'allow_empty: true'.",
            code="missing-data",
        )

    def _names(self, path: Path) -> list[str]:
        if self._format == "parquet":
            names: list[str] = pq.read_schema(path).names
            return names
        return json_names(path) if self._format == "json" else csv_names(path, _DELIMITERS[self._format])


@contextmanager
def _readable(path: Path, form: str) -> Iterator[None]:
    """Whatever pyarrow or the disk says, as one sentence with the file in it."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split("\n")[0].rstrip(".").split())
        raise PenstockError(
            f"{path} cannot be read as {form} ({problem}): the file is damaged or has another format.",
            code="damaged-file",
        ) from None
