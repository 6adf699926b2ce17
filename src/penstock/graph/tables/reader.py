"""A table as a stream of chunks that know where they came from, whatever the files' format."""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.tables.sources import find_files, format_of
from penstock.graph.tables.spec import EdgeSpec, NodeSpec
from penstock.graph.tables.text import Role, settle_types, text_batches, text_names

_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 1 << 17
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Chunk:
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
    """The files of one node or edge type, and the columns wanted from them."""

    def __init__(self, spec: NodeSpec | EdgeSpec, folder: Path, what: str, roles: Mapping[str, Role]) -> None:
        self.what, self.roles, self._allow_empty = what, dict(roles), spec.allow_empty
        self.files = find_files(spec.files, folder, what)
        self._format = format_of(self.files, spec.format)
        self.rows = 0
        """Rows of all files, 0 where only reading would tell."""
        with _readable(self.files[0], self._format):
            self._types = {}
            if self._format != "parquet":
                self._check_columns(self.files[0], text_names(self.files[0], self._format))
                self._types = settle_types(self.files[0], self._format, self.roles)
                return
        for path in self.files:
            with _readable(path, self._format):
                file = pq.ParquetFile(path)
            self._check_columns(path, file.schema_arrow.names)
            self.rows += file.metadata.num_rows

    def chunks(self, columns: Collection[str]) -> Iterator[Chunk]:
        """All rows in order. The next chunk is read while the last one is worked on."""
        stream = self._stream(columns)
        rows = 0
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(next, stream, None)
            while (chunk := pending.result()) is not None:
                pending = pool.submit(next, stream, None)
                rows += len(chunk)
                yield chunk
        if rows == 0 and not self._allow_empty:
            raise PenstockError(
                f"{self.files[0]} has no rows: {self.what} needs at least one, or 'allow_empty: true'."
            )

    def _stream(self, columns: Collection[str]) -> Iterator[Chunk]:
        for path in self.files:
            start = 0
            with _readable(path, self._format):
                for batch in self._batches(path, columns):
                    yield Chunk(batch, path, start)
                    start += batch.num_rows
                if start == 0:
                    # An empty chunk still tells the types and widths of its columns.
                    yield Chunk(self._no_rows(path, columns), path, 0)

    def _batches(self, path: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        wanted = [name for name in self.roles if name in columns]
        if self._format == "parquet":
            ids = [name for name in wanted if self.roles[name] in ("id", "integer id", "string id")]
            yield from _parquet_batches(path, wanted, ids)
            return
        if path != self.files[0]:
            self._check_columns(path, text_names(path, self._format))
        yield from text_batches(path, self._format, {name: self._types[name] for name in wanted})

    def _no_rows(self, path: Path, columns: Collection[str]) -> pa.RecordBatch:
        types = self._types
        if self._format == "parquet":
            types = {field.name: field.type for field in pq.read_schema(path)}
        return pa.RecordBatch.from_pylist([], schema=pa.schema([(name, types[name]) for name in columns]))

    def _check_columns(self, path: Path, names: list[str]) -> None:
        for name in self.roles:
            if name not in names:
                raise PenstockError(
                    f"{path} has no column {name!r} for {self.what}: its columns are {', '.join(names)}."
                )
            if names.count(name) > 1:
                raise PenstockError(
                    f"{path} has {names.count(name)} columns named {name!r}: rename all but one."
                )


def _parquet_batches(path: Path, columns: list[str], ids: list[str]) -> Iterator[pa.RecordBatch]:
    metadata = pq.read_metadata(path)
    encoded = [name for name in ids if _is_dictionary_encoded(metadata, name)]
    # Left alone, pyarrow loads the raw bytes of the whole file before the first batch.
    with pq.ParquetFile(path, read_dictionary=encoded, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        yield from file.iter_batches(_batch_rows(metadata, columns), columns=columns)


def _batch_rows(metadata: pq.FileMetaData, columns: list[str]) -> int:
    """Rows that make a batch of the usual size, by what the file says its columns take."""
    size = sum(int(column.total_uncompressed_size) for column in _column_chunks(metadata, columns))
    return max(256, min(_BATCH_ROWS, _BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


def _is_dictionary_encoded(metadata: pq.FileMetaData, name: str) -> bool:
    """Whether strings can be looked up once per distinct one instead of once per row.

    A string stored plainly takes at least its 4 bytes of length: a column that takes less is mostly codes.
    """
    chunks = list(_column_chunks(metadata, [name]))
    strings = all(chunk.physical_type == "BYTE_ARRAY" for chunk in chunks)
    return strings and sum(c.total_uncompressed_size for c in chunks) < 4 * sum(c.num_values for c in chunks)


def _column_chunks(metadata: pq.FileMetaData, names: list[str]) -> Iterator[pq.ColumnChunkMetaData]:
    for group in range(metadata.num_row_groups):
        for position in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(position)
            if chunk.path_in_schema in names or chunk.path_in_schema.split(".")[0] in names:
                yield chunk


@contextmanager
def _readable(path: Path, form: str) -> Iterator[None]:
    """Whatever pyarrow or the disk says, as one sentence with the file in it."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        problem = str(error).split("\n")[0].rstrip(".")
        raise PenstockError(
            f"{path} cannot be read as {form} ({problem}): the file is damaged or of another format."
        ) from None
