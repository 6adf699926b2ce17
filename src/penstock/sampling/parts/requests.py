"""What travels with a request for draws, and how a request is checked before anything is done about it."""

from dataclasses import asdict
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, ValidationError

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument, first_problem
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.wire.message import Message

Name = Annotated[str, Field(max_length=256)]
Whole = Annotated[int, Field(ge=0, lt=1 << 63)]


class StrictRequest(StrictDocument):
    """A body whose values have exactly the types that are asked for."""

    model_config = ConfigDict(extra="forbid", strict=True)


Bits = Annotated[int, Field(ge=0, lt=1 << 64)]


class HeldOutRuleForm(StrictRequest):
    """An `HeldOutRule`: edges that are held out of a relation."""

    key: Bits
    end: Bits
    unordered: bool
    turned: bool

    @classmethod
    def of(cls, absent: HeldOutRule) -> Self:
        """The form of held-out edges that is sent."""
        return cls(**asdict(absent))

    def read(self) -> HeldOutRule:
        """The held-out edges that a message describes."""
        return HeldOutRule(**self.model_dump())


class RelationRequest(StrictRequest):
    """A relation of a part."""

    part: Whole
    relation: Name


class DegreesRequest(RelationRequest):
    """Lengths of the lists of rows [first, last), counted in the part."""

    first: Whole
    last: Whole


class EdgesRequest(DegreesRequest):
    """Sources of edges [first, last), as they stand in the part."""


class HeldOutRequest(RelationRequest):
    """Names of fields and of held-out pairs, and the words of one field; with `pairs`, these and their old places."""

    label: Name
    pairs: bool


class TotalsRequest(RelationRequest):
    """Arrays: vertices of the part, and maybe excluded edges [2, m] that lead to them."""

    weight: Name | None
    absent: HeldOutRuleForm | None = None
    time: Name | None = None
    """An edge field: then the arrays are vertices, the seeds' places whose trees they are in, and the seeds' times."""


class DrawRequest(TotalsRequest):
    """As for totals. The answer: how many sources each vertex has, the sources, estimators' weights if any, and with
    `positions` where the edges stand in the part's lists."""

    key: Bits
    fanout: Annotated[int, Field(ge=-1, lt=1 << 31)]
    replace: bool
    shared: bool = False
    """Whether rows share their draws, as LABOR has it."""
    whole: bool = False
    """Whether lists are wanted as they are, also the edges that weigh nothing, with all weights in float64."""
    positions: bool = False
    uniform: bool = False
    """Whether every edge is as likely to be drawn as another, though `weight` names weights."""


class BatchRequest(StrictRequest):
    """Arrays: seeds, type behind type, and excluded edges [2, m], relation behind relation."""

    sampler: Name
    key: Annotated[list[int], Field(min_length=3, max_length=3)]
    seeds: dict[Name, Whole]
    excluded: dict[Name, Whole] | None
    absent: dict[Name, HeldOutRuleForm] | None = None
    timed: bool = False
    """Whether the last two arrays are the seeds' times and their places in a larger batch."""


class ItemsRequest(StrictRequest):
    """What an epoch of a sampler that finds its seeds goes through. The answer: one array of whole numbers."""

    sampler: Name


Form = TypeVar("Form", bound=StrictRequest)


def read_body(message: Message, form: type[Form]) -> Form:
    """The body of a message, or a sentence about the first thing that is wrong in it."""
    try:
        return form.model_validate(message.body)
    except ValidationError as error:
        raise PenstockError(
            f"A message of kind {message.kind!r} is not valid: {first_problem(error)}.", code="malformed-message"
        ) from None


def counts_as_sent(counts: Array) -> Array:
    """Counts in the smallest type that holds them, unsigned, of four bytes at most."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


def counts_received(counts: Array, total: int, who: str) -> Array:
    """Counts as int64, after checking that they are counts and add up."""
    if (
        counts.ndim != 1
        or counts.dtype not in (np.uint8, np.uint16, np.uint32)
        or int(counts.sum(dtype=np.int64)) != total
    ):
        raise PenstockError(
            f"{who} answered with lists that do not add up: check that it runs the same release.",
            code="malformed-message",
        )
    return counts.astype(np.int64)


def numbers_received(numbers: Array, count: int, dtype: np.dtype[Any], who: str, amount: int | None = None) -> Array:
    """Vertex, row or edge numbers, after checking that they are within 0..count - 1, and `amount` of them if given."""
    if amount is not None and len(numbers) != amount:
        raise PenstockError(
            f"{who} answered with {len(numbers)} numbers for {amount} edges: check that it runs the same release.",
            code="malformed-message",
        )
    if numbers.ndim != 1 or numbers.dtype != dtype or (len(numbers) and (numbers.min() < 0 or numbers.max() >= count)):
        raise PenstockError(
            f"{who} answered with numbers outside 0..{count - 1}: check that it holds a part of the same partition.",
            code="malformed-message",
        )
    return numbers


def floats_received(values: Array, count: int, who: str, dtype: type[np.floating[Any]] = np.float32) -> Array:
    """An array of floats from an answer, checked for its type and length."""
    if values.shape != (count,) or values.dtype != dtype:
        raise PenstockError(
            f"{who} answered with {values.shape} {values.dtype} for {count} numbers: check that it runs the same"
            " release.",
            code="malformed-message",
        )
    return values
