"""Id columns as the index wants them: strings or 64-bit integers, none missing."""

import pyarrow as pa
from pyarrow import types as kinds

from penstock.errors import PenstockError
from penstock.graph.tables.index import IdKind
from penstock.graph.tables.reader import Chunk


def id_kind(chunk: Chunk, column: str) -> IdKind:
    """Whether a column holds strings or integers."""
    kind = chunk.batch.column(column).type
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_integer(kind):
        return "integer"
    if _is_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return "string"
    raise PenstockError(
        f"Column {column!r} of {chunk.file} is {kind}: ids must be strings or integers, convert it.", code="wrong-type"
    )


def id_values(chunk: Chunk, column: str, kind: IdKind) -> pa.Array:
    """The ids of a chunk, cast to `kind` where they are of the other. Strings may stay dictionary-encoded."""
    values = chunk.batch.column(column)
    if kinds.is_dictionary(values.type) and (kind != "string" or values.dictionary.null_count):
        values = values.dictionary_decode()
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise PenstockError(
            f"{chunk.place(row, column)}: the id is missing: fill it in or remove the row.", code="missing-data"
        )
    id_kind(chunk, column)
    plain = values.type.value_type if kinds.is_dictionary(values.type) else values.type
    if kind == "string" and _is_string(plain):
        return values
    wanted = pa.string() if kind == "string" else pa.int64()
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:
        row = next(row for row, value in enumerate(values) if not _casts(value, wanted))
        raise PenstockError(
            f"{chunk.place(row, column)}: {values[row].as_py()!r} is not a {_NAMES[kind]}, as the ids of this node"
            " type are: correct it, or set 'id_type: string' for the node type.",
            code="wrong-type",
        ) from None


_NAMES = {"string": "UTF-8 string", "integer": "64-bit integer"}


def _is_string(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _casts(value: pa.Scalar, wanted: pa.DataType) -> bool:
    try:
        value.cast(wanted)
    except pa.ArrowInvalid:
        return False
    return True
