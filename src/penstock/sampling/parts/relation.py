"""One relation of a partitioned graph, read from the owners of its parts: its lists in the original numbers.

It is for tasks whose examples are that relation's edges.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype, passing_numbers, release_pages
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType, edge_key
from penstock.partition.folder import Partition
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.remote import Channels, place_lists
from penstock.sampling.parts.requests import (
    DegreesRequest,
    EdgesRequest,
    HeldOutRequest,
    StrictRequest,
    Whole,
    counts_as_sent,
    counts_received,
    malformed,
    numbers_received,
    read_body,
)
from penstock.wire.message import Message

_PIECE = 1 << 20
"""Rows or edges per request."""


class RelationReader:
    """Reads relations of a partition: `local` parts directly, the others through `channels`."""

    def __init__(self, partition: Partition, local: Mapping[int, OwnedPart], channels: Channels) -> None:
        self._partition, self._local, self._channels = partition, local, channels

    def names(self, kind: EdgeType, label: str) -> tuple[list[str], list[str], list[str] | None]:
        """The relation's fields, the names of its held-out pairs, and the words of the field `label`, if it has any."""
        told = self._told(kind, label)
        return list(told.fields), told.held_out, told.words

    def lists(self, kind: EdgeType) -> EdgeSet:
        """The whole relation and the pairs held out of it, by original numbers; edge fields are left to the stores.

        Offsets, eight bytes for each vertex, are `passing_numbers`.
        """
        book, targets = self._partition.book, self._partition.original(kind[2])
        indptr = passing_numbers(len(targets) + 1, np.dtype(np.int64))
        amounts = [0] * book.parts
        for part in range(book.parts):
            first, last = book.range(part, kind[2])
            for low, high, degrees in self._degrees(part, kind, last - first):
                indptr[1:][targets[first + low : first + high]] = degrees
                amounts[part] += int(degrees.sum())
        _sum_up(indptr)
        release_pages(targets)
        indices = np.empty(int(indptr[-1]), index_dtype(book.count(kind[0])))
        for part in range(book.parts):
            rows = np.ascontiguousarray(targets[slice(*book.range(part, kind[2]))])
            place_lists(rows, indptr, self._sources(part, kind, amounts[part]), indices)
        for mapped in (targets, indptr):
            release_pages(mapped)
        return EdgeSet(indptr, indices, {}, self._held_out(kind))

    def offsets(self, kind: EdgeType) -> Array:
        """The offsets (int64) of the concatenated lists of all parts, by number in the partitioned graph."""
        book = self._partition.book
        ranges = [book.range(part, kind[2]) for part in range(book.parts)]
        offsets = np.zeros(book.count(kind[2]) + 1, np.int64)
        for part, (first, last) in enumerate(ranges):
            for low, high, degrees in self._degrees(part, kind, last - first):
                offsets[1:][first + low : first + high] = degrees
        _sum_up(offsets)
        return offsets

    def no_values(self, kind: EdgeType, field: str) -> Array:
        """An edge field's dtype and shape, without values."""
        fields = self._told(kind, "").fields
        if field not in fields:
            raise PenstockError(f"The edges {edge_key(kind)} have no field {field!r}.", code="field-missing")
        return np.empty((0, *fields[field].row_shape), fields[field].dtype)

    def _told(self, kind: EdgeType, label: str) -> "_RelationDocument":
        """The description of a relation by the first part's owner, without its held-out pairs."""
        return read_body(self._ask(0, Message("held-out", _about(0, kind, label, False))), _RelationDocument)

    def _degrees(self, part: int, kind: EdgeType, count: int) -> Iterator[tuple[int, int, Array]]:
        """The lengths of a part's lists, as (first row, last row, lengths) of some at a time."""
        for first, last in _pieces(count):
            body = DegreesRequest(part=part, relation=edge_key(kind), first=first, last=last)
            (counts,) = self._arrays(part, Message("degrees", body.model_dump()), 1)
            if len(counts) != last - first:
                raise _wrong(part, "lists of other rows than asked for")
            yield first, last, counts_received(counts, int(counts.sum(dtype=np.int64)), _owner(part))

    def _sources(self, part: int, kind: EdgeType, amount: int) -> Array:
        """The sources, by original number, of a part's edges, in the part's order."""
        count = self._partition.book.count(kind[0])
        names, dtype = self._partition.original(kind[0]), index_dtype(count)
        sources = np.empty(amount, dtype)
        for first, last in _pieces(amount):
            body = EdgesRequest(part=part, relation=edge_key(kind), first=first, last=last)
            (found,) = self._arrays(part, Message("edges", body.model_dump()), 1)
            if len(found) != last - first:
                raise _wrong(part, "other edges than asked for")
            sources[first:last] = names[numbers_received(found, count, dtype, _owner(part))]
        return sources

    def _held_out(self, kind: EdgeType) -> dict[str, Array]:
        """By name, the pairs [m, 2] in the order that they had before partitioning."""
        ends = self._partition.original(kind[0]), self._partition.original(kind[2])
        found: dict[str, list[tuple[Array, Array]]] = {}
        for part in range(self._partition.parts):
            answer = self._ask(part, Message("held-out", _about(part, kind, "", True)))
            told = read_body(answer, _RelationDocument)
            if len(answer.arrays) != 2 * len(told.held_out):
                raise _wrong(part, "held-out pairs without their places")
            for name, pairs, places in zip(told.held_out, answer.arrays[::2], answer.arrays[1::2], strict=True):
                if pairs.shape != (len(places), 2):
                    raise _wrong(part, "invalid held-out pairs")
                checked = [
                    names[numbers_received(np.ascontiguousarray(side), len(names), pairs.dtype, _owner(part))]
                    for side, names in zip(pairs.T, ends, strict=True)
                ]
                found.setdefault(name, []).append((np.stack(checked, 1), places))
        return {name: _in_order(pieces) for name, pieces in found.items()}

    def _arrays(self, part: int, message: Message, amount: int) -> tuple[Array, ...]:
        arrays = self._ask(part, message).arrays
        if len(arrays) != amount:
            raise _wrong(part, f"{len(arrays)} arrays")
        return arrays

    def _ask(self, part: int, message: Message) -> Message:
        """The answer of a part's owner to a request about a relation; a local part answers directly."""
        if part in self._local:
            return answer_relation_request(self._local[part], message)
        return self._channels(part).call(message)


def answer_relation_request(owned: OwnedPart, message: Message) -> Message:
    """The answer to "degrees", "edges" and "held-out" for a local part."""
    forms: dict[str, type[DegreesRequest | EdgesRequest | HeldOutRequest]] = {
        "degrees": DegreesRequest,
        "edges": EdgesRequest,
        "held-out": HeldOutRequest,
    }
    asked = read_body(message, forms[message.kind])
    kind = owned.kind_named(asked.relation)
    edges = owned.graph.edges[kind]
    if isinstance(asked, HeldOutRequest):
        wanted = edges.held_out if asked.pairs else ()
        arrays = [array for name in wanted for array in (edges.held_out[name], owned.places(kind, name))]
        told = _RelationDocument(
            fields={name: _FieldForm.of(values) for name, values in edges.fields.items()},
            held_out=list(edges.held_out),
            words=edges.categories.get(asked.label),
        )
        return Message("held-out", told.model_dump(), tuple(np.asarray(array, np.int64) for array in arrays))
    count = edges.count if isinstance(asked, EdgesRequest) else len(edges.indptr) - 1
    if not asked.first <= asked.last <= count or asked.last - asked.first > _PIECE:
        raise PenstockError(
            f"{asked.relation} has {count} lists: {asked.first}..{asked.last} is outside.",
            code="id-out-of-range",
        )
    if not isinstance(asked, EdgesRequest):
        degrees = np.diff(edges.indptr[asked.first : asked.last + 1])
        return Message("degrees", {}, (counts_as_sent(degrees),))
    sources = edges.indices[asked.first : asked.last].astype(index_dtype(owned.graph.nodes[kind[0]].total), copy=False)
    return Message("edges", {}, (np.ascontiguousarray(sources),))


class _FieldForm(StrictRequest):
    """The dtype and shape of a field's values."""

    dtype: Annotated[str, Field(pattern="^[|<]?[biuf][1248]$")]
    row_shape: list[Whole]

    @classmethod
    def of(cls, values: Array) -> Self:
        """The form of a field's values."""
        return cls(dtype=values.dtype.str, row_shape=list(values.shape[1:]))


class _RelationDocument(StrictRequest):
    fields: dict[str, _FieldForm]
    held_out: list[str]
    words: list[str] | None


def _about(part: int, kind: EdgeType, label: str, pairs: bool) -> dict[str, Any]:
    return HeldOutRequest(part=part, relation=edge_key(kind), label=label, pairs=pairs).model_dump()


def _sum_up(counts: Array) -> None:
    """Turn numbers into their running sums, in place; some at a time, as they may be in a file."""
    total = 0
    for first, last in _pieces(len(counts)):
        some = counts[first:last]
        np.cumsum(some, out=some)
        some += total
        total = int(some[-1])


def _in_order(pieces: list[tuple[Array, Array]]) -> Array:
    pairs, places = (np.concatenate(some) for some in zip(*pieces, strict=True))
    ordered: Array = pairs[np.argsort(places, kind="stable")]
    return ordered


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + _PIECE, count)) for first in range(0, count, _PIECE))


def _owner(part: int) -> str:
    return f"The owner of part {part}"


def _wrong(part: int, what: str) -> PenstockError:
    return malformed(_owner(part), f"answered with {what}")
