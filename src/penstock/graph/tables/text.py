"""CSV, TSV and JSON lines as a stream of record batches with types that no later block can break."""

import io
import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
from pyarrow import types as kinds

from penstock.errors import PenstockError
from penstock.graph.tables.spec import Format

Role: TypeAlias = Any
"""What a column is for: id, integer id, string id, number, text, any; or the Arrow type to read it as."""

_BLOCK_BYTES = 8 << 20
_HEAD_LINES = 1000


def text_names(path: Path, form: Format) -> list[str]:
    """The columns of a file; of JSON lines those of its first lines."""
    if form == "json":
        return list(dict.fromkeys(name for row in _json_head(path) for name in row))
    names: list[str] = _csv_head(path, form).names
    return names


def settle_types(path: Path, form: Format, roles: Mapping[str, Role]) -> dict[str, pa.DataType]:
    """The type every column of a table is read as, by what it is for and what its first block looks like.

    Left alone, pyarrow guesses from the first block and fails on a later value that does not fit its guess.
    """
    found = _json_looks(path, list(roles)) if form == "json" else _csv_head(path, form)
    settled: dict[str, pa.DataType] = {}
    for name, role in roles.items():
        looks = found.field(name).type
        if kinds.is_null(looks) and role in ("any", "id"):
            looks = _first_value_type(path, form, name)
        settled[name] = _json_type(role, looks) if form == "json" else _csv_type(role, looks)
    return settled


def text_batches(path: Path, form: Format, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some of its columns, in blocks."""
    rows = 0
    try:
        for batch in _open(path, form, types):
            yield batch
            rows += len(batch)
    except pa.ArrowInvalid as error:
        sentence = _json_sentence(path, error, rows) if form == "json" else _csv_sentence(path, form, types)
        raise PenstockError(sentence) from None


def _open(path: Path, form: Format, types: Mapping[str, pa.DataType] | None, threads: bool = True) -> Any:
    """A reader of batches. No types (CSV only): all columns, as they look in the first block."""
    stream = pa.input_stream(str(path), compression="detect")
    if form == "json":
        schema = pa.schema(list((types or {}).items()))
        return pajson.open_json(
            stream,
            pajson.ReadOptions(use_threads=threads, block_size=_BLOCK_BYTES),
            pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    convert = pacsv.ConvertOptions(
        column_types=types,
        include_columns=list(types) if types else None,
        # Only nothing at all is null: NA is a country and "null" somebody's name.
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    delimiter = "\t" if form == "tsv" else ","
    return pacsv.open_csv(
        stream,
        pacsv.ReadOptions(use_threads=threads, block_size=_BLOCK_BYTES),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert,
    )


def _csv_head(path: Path, form: Format) -> pa.Schema:
    """Names, and types as they look in the first block."""
    try:
        return _open(path, form, None).schema
    except pa.ArrowInvalid:
        raise PenstockError(_csv_sentence(path, form, None)) from None


def _json_looks(path: Path, columns: list[str]) -> pa.Schema:
    """Types as they look in the first lines; columns nobody asks for may hold what they like."""
    rows = [{name: row.get(name) for name in columns} for row in _json_head(path)]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    try:
        return pajson.read_json(io.BytesIO(lines), pajson.ReadOptions(block_size=len(lines) + 1)).schema
    except pa.ArrowInvalid as error:
        raise PenstockError(_json_sentence(path, error, 0)) from None


def _json_head(path: Path) -> list[dict[str, Any]]:
    return list(islice(_json_rows(path), _HEAD_LINES))


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    with pa.input_stream(str(path), compression="detect") as stream:
        lines = (line for line in io.TextIOWrapper(stream, "utf-8") if line.strip())
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise PenstockError(f"{path}, row {number}: not JSON ({error}): mend that line.") from None
            if not isinstance(row, dict):
                raise PenstockError(
                    f"{path}, row {number}: not an object of columns and values: mend that line."
                )
            yield row


def _first_value_type(path: Path, form: Format, column: str) -> pa.DataType:
    """The type of a column that is empty throughout the first block, by its first value anywhere."""
    if form == "json":
        values = (row.get(column) for row in _json_rows(path))
        return pa.array([next((value for value in values if value is not None), None)]).type
    for batch in _open(path, form, {column: pa.string()}):
        words = batch.column(0).drop_null()
        if len(words):
            return _looks_like(words[0])
    return pa.null()


def _looks_like(word: pa.Scalar) -> pa.DataType:
    for candidate in (pa.int64(), pa.float64(), pa.timestamp("s")):
        try:
            word.cast(candidate)
        except pa.ArrowInvalid:
            continue
        return candidate
    return pa.string()


def _csv_type(role: Role, looks: pa.DataType) -> pa.DataType:
    if role == "number":
        return pa.float64()
    if role in ("text", "string id"):
        return pa.string()
    if role == "integer id":
        return pa.int64()
    if role == "id":
        return pa.int64() if kinds.is_integer(looks) else pa.string()
    return looks if role == "any" else _readable(role)


def _json_type(role: Role, looks: pa.DataType) -> pa.DataType:
    """JSON says itself what is a number and what a string; only the width of numbers is ours to settle."""
    if kinds.is_null(looks):
        return _csv_type(role, looks)
    number = pa.float64() if role == "number" else _readable(role) if isinstance(role, pa.DataType) else None
    if number is None or not _is_numeric(number):
        return looks
    if kinds.is_list(looks):
        return pa.list_(number) if _is_numeric(looks.value_type) else looks
    return number if _is_numeric(looks) else looks


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_null(kind))


def _readable(kind: pa.DataType) -> pa.DataType:
    """Neither reader knows half floats; they are exact as single ones."""
    return pa.float32() if kinds.is_float16(kind) else kind


def _csv_sentence(path: Path, form: Format, types: Mapping[str, pa.DataType] | None) -> str:
    """Read again on one thread: only then does pyarrow count rows in what it says."""
    problem = ""
    try:
        for _ in _open(path, form, types, threads=False):
            pass
    except pa.ArrowInvalid as error:
        problem = _first_line(error)
    row = re.search(r"Row #(\d+)", problem)
    place = f"{path}, row {int(row[1]) - 1}" if row else str(path)
    value = re.search(r"column #(\d+):.* error to (\w+): invalid value '(.*)'", problem)
    if value:
        column = text_names(path, form)[int(value[1])]
        wanted = (
            "an integer"
            if "int" in value[2]
            else "a number"
            if value[2] in ("double", "float")
            else f"a {value[2]}"
        )
        hint = "mend the value, or what the spec says of the column"
        return f"{place}, column {column!r}: {value[3]!r} is not {wanted}: {hint}."
    problem = re.sub(r"^In CSV column #\d+: |CSV \w+ error( to \w+)?: |Row #\d+: ", "", problem)
    return f"{place}: {problem}: the file is damaged or not {form}, mend it."


def _json_sentence(path: Path, error: Exception, rows_before: int) -> str:
    problem = _first_line(error).removeprefix("JSON parse error: ").rstrip(".")
    row = re.search(r" in row (\d+)$", problem)
    if not row:
        return f"{path} cannot be read as json ({problem}): it must hold one object a line."
    problem = re.sub(r"Column\(/(.*?)\)", r"column '\1'", problem[: row.start()])
    return f"{path}, row {rows_before + int(row[1]) + 1}: {problem.rstrip('.')}: mend that line."


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]
