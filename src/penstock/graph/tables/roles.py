"""What columns are for, and the types that text is therefore read as.

Left alone, pyarrow guesses types from the first block and fails on a later value that does not fit its guess.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types as kinds

Role: TypeAlias = Any
"""id, integer id, string id, number, text, any; or the Arrow type to read the column as."""

ID_ROLES = ("id", "integer id", "string id")


def csv_types(roles: Mapping[str, Role], looks: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The type of each column of a text without types of its own."""
    return {name: _csv_type(role, looks[name]) for name, role in roles.items()}


def json_types(roles: Mapping[str, Role], looks: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The same for JSON, which says itself what is a number and what a string: only how wide is ours to settle."""
    return {name: _json_type(role, looks[name]) for name, role in roles.items()}


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
    if kinds.is_null(looks):
        return _csv_type(role, looks)
    if kinds.is_timestamp(looks) and role in ("text", *ID_ROLES):
        # pyarrow takes words that look like dates for dates.
        return pa.string()
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
