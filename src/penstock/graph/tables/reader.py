"""A table as a stream of chunks that know their origin, whatever the files' format."""

import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
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
from penstock.graph.arrays import Array
from penstock.graph.tables.spec import EdgeSpec, Format, NodeSpec

# CSV and TSV as a stream of record batches.

_BLOCK_BYTES = 8 << 20


def csv_names(path: Path, delimiter: str) -> list[str]:
    """The columns of a file."""
    names: list[str] = _first_block(path, delimiter).names
    return names


def csv_looks(path: Path, delimiter: str, columns: list[str]) -> dict[str, pa.DataType]:
    """The apparent types of columns in the first block, or later where they are empty there."""
    found = _first_block(path, delimiter)
    looks = {name: found.field(name).type for name in columns}
    return {
        name: _csv_first_value_type(path, delimiter, name) if pa.types.is_null(kind) else kind
        for name, kind in looks.items()
    }


def csv_batches(path: Path, delimiter: str, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some of its columns, in blocks."""
    try:
        yield from _open(path, delimiter, types)
    except pa.ArrowInvalid:
        raise PenstockError(_csv_sentence(path, delimiter, types), code="damaged-file") from None


def _open(path: Path, delimiter: str, types: Mapping[str, pa.DataType] | None, threads: bool = True) -> Any:
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
        pa.input_stream(str(path), compression="detect"),
        pacsv.ReadOptions(use_threads=threads, block_size=_BLOCK_BYTES),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert,
    )


def _first_block(path: Path, delimiter: str) -> pa.Schema:
    try:
        return _open(path, delimiter, None).schema
    except pa.ArrowInvalid:
        raise PenstockError(_csv_sentence(path, delimiter, None), code="damaged-file") from None


def _csv_first_value_type(path: Path, delimiter: str, column: str) -> pa.DataType:
    for batch in csv_batches(path, delimiter, {column: pa.string()}):
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


def _csv_sentence(path: Path, delimiter: str, types: Mapping[str, pa.DataType] | None) -> str:
    """The error in a file, found by reading it again on one thread: only then does pyarrow name the row."""
    problem = ""
    try:
        for _ in _open(path, delimiter, types, threads=False):
            pass
    except pa.ArrowInvalid as error:
        problem = str(error).split("\n")[0]
    row = re.search(r"Row #(\d+)", problem)
    place = f"{path}, row {int(row[1]) - 1}" if row else str(path)
    value = re.search(r"column #(\d+):.* error to (\w+): invalid value '(.*)'", problem)
    if value:
        column = csv_names(path, delimiter)[int(value[1])]
        hint = "correct the value, or what the spec says of the column"
        return f"{place}, column {column!r}: {value[3]!r} is not {_WANTED.get(value[2], value[2])}: {hint}."
    problem = re.sub(r"^In CSV column #\d+: |CSV \w+ error( to \w+)?: |Row #\d+: ", "", problem)
    return f"{place}: {problem}: the file is damaged or has another format; correct it."


_WANTED = {"double": "a number", "float": "a number", "int64": "an integer"}


# JSON lines as a stream of record batches.

_HEAD_LINES = 1000


def json_names(path: Path) -> list[str]:
    """The columns that the first lines of a file mention."""
    return list(dict.fromkeys(name for row in islice(_rows(path), _HEAD_LINES) for name in row))


def json_looks(path: Path, columns: list[str]) -> dict[str, pa.DataType]:
    """The apparent types of columns in the first lines, or later where they are empty there.

    Only these columns are read: others may hold anything.
    """
    rows = [{name: row.get(name) for name in columns} for row in islice(_rows(path), _HEAD_LINES)]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    try:
        schema = pajson.read_json(io.BytesIO(lines), pajson.ReadOptions(block_size=len(lines) + 1)).schema
    except pa.ArrowInvalid as error:
        raise PenstockError(_json_sentence(path, error, 0), code="damaged-file") from None
    looks = {field.name: field.type for field in schema}
    return {
        name: _json_first_value_type(path, name) if pa.types.is_null(kind) else kind for name, kind in looks.items()
    }


def json_batches(path: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some of its columns, in blocks."""
    rows = 0
    try:
        reader = pajson.open_json(
            pa.input_stream(str(path), compression="detect"),
            pajson.ReadOptions(block_size=_BLOCK_BYTES),
            pajson.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"),
        )
        for batch in reader:
            yield batch
            rows += len(batch)
    except pa.ArrowInvalid as error:
        raise PenstockError(_json_sentence(path, error, rows), code="damaged-file") from None


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with pa.input_stream(str(path), compression="detect") as stream:
        lines = (line for line in io.TextIOWrapper(stream, "utf-8") if line.strip())
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise PenstockError(
                    f"{path}, row {number}: not JSON ({error}): correct that line.", code="damaged-file"
                ) from None
            if not isinstance(row, dict):
                raise PenstockError(
                    f"{path}, row {number}: not an object of columns and values: correct that line.",
                    code="damaged-file",
                )
            yield row


def _json_first_value_type(path: Path, column: str) -> pa.DataType:
    values = (row.get(column) for row in _rows(path))
    return pa.array([next((value for value in values if value is not None), None)]).type


def _json_sentence(path: Path, error: Exception, rows_before: int) -> str:
    problem = str(error).split("\n")[0].removeprefix("JSON parse error: ").rstrip(".")
    row = re.search(r" in row (\d+)$", problem)
    if not row:
        return f"{path} cannot be read as json ({problem}): it must hold one object a line."
    problem = re.sub(r"Column\(/(.*?)\)", r"column '\1'", problem[: row.start()])
    return f"{path}, row {rows_before + int(row[1]) + 1}: {problem.rstrip('.')}: correct that line."


# Parquet files as a stream of record batches.

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 17
_BUFFER_BYTES = 1 << 20


def parquet_batches(path: Path, columns: list[str], ids: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some of its columns. `ids` stay dictionary-encoded where the file has them so."""
    metadata = pq.read_metadata(path)
    encoded = [name for name in ids if _is_dictionary_encoded(metadata, name)]
    # By default pyarrow loads the raw bytes of the whole file before the first batch.
    with pq.ParquetFile(path, read_dictionary=encoded, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        yield from file.iter_batches(_batch_rows(metadata, columns), columns=columns)


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


# From the `files` of a spec to the existing files, and the format of each.

COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}


def find_files(patterns: list[str], folder: Path, what: str) -> list[Path]:
    """The files of a table, in the order of the list; those of a glob in the order of their names."""
    found: list[Path] = []
    for pattern in patterns:
        try:
            matches = _matches(folder, pattern)
        except (ValueError, RuntimeError) as error:
            raise PenstockError(
                f"{pattern!r} of {what} is not a path or pattern ({error}): correct the spec.", code="invalid-value"
            ) from None
        if not matches:
            raise PenstockError(
                f"No file matches {pattern!r} of {what} in {folder}: check the path, relative to the spec.",
                code="file-not-found",
            )
        found += matches
    # A file that two patterns match is read once.
    found = list(dict.fromkeys(found))
    for path in found:
        if path.is_dir():
            raise PenstockError(
                f"{path} of {what} is a folder: name its files, for instance {path.name}/*.parquet.", code="wrong-file"
            )
        if not path.is_file():
            raise PenstockError(
                f"{path} of {what} is a pipe, a socket or a device, and only regular files are read: write its content"
                " to a file.",
                code="wrong-file",
            )
    return found


def format_of(paths: list[Path], asked: Format | None) -> Format:
    """The one format of a table's files: as asked for, or by their extension."""
    if asked:
        return asked
    formats = {path: _by_extension(path) for path in paths}
    if len(set(formats.values())) > 1:
        other = next(path for path in paths if formats[path] != formats[paths[0]])
        raise PenstockError(
            f"{paths[0]} and {other} have different formats: convert one, or give them as one format.",
            code="wrong-file",
        )
    return formats[paths[0]]


def _matches(folder: Path, pattern: str) -> list[Path]:
    path = folder / Path(pattern).expanduser()
    if path.exists():
        return [path]
    if Path(pattern).is_absolute():
        folder, pattern = Path(path.anchor), str(path.relative_to(path.anchor))
    return sorted(match for match in folder.glob(pattern) if match.is_file())


def _by_extension(path: Path) -> Format:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in _FORMATS:
        raise PenstockError(
            f"The format of {path} is not known by its extension: add 'format: parquet', csv, tsv or json.",
            code="option-missing",
        )
    return _FORMATS[suffixes[-1]]


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
        # The header of a Parquet file is cheap to read; text files are opened when they are needed.
        for path in self.files if self._format == "parquet" else self.files[:1]:
            with _readable(path, self._format):
                self._check_columns(path)
                if self._format == "parquet":
                    self.rows += pq.read_metadata(path).num_rows

    def chunks(self, columns: Collection[str]) -> Iterator[TableChunk]:
        """All rows in order. The next chunk is read while the last one is processed."""
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
                    # An empty chunk still gives the types and widths of its columns.
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
        """The type of every column of a text file, by its role and its apparent type."""
        if self._format == "parquet":
            return {}
        looks = self._looks(list(self.roles))
        type_of = _json_type if self._format == "json" else _csv_type
        return {name: type_of(role, looks[name]) for name, role in self.roles.items()}

    def _looks(self, columns: list[str]) -> dict[str, pa.DataType]:
        """The apparent types in the first file that has values; a file with only a header gives none."""
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
    """Turns errors of pyarrow or the disk into one sentence that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split("\n")[0].rstrip(".").split())
        raise PenstockError(
            f"{path} cannot be read as {form} ({problem}): the file is damaged or has another format.",
            code="damaged-file",
        ) from None
