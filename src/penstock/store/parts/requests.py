"""The form of requests to a store, validated before use."""

import math
from typing import Annotated, TypeVar

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument, first_problem
from penstock.store.parts.row_encoding import WireType
from penstock.wire.message import Message

Count = Annotated[int, Field(ge=0)]


def _shrinks(factor: float) -> float:
    """As torch clips: gradients that are no numbers make all of them none."""
    if not (math.isnan(factor) or 0.0 <= factor <= 1.0):
        raise ValueError(f"{factor} is outside 0..1")
    return factor


Factor = Annotated[float, AfterValidator(_shrinks)]
"""What clipped gradients are multiplied by."""


class StoreRequest(StrictDocument):
    """Numbers are numbers here, never words that look like them."""

    model_config = ConfigDict(extra="forbid", strict=True)


Body = TypeVar("Body", bound=StoreRequest)


class PartRequest(StoreRequest):
    """A request about one part."""

    part: Count


class FieldRequest(PartRequest):
    """Something about a field of a part."""

    field: str


class Pull(FieldRequest):
    """Rows of a field, by their numbers in the part."""

    columns: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    wire_type: WireType = "stored"
    rounding: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    """The key by which numbers are rounded at random where they are narrowed; None: to the nearest."""
    selected: Count | None = None
    """The version of a selection of columns that the reader has named before (`Select`); None: all columns."""


class Select(FieldRequest):
    """Array: the columns, ascending, that later pulls of the reader mean by a version. The answer has the mean row of
    the part where `means` asks for it."""

    version: Count
    means: bool


class Make(FieldRequest):
    """A field of `width` float32 for every vertex of its type."""

    width: Annotated[int, Field(ge=1, le=1 << 20)]


class TableRequest(PartRequest):
    """Something about a part's share of an embedding table, before a step."""

    table: str
    step: Count


class Staged(TableRequest):
    """A rank's gradients of a step."""

    rank: Count
    world: Annotated[int, Field(ge=1)]
    learned: bool
    """Whether the rank's batch had vertices of the table's type, in whatever part."""
    clipped: bool = False
    """Whether the step waits for a factor."""


class Shrink(TableRequest):
    """What a step's gradients are multiplied by."""

    factor: Factor


class RoundRequest(TableRequest):
    """The ranks have met, for the round of this number."""

    round: Count


class Restore(TableRequest):
    """Rows from `start` on, of a state `steps` optimiser steps old; `token` names the restoring."""

    token: Annotated[str, Field(min_length=1, max_length=64)]
    start: Count
    steps: Count


def checked(request: Message, model: type[Body]) -> Body:
    """The request's body as what it must be."""
    try:
        return model.model_validate(request.body)
    except ValidationError as error:
        raise PenstockError(
            f"A {request.kind!r} request is not valid: {first_problem(error)}.", code="malformed-message"
        ) from None


def row_numbers(request: Message, arrays: int = 1) -> Array:
    """The first of so many arrays, if it can be row numbers."""
    if len(request.arrays) != arrays:
        raise PenstockError(
            f"A {request.kind!r} request needs {arrays} arrays and has {len(request.arrays)}.", code="malformed-message"
        )
    rows = request.arrays[0]
    if rows.ndim != 1 or rows.dtype not in (np.int32, np.int64):
        raise PenstockError(
            f"A {request.kind!r} request needs row numbers of int32 or int64, not {rows.dtype}.",
            code="malformed-message",
        )
    return rows
