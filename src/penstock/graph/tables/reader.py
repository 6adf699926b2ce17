"""A table as a stream of chunks that know their origin, whatever the files' format."""

import io
import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
from pyarrow import types as kinds

from penstock.errors import Code, PenstockError
from penstock.graph.addresses import CheckedStream, DataFile, find_files, format_of
from penstock.graph.arrays import Array
from penstock.graph.tables.spec import EdgeSpec, NodeSpec

# CSV and TSV as a stream of record batches.

_BLOCK_BYTES = 8 << 20


def csv_names(file: DataFile, delimiter: str) -> list[str]:
    """The columns of a file."""
    names: list[str] = _first_block(file, delimiter).names
    return names


def csv_looks(file: DataFile, delimiter: str, columns: list[str]) -> dict[str, pa.DataType]:
    """The apparent types of columns in the first block, or later where they are empty there."""
    found = _first_block(file, delimiter)
    looks = {name: found.field(name).type for name in columns}
    return {
        name: _csv_first_value_type(file, delimiter, name) if pa.types.is_null(kind) else kind
        for name, kind in looks.items()
    }


def csv_batches(file: DataFile, delimiter: str, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some of its columns, in blocks."""
    try:
        with file.text() as text:
            yield from _open(text, delimiter, types)
            text.check()
    except pa.ArrowInvalid:
        raise PenstockError(_csv_sentence(file, delimiter, types), code="damaged-file") from None


def _open(text: CheckedStream, delimiter: str, types: Mapping[str, pa.DataType] | None, threads: bool = True) -> Any:
    """A reader of batches. No types: all columns, as they look in the first block."""
    convert = pacsv.ConvertOptions(
        column_types=types,
        include_columns=list(types) if types else None,
        # Only an empty value is null: NA is a country and "null" somebody's name.
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return pacsv.open_csv(
        text.stream,
        pacsv.ReadOptions(use_threads=threads, block_size=_BLOCK_BYTES),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert,
    )


def _first_block(file: DataFile, delimiter: str) -> pa.Schema:
    try:
        with file.text() as text, _open(text, delimiter, None) as reader:
            return reader.schema
    except pa.ArrowInvalid:
        raise PenstockError(_csv_sentence(file, delimiter, None), code="damaged-file") from None


def _csv_first_value_type(file: DataFile, delimiter: str, column: str) -> pa.DataType:
    for batch in csv_batches(file, delimiter, {column: pa.string()}):
        words = batch.column(0).drop_null()
        if len(words):
            return _type_of(words[0])
    return pa.null()


def _type_of(word: pa.Scalar) -> pa.DataType:
    for candidate in (pa.int64(), pa.float64(), pa.timestamp("s")):
        try:
            word.cast(candidate)
        except pa.ArrowInvalid:
            continue
        return candidate
    return pa.string()


def _csv_sentence(file: DataFile, delimiter: str, types: Mapping[str, pa.DataType] | None) -> str:
    """The error in a file, found by reading it again on one thread: only then does pyarrow name the row."""
    problem = ""
    try:
        with file.text() as text:
            for _ in _open(text, delimiter, types, threads=False):
                pass
    except pa.ArrowInvalid as error:
        problem = str(error).split("\n")[0]
    row = re.search(r"Row #(\d+)", problem)
    place = f"{file}, row {int(row[1]) - 1}" if row else str(file)
    value = re.search(r"column #(\d+):.* error to (\w+): invalid value '(.*)'", problem)
    if value:
        column = csv_names(file, delimiter)[int(value[1])]
        hint = "correct the value, or what the spec says of the column"
        return f"{place}, column {column!r}: {value[3]!r} is not {_WANTED.get(value[2], value[2])}: {hint}."
    problem = re.sub(r"^In CSV column #\d+: |CSV \w+ error( to \w+)?: |Row #\d+: ", "", problem)
    return f"{place}: {problem}: the file is damaged or has another format; correct it."


_WANTED = {"double": "a number", "float": "a number", "int64": "an integer"}


# JSON lines as a stream of record batches.

_HEAD_LINES = 1000


def json_names(file: DataFile) -> list[str]:
    """The columns that the first lines of a file mention."""
    return list(dict.fromkeys(name for row in islice(_rows(file), _HEAD_LINES) for name in row))


def json_looks(file: DataFile, columns: list[str]) -> dict[str, pa.DataType]:
    """The apparent types of columns in the first lines, or later where they are empty there.

    Only these columns are read: others may hold anything.
    """
    rows = [{name: row.get(name) for name in columns} for row in islice(_rows(file), _HEAD_LINES)]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    try:
        schema = pajson.read_json(io.BytesIO(lines), pajson.ReadOptions(block_size=len(lines) + 1)).schema
    except pa.ArrowInvalid as error:
        raise PenstockError(_json_sentence(file, error, 0), code="damaged-file") from None
    looks = {field.name: field.type for field in schema}
    return {
        name: _json_first_value_type(file, name) if pa.types.is_null(kind) else kind for name, kind in looks.items()
    }


def json_batches(file: DataFile, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some of its columns, in blocks."""
    rows = 0
    try:
        with file.text() as text:
            reader = pajson.open_json(
                text.stream,
                pajson.ReadOptions(block_size=_BLOCK_BYTES),
                pajson.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"),
            )
            for batch in reader:
                yield batch
                rows += len(batch)
            text.check()
    except pa.ArrowInvalid as error:
        raise PenstockError(_json_sentence(file, error, rows), code="damaged-file") from None


def _rows(file: DataFile) -> Iterator[dict[str, Any]]:
    with file.text() as text:
        lines = (line for line in io.TextIOWrapper(text.stream, "utf-8") if line.strip())
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise PenstockError(
                    f"{file}, row {number}: not JSON ({error}): correct that line.", code="damaged-file"
                ) from None
            if not isinstance(row, dict):
                raise PenstockError(
                    f"{file}, row {number}: not an object of columns and values: correct that line.",
                    code="damaged-file",
                )
            yield row


def _json_first_value_type(file: DataFile, column: str) -> pa.DataType:
    values = (row.get(column) for row in _rows(file))
    return pa.array([next((value for value in values if value is not None), None)]).type


def _json_sentence(file: DataFile, error: Exception, rows_before: int) -> str:
    problem = str(error).split("\n")[0].removeprefix("JSON parse error: ").rstrip(".")
    row = re.search(r" in row (\d+)$", problem)
    if not row:
        return f"{file} cannot be read as json ({problem}): it must hold one object a line."
    problem = re.sub(r"Column\(/(.*?)\)", r"column '\1'", problem[: row.start()])
    return f"{file}, row {rows_before + int(row[1]) + 1}: {problem.rstrip('.')}: correct that line."


# Parquet files as a stream of record batches.

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 17
_BUFFER_BYTES = 1 << 20


def parquet_batches(
    source: pa.NativeFile, metadata: pq.FileMetaData, columns: list[str], ids: list[str], first_group: int = 0
) -> Iterator[pa.RecordBatch]:
    """The rows of a file from a row group on, some of its columns. `ids` stay dictionary-encoded where the file has
    them so.
    """
    encoded = [name for name in ids if _is_dictionary_encoded(metadata, name)]
    # By default pyarrow loads the raw bytes of the whole file before the first batch.
    options: dict[str, Any] = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES, "metadata": metadata}
    with pq.ParquetFile(source, read_dictionary=encoded, **options) as file:
        groups = range(first_group, metadata.num_row_groups)
        yield from file.iter_batches(_batch_rows(metadata, columns), row_groups=list(groups), columns=columns)


def _group_of(metadata: pq.FileMetaData, row: int) -> tuple[int, int]:
    """The row group that a row is in, and the rows before it; behind the last row, the last group."""
    before = 0
    for group in range(metadata.num_row_groups):
        rows = int(metadata.row_group(group).num_rows)
        if row < before + rows or group == metadata.num_row_groups - 1:
            return group, before
        before += rows
    return 0, 0


def _batch_rows(metadata: pq.FileMetaData, columns: list[str]) -> int:
    """Rows that make a batch of the usual size, by what the file says its columns take."""
    size = sum(int(chunk.total_uncompressed_size) for chunk in _column_chunks(metadata, columns))
    return max(256, min(_BATCH_ROWS, _BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


def _is_dictionary_encoded(metadata: pq.FileMetaData, name: str) -> bool:
    """Whether strings can be looked up once per distinct one instead of once per row.

    A string stored plainly takes at least its 4 bytes of length: a column that takes less is mostly codes.
    """
    chunks = list(_column_chunks(metadata, [name]))
    strings = all(chunk.physical_type == "BYTE_ARRAY" for chunk in chunks)
    values = sum(int(chunk.num_values) for chunk in chunks)
    return strings and sum(int(chunk.total_uncompressed_size) for chunk in chunks) < 4 * values


def _column_chunks(metadata: pq.FileMetaData, names: list[str]) -> Iterator[pq.ColumnChunkMetaData]:
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for position in range(metadata.num_columns):
            chunk = row_group.column(position)
            # A list is stored as leaves below its name.
            if chunk.path_in_schema in names or chunk.path_in_schema.split(".")[0] in names:
                yield chunk


_HEADERS_AT_ONCE = 16
"""Headers that are read at one time: on an object store each takes as long as two answers."""


def _header(file: DataFile) -> tuple[list[str], int]:
    """The columns of a file, and its rows."""
    with file.readable("parquet"), file.open() as source:
        metadata = pq.read_metadata(source)
        return metadata.schema.to_arrow_schema().names, metadata.num_rows


# The roles of columns, and the types that text is therefore read as. By default pyarrow guesses types from the first
# block and fails on a later value that does not fit its guess.

Role: TypeAlias = Any
"""id, integer id, string id, number, text, any; or the Arrow type to read the column as."""

ID_ROLES = ("id", "integer id", "string id")


def _csv_type(role: Role, looks: pa.DataType) -> pa.DataType:
    """The type of a column of a text without types of its own."""
    if role == "number":
        return pa.float64()
    if role in ("text", "string id"):
        return pa.string()
    if role == "integer id":
        return pa.int64()
    if role == "id":
        return pa.int64() if kinds.is_integer(looks) else pa.string()
    return looks if role == "any" else _readable_type(role)


def _json_type(role: Role, looks: pa.DataType) -> pa.DataType:
    """JSON distinguishes numbers and strings itself: only their width is decided here."""
    if kinds.is_null(looks):
        return _csv_type(role, looks)
    if kinds.is_timestamp(looks) and role in ("text", *ID_ROLES):
        # pyarrow would take words that look like dates for dates.
        return pa.string()
    number = pa.float64() if role == "number" else _readable_type(role) if isinstance(role, pa.DataType) else None
    if number is None or not _is_numeric(number):
        return looks
    if kinds.is_list(looks):
        return pa.list_(number) if _is_numeric(looks.value_type) else looks
    return number if _is_numeric(looks) else looks


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_null(kind))


def _readable_type(kind: pa.DataType) -> pa.DataType:
    """A type that both readers support: half floats become float32, which is exact."""
    return pa.float32() if kinds.is_float16(kind) else kind


@contextmanager
def readable_columns(spec_path: Path) -> Iterator[None]:
    """Errors of Arrow about a table's columns become a sentence."""
    try:
        yield
    except pa.ArrowException as error:
        problem = str(error).split("\n")[0].rstrip(".")
        raise PenstockError(
            f"A column of {spec_path}'s tables cannot be read as asked ({problem}).", code="wrong-type"
        ) from error


_SAMPLE_BYTES = 4 << 20
_DELIMITERS = {"csv": ",", "tsv": "\t"}


Position: TypeAlias = tuple[int, int]
"""A place in a table: the number of a file, and rows of it."""

Shard: TypeAlias = tuple[Position, Position]
"""Consecutive rows of a table: those from a position to before another."""


def _after(before: int, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Each batch after the number of rows before it."""
    for batch in batches:
        yield before, batch
        before += batch.num_rows


@dataclass(frozen=True)
class TableChunk:
    """Some rows of one file."""

    batch: pa.RecordBatch
    file: DataFile
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
        """The place of a row (or list entry) of this chunk, for errors."""
        if self.owners is not None:
            row = self.owners[row]
        where = f"{self.file}, row {self.start + int(row) + 1}"
        return where if column is None else f"{where}, column {column!r}"

    def wrong(self, row: int, column: str, what: str, code: Code) -> PenstockError:
        """The error about a value: where it is, and `what` is wrong with it."""
        return PenstockError(f"{self.place(row, column)}: {what}.", code=code)


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
        self.shard: Shard | None = None
        """The rows that `chunks` reads; None: all."""
        self._rows_of: list[int] = []
        # The header of a Parquet file is cheap to read; text files are opened when they are needed.
        if self._format != "parquet":
            with self.files[0].readable(self._format):
                self._check_columns(self.files[0], self._names(self.files[0]))
            return
        with ThreadPoolExecutor(min(len(self.files), _HEADERS_AT_ONCE)) as pool:
            for file, (names, rows) in zip(self.files, pool.map(_header, self.files), strict=True):
                self._check_columns(file, names)
                self._rows_of.append(rows)
        self.rows = sum(self._rows_of)

    def chunks(self, columns: Collection[str], after: Position = (0, 0)) -> Generator[TableChunk, None, None]:
        """All rows in order, or those after a position. The next chunk is read while the last one is processed."""
        first, until = self.shard or ((0, 0), (len(self.files), 0))
        stream = self._stream([name for name in self.roles if name in columns], max(first, after), until)
        rows = 0
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(next, stream, None)
            while (chunk := pending.result()) is not None:
                pending = pool.submit(next, stream, None)
                rows += len(chunk)
                yield chunk
        if self.shard is None and after == (0, 0):
            self.check_rows(rows)

    def check_rows(self, rows: int) -> None:
        """Refuse a table that has no rows, unless it may be empty."""
        if rows == 0 and not self._allow_empty:
            raise self._empty(self.files[0])

    def shards(self, rows: int) -> list[Shard]:
        """Shards of at least so many rows, of whole files or row groups of Parquet files; the last may have fewer."""
        found: list[Shard] = []
        begin, held = (0, 0), 0
        for number, file in enumerate(self.files):
            for stop, count in self._pieces(number, file, rows):
                held += count
                if held >= rows:
                    found.append((begin, stop))
                    begin, held = stop, 0
        end = (len(self.files), 0)
        return found if begin == end else [*found, (begin, end)]

    def _pieces(self, number: int, file: DataFile, rows: int) -> Iterator[tuple[Position, int]]:
        """The rows of a file that are best read by one process: where they end, and how many they are."""
        if self._format != "parquet":
            # Only reading would tell how many a text has.
            yield (number + 1, 0), rows
            return
        if self._rows_of[number] <= rows:
            yield (number + 1, 0), self._rows_of[number]
            return
        with file.readable(self._format), file.open() as source:
            metadata = pq.read_metadata(source)
        end, last = 0, metadata.num_row_groups - 1
        for group in range(metadata.num_row_groups):
            count = int(metadata.row_group(group).num_rows)
            end += count
            yield (number + 1, 0) if group == last else (number, end), count

    def position(self, chunk: TableChunk) -> Position:
        """The position behind a chunk."""
        return self.files.index(chunk.file), chunk.start + len(chunk)

    def expected_rows(self) -> int:
        """The rows of all files; of text, as many as its size and the rows at its beginning suggest."""
        if self._format == "parquet":
            return self.rows
        first = max(self.files, key=lambda file: file.size)
        with first.readable(self._format), first.text() as text:
            content = text.stream.read(_SAMPLE_BYTES)
            used = text.position()
        lines: int = content.count(b"\n") + (len(content) < _SAMPLE_BYTES and not content.endswith(b"\n"))
        rows: int = round(sum(file.size for file in self.files) * lines / max(1, used))
        return max(0, rows - (0 if self._format == "json" else len(self.files)))

    def _stream(self, columns: list[str], after: Position, until: Position) -> Iterator[TableChunk]:
        for number, file in enumerate(self.files[after[0] : until[0] + (until[1] > 0)], after[0]):
            skipped = after[1] if number == after[0] else 0
            stop = until[1] if number == until[0] else None
            start = 0
            with file.readable(self._format):
                for start, batch in self._batches(file, columns, skipped):
                    if stop is not None:
                        batch = batch.slice(0, stop - start)
                    if start + batch.num_rows > skipped:
                        yield TableChunk(batch.slice(max(0, skipped - start)), file, max(start, skipped))
                    start += batch.num_rows
                    if start == stop:
                        break
                if start == 0 and not skipped:
                    # An empty chunk still gives the types and widths of its columns.
                    yield TableChunk(self._no_rows(file, columns), file, 0)

    def _batches(self, file: DataFile, columns: list[str], skipped: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of a file, each after the number of rows before it. Some rows that are skipped may be left out."""
        if self._format == "parquet":
            with file.open() as source:
                metadata = pq.read_metadata(source)
                self._check_columns(file, metadata.schema.to_arrow_schema().names)
                ids = [name for name in columns if self.roles[name] in ID_ROLES]
                group, before = _group_of(metadata, skipped)
                yield from _after(before, parquet_batches(source, metadata, columns, ids, group))
            return
        self._check_columns(file, self._names(file))
        types = {name: self._types[name] for name in columns}
        if self._format == "json":
            yield from _after(0, json_batches(file, types))
        else:
            yield from _after(0, csv_batches(file, _DELIMITERS[self._format], types))

    def _no_rows(self, file: DataFile, columns: list[str]) -> pa.RecordBatch:
        types = self._types
        if self._format == "parquet":
            with file.open() as source:
                types = {field.name: field.type for field in pq.read_schema(source)}
        return pa.RecordBatch.from_pylist([], schema=pa.schema([(name, types[name]) for name in columns]))

    def csv_looks(self, columns: Collection[str]) -> dict[str, pa.DataType]:
        """What columns of a text without types of its own look like; nothing for other formats."""
        return self._looks(list(columns)) if self._format in _DELIMITERS else {}

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        """The type of every column of a text file, by its role and its apparent type."""
        if self._format == "parquet":
            return {}
        looks = self._looks(list(self.roles))
        type_of = _json_type if self._format == "json" else _csv_type
        return {name: type_of(role, looks[name]) for name, role in self.roles.items()}

    def _looks(self, columns: list[str]) -> dict[str, pa.DataType]:
        """The apparent types in the first file that has values; a file with only a header gives none."""
        looks: dict[str, pa.DataType] = dict.fromkeys(columns, pa.null())
        for file in self.files:
            with file.readable(self._format):
                self._check_columns(file, self._names(file))
                unknown = [name for name, kind in looks.items() if pa.types.is_null(kind)]
                if self._format == "json":
                    looks |= json_looks(file, unknown)
                else:
                    looks |= csv_looks(file, _DELIMITERS[self._format], unknown)
            if not any(pa.types.is_null(kind) for kind in looks.values()):
                break
        return looks

    def _check_columns(self, file: DataFile, names: list[str]) -> None:
        if not names:
            raise self._empty(file)
        for name in self.roles:
            if name not in names:
                raise PenstockError(
                    f"{file} has no column {name!r} for {self.what}: its columns are {', '.join(names) or 'none'}.",
                    code="field-missing",
                )
            if names.count(name) > 1:
                raise PenstockError(
                    f"{file} has {names.count(name)} columns named {name!r}: rename all but one.", code="duplicate"
                )

    def _empty(self, file: DataFile) -> PenstockError:
        return PenstockError(
            f"{file} has no rows: {self.what} needs at least one; to allow none, set 'allow_empty: true'.",
            code="missing-data",
        )

    def _names(self, file: DataFile) -> list[str]:
        return json_names(file) if self._format == "json" else csv_names(file, _DELIMITERS[self._format])
