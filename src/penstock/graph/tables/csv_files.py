"""CSV and TSV as a stream of record batches."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from penstock.errors import PenstockError

_BLOCK_BYTES = 8 << 20


def csv_names(path: Path, delimiter: str) -> list[str]:
    """The columns of a file."""
    names: list[str] = _first_block(path, delimiter).names
    return names


def csv_looks(path: Path, delimiter: str, columns: list[str]) -> dict[str, pa.DataType]:
    """What columns look like in the first block, or further on where they are empty there."""
    found = _first_block(path, delimiter)
    looks = {name: found.field(name).type for name in columns}
    return {
        name: _first_value_type(path, delimiter, name) if pa.types.is_null(kind) else kind
        for name, kind in looks.items()
    }


def csv_batches(path: Path, delimiter: str, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some of its columns, in blocks."""
    try:
        yield from _open(path, delimiter, types)
    except pa.ArrowInvalid:
        raise PenstockError(_sentence(path, delimiter, types), code="damaged-file") from None


def _open(path: Path, delimiter: str, types: Mapping[str, pa.DataType] | None, threads: bool = True) -> Any:
    """A reader of batches. No types: all columns, as they look in the first block."""
    convert = pacsv.ConvertOptions(
        column_types=types,
        include_columns=list(types) if types else None,
        # Only nothing at all is null: NA is a country and "null" somebody's name.
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
        raise PenstockError(_sentence(path, delimiter, None), code="damaged-file") from None


def _first_value_type(path: Path, delimiter: str, column: str) -> pa.DataType:
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


def _sentence(path: Path, delimiter: str, types: Mapping[str, pa.DataType] | None) -> str:
    """What is wrong with a file, read again on one thread: only then does pyarrow say in which row."""
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
