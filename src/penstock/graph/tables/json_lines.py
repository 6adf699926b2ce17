"""JSON lines as a stream of record batches."""

import io
import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from penstock.errors import PenstockError

_BLOCK_BYTES = 8 << 20
_HEAD_LINES = 1000


def json_names(path: Path) -> list[str]:
    """The columns that the first lines of a file mention."""
    return list(dict.fromkeys(name for row in islice(_rows(path), _HEAD_LINES) for name in row))


def json_looks(path: Path, columns: list[str]) -> dict[str, pa.DataType]:
    """What columns look like in the first lines, or further on where they are empty there.

    Only these columns are looked at: others may hold what they like.
    """
    rows = [{name: row.get(name) for name in columns} for row in islice(_rows(path), _HEAD_LINES)]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    try:
        schema = pajson.read_json(io.BytesIO(lines), pajson.ReadOptions(block_size=len(lines) + 1)).schema
    except pa.ArrowInvalid as error:
        raise PenstockError(_sentence(path, error, 0), code="damaged-file") from None
    looks = {field.name: field.type for field in schema}
    return {name: _first_value_type(path, name) if pa.types.is_null(kind) else kind for name, kind in looks.items()}


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
        raise PenstockError(_sentence(path, error, rows), code="damaged-file") from None


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


def _first_value_type(path: Path, column: str) -> pa.DataType:
    values = (row.get(column) for row in _rows(path))
    return pa.array([next((value for value in values if value is not None), None)]).type


def _sentence(path: Path, error: Exception, rows_before: int) -> str:
    problem = str(error).split("\n")[0].removeprefix("JSON parse error: ").rstrip(".")
    row = re.search(r" in row (\d+)$", problem)
    if not row:
        return f"{path} cannot be read as json ({problem}): it must hold one object a line."
    problem = re.sub(r"Column\(/(.*?)\)", r"column '\1'", problem[: row.start()])
    return f"{path}, row {rows_before + int(row[1]) + 1}: {problem.rstrip('.')}: correct that line."
