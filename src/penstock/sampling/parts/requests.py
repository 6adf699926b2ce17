"""Messages between samplers of parts: requests for draws, validated before use, and whole batches."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import ConfigDict, Field

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.documents import StrictDocument, validated
from penstock.graph.schema import EdgeType
from penstock.sampling.block import BatchKey, Block, MiniBatch
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.wire.message import LIMITS, Message

# The bodies of requests for draws, and their validation.

Name = Annotated[str, Field(max_length=256)]
Whole = Annotated[int, Field(ge=0, lt=1 << 63)]


class StrictRequest(StrictDocument):
    """A body whose values must have exactly the declared types."""

    model_config = ConfigDict(extra="forbid", strict=True)


Bits = Annotated[int, Field(ge=0, lt=1 << 64)]


class HeldOutRuleForm(StrictRequest):
    """The wire form of a `HeldOutRule`."""

    key: Bits
    end: Bits
    unordered: bool
    turned: bool

    @classmethod
    def of(cls, absent: HeldOutRule) -> Self:
        """The wire form of a rule."""
        return cls(**asdict(absent))

    def read(self) -> HeldOutRule:
        """The rule that a message holds."""
        return HeldOutRule(**self.model_dump())


class DrawSettings(NamedTuple):
    """How rows draw from the lists of one relation, wherever these are."""

    replace: bool = False
    weight: str | None = None
    """The field in proportion to which edges are drawn."""
    absent: HeldOutRule | None = None
    """Edges that are left out."""
    time: str | None = None
    """The field with the edges' times, for which readers then have limits."""
    uniform: bool = False
    """Whether every edge is equally likely to be drawn, and `weight` only scales messages."""
    shared: bool = False
    """Whether all rows of a hop see the same random number of a source, as in LABOR."""
    whole: bool = False
    """Whether lists are returned whole, including edges of weight 0, with all weights in float64."""

    def fields(self) -> dict[str, Any]:
        """The fields of a `DrawRequest` that say the same; of the first ones a `TotalsRequest`."""
        return {**self._asdict(), "absent": None if self.absent is None else HeldOutRuleForm.of(self.absent)}


PLAIN_DRAWS = DrawSettings()


class RelationRequest(StrictRequest):
    """A relation of a part."""

    part: Whole
    relation: Name


class DegreesRequest(RelationRequest):
    """Asks for the lengths of the lists of rows [first, last), counted in the part."""

    first: Whole
    last: Whole


class EdgesRequest(DegreesRequest):
    """Asks for the sources of edges [first, last), in the part's order."""


class HeldOutRequest(RelationRequest):
    """Asks for the names of fields and of held-out pairs, and the words of one field; with `pairs`, for these and their
    old positions.
    """

    label: Name
    pairs: bool


class TotalsRequest(RelationRequest):
    """Arrays: vertices of the part, and optionally excluded edges [2, m] that lead to them."""

    weight: Name | None
    absent: HeldOutRuleForm | None = None
    time: Name | None = None
    """An edge field: then the arrays are vertices, the positions of their trees' seeds, and the seeds' times."""

    @property
    def settings(self) -> DrawSettings:
        """The settings that the request names."""
        given = {name: getattr(self, name) for name in DrawSettings._fields if name in type(self).model_fields}
        return DrawSettings(**{**given, "absent": None if self.absent is None else self.absent.read()})


class DrawRequest(TotalsRequest):
    """As for totals. The answer: how many sources each vertex has, the sources, estimator weights if any, and with
    `positions` those of the edges in the part's lists.
    """

    key: Bits
    fanout: Annotated[int, Field(ge=-1, lt=1 << 31)]
    replace: bool
    shared: bool = False
    whole: bool = False
    positions: bool = False
    uniform: bool = False


class BatchRequest(StrictRequest):
    """Arrays: seeds, concatenated over types, and excluded edges [2, m], concatenated over relations."""

    sampler: Name
    key: Annotated[list[int], Field(min_length=3, max_length=3)]
    seeds: dict[Name, Whole]
    excluded: dict[Name, Whole] | None
    absent: dict[Name, HeldOutRuleForm] | None = None
    timed: bool = False
    """Whether the last two arrays are the seeds' times and their positions in a larger batch."""


class ItemsRequest(StrictRequest):
    """Asks for the items of an epoch, for a sampler that finds its own seeds. The answer: one array of integers."""

    sampler: Name


Form = TypeVar("Form", bound=StrictRequest)


def read_body(message: Message, form: type[Form]) -> Form:
    """The validated body of a message; the error names the first problem."""
    return validated(form, message.body, f"A message of kind {message.kind!r} is not valid", "malformed-message")


def malformed(who: str, what: str) -> PenstockError:
    """The error for a message that another process of the same release would not send."""
    return PenstockError(f"{who} {what}: check that it runs the same release.", code="malformed-message")


def counts_as_sent(counts: Array) -> Array:
    """Counts in the smallest unsigned type that holds them, of four bytes at most."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


def counts_received(counts: Array, total: int, who: str) -> Array:
    """Counts as int64, validated to be counts with the given sum."""
    if (
        counts.ndim != 1
        or counts.dtype not in (np.uint8, np.uint16, np.uint32)
        or int(counts.sum(dtype=np.int64)) != total
    ):
        raise malformed(who, "answered with lists that do not add up")
    return counts.astype(np.int64)


def numbers_received(numbers: Array, count: int, dtype: np.dtype[Any], who: str, amount: int | None = None) -> Array:
    """Vertex, row or edge numbers, validated to be within 0..count - 1, and `amount` of them if given."""
    if amount is not None and len(numbers) != amount:
        raise malformed(who, f"answered with {len(numbers)} numbers for {amount} edges")
    if numbers.ndim != 1 or numbers.dtype != dtype or (len(numbers) and (numbers.min() < 0 or numbers.max() >= count)):
        raise PenstockError(
            f"{who} answered with numbers outside 0..{count - 1}: check that it holds a part of the same partition.",
            code="malformed-message",
        )
    return numbers


def floats_received(values: Array, count: int, who: str, dtype: type[np.floating[Any]] = np.float32) -> Array:
    """An array of floats from an answer, validated for type and length."""
    if values.shape != (count,) or values.dtype != dtype:
        raise malformed(who, f"answered with {values.shape} {values.dtype} for {count} numbers")
    return values


# Batches on the wire: their arrays, and a document of which array is what. Offsets are sent as counts in the smallest
# type that holds them; arrays that begin at the same memory, as totals do, are sent once. Features, labels and original
# numbers are not sent: the requester has them or fetches them.


class _Lists(StrictRequest):
    """One relation's block: positions of its arrays in the message. The block uses a prefix of `totals`."""

    kind: list[Name]
    """Source, relation and destination; empty in a batch of one type."""
    counts: Whole
    indices: Whole
    weights: Whole | None
    totals: Annotated[list[Whole], Field(min_length=2, max_length=2)] | None
    edges: Whole | None
    ages: Whole | None = None


class _Layer(StrictRequest):
    num_src: dict[Name, Whole]
    num_dst: dict[Name, Whole]
    relations: list[_Lists]


class _Form(StrictRequest):
    """A batch: vertices by type (positions of arrays), how many of them are seeds, and layers, outermost first.

    Of a share: how many seeds the whole batch has. `seed_weights` is the position of an array, if there is one.
    """

    typed: bool
    vertices: dict[Name, Whole]
    seeds: dict[Name, Whole]
    layers: list[_Layer]
    arrays: Whole
    whole: Whole | None
    seed_weights: Whole | None


def batch_messages(batch: MiniBatch) -> list[Message]:
    """The messages that carry a sampled batch to its worker."""
    arrays, unnamed = _Outgoing(), [(name, "", name) for name in batch.vertices]
    form = _Form(
        typed=not batch.blocks[0].has_lists,
        vertices={name: arrays.put(these) for name, these in batch.vertices.items()},
        seeds={name: len(these) for name, these in batch.seeds.items()},
        layers=[_layer_form(block.named(unnamed), arrays) for block in batch.blocks],
        arrays=0,
        whole=batch.whole,
        seed_weights=None if batch.seed_weights is None else arrays.put(batch.seed_weights),
    )
    form.arrays = len(arrays.all)
    bodies = [form.model_dump(), *([{}] * (max(0, len(arrays.all) - 1) // LIMITS.arrays))]
    return [
        Message("batch", body, tuple(arrays.all[number * LIMITS.arrays : (number + 1) * LIMITS.arrays]))
        for number, body in enumerate(bodies)
    ]


def batch_received(messages: Iterable[Message], counts: Mapping[str, int], key: BatchKey | None, who: str) -> MiniBatch:
    """The batch in some messages, validated and in arrays of its own. `counts` are the graph's vertices by type."""
    parts = list(messages)
    if not parts:
        raise _wrong(who, "no parts")
    form, arrays = read_body(parts[0], _Form), [array for part in parts for array in part.arrays]
    if len(arrays) != form.arrays:
        raise _wrong(who, f"{len(arrays)} arrays where {form.arrays} were announced")
    read = _Incoming(form, arrays, counts, who)
    vertices = {name: read.vertices(name) for name in form.vertices}
    read.check_rows(vertices)
    layers = [read.layer(layer) for layer in form.layers]
    seeds = {name: vertices[name][:count].copy() for name, count in form.seeds.items()}
    weights = read.seed_weights()
    return MiniBatch(seeds, vertices, layers, key=key, seed_weights=weights, whole=form.whole)


def _layer_form(layer: Block, arrays: "_Outgoing") -> _Layer:
    lists = []
    for kind, block in layer.relations.items():
        totals, edges = block.totals, block.edges
        lists.append(
            _Lists(
                kind=list(kind) if kind[1] else [],
                counts=arrays.put(counts_as_sent(np.diff(block.indptr))),
                indices=arrays.put(block.indices),
                weights=None if block.weights is None else arrays.put(block.weights),
                totals=None if totals is None else [arrays.put_shared(totals), len(totals)],
                edges=None if edges is None else arrays.put(edges.astype(np.int64, copy=False)),
                ages=None if block.ages is None else arrays.put(block.ages),
            )
        )
    return _Layer(num_src=layer.src_counts, num_dst=layer.dst_counts, relations=lists)


class _Outgoing:
    """The arrays of a message, with the positions given to them."""

    def __init__(self) -> None:
        self.all: list[Array] = []
        self._shared: dict[int, int] = {}

    def put(self, array: Array) -> int:
        """Add an array; returns its position."""
        self.all.append(array)
        return len(self.all) - 1

    def put_shared(self, array: Array) -> int:
        """The position of an array that begins at the same memory, which is added if it is new."""
        begin = array.__array_interface__["data"][0]
        place = self._shared.get(begin)
        if place is None or len(self.all[place]) < len(array):
            place = self._shared[begin] = self.put(array)
        return place


class _Incoming:
    """The arrays of a batch that arrived, all validated, since kernels rely on them."""

    def __init__(self, form: _Form, arrays: list[Array], counts: Mapping[str, int], who: str) -> None:
        self._form, self._arrays, self._counts, self._who = form, arrays, counts, who
        self._shared: dict[int, Array] = {}

    def vertices(self, name: str) -> Array:
        if name not in self._counts:
            raise _wrong(self._who, f"vertices of type {name!r}, which the graph does not have")
        count = self._counts[name]
        return numbers_received(self._array(self._form.vertices[name]), count, index_dtype(count), self._who).copy()

    def check_rows(self, vertices: Mapping[str, Array]) -> None:
        """Check that layers fit together: the outermost reads all vertices, the innermost writes the seeds."""
        form = self._form
        if not form.layers or (not form.typed and len(vertices) != 1) or not set(form.seeds) <= set(vertices):
            raise _wrong(self._who, "no layers, or seeds of other types than its vertices")
        rows = [{name: len(these) for name, these in vertices.items()}, *(layer.num_dst for layer in form.layers)]
        fits = all(layer.num_src == above for layer, above in zip(form.layers, rows, strict=False))
        fits &= all(set(a) == set(b) and all(b[name] <= a[name] for name in a) for a, b in pairwise(rows))
        fits &= rows[-1] == {name: form.seeds.get(name, 0) for name in vertices}
        if not fits:
            raise _wrong(self._who, "layers that do not fit together")

    def seed_weights(self) -> Array | None:
        """The weights of the seeds, if there are any; also checks that a share has no more seeds than the whole."""
        count = sum(self._form.seeds.values())
        if self._form.whole is not None and self._form.whole < count:
            raise _wrong(self._who, "more seeds than the whole of which it is a share")
        if self._form.seed_weights is None:
            return None
        return floats_received(self._array(self._form.seed_weights), count, self._who).copy()

    def layer(self, layer: _Layer) -> Block:
        relations = dict(self._block(lists, layer) for lists in layer.relations)
        if len(relations) != len(layer.relations) or (not self._form.typed and len(relations) != 1):
            raise _wrong(self._who, "a relation twice in a layer, or none")
        if not self._form.typed:
            return next(iter(relations.values()))
        return Block.of_relations(relations, layer.num_src, layer.num_dst)

    def _block(self, lists: _Lists, layer: _Layer) -> tuple[EdgeType, Block]:
        source, relation, destination = self._kind(lists)
        if source not in layer.num_src or destination not in layer.num_dst:
            raise _wrong(self._who, "a relation between types that the graph does not have")
        num_src = layer.num_src[source]
        indices = numbers_received(self._array(lists.indices), num_src, np.dtype(np.int32), self._who).copy()
        counts = counts_received(self._array(lists.counts), len(indices), self._who)
        if len(counts) != layer.num_dst[destination]:
            raise _wrong(self._who, "a block of other rows than its layer's")
        indptr = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        weights, ages = (self._floats(place, len(indices)) for place in (lists.weights, lists.ages))
        totals, edges = self._totals(lists, len(counts)), self._edges(lists, len(indices))
        return (source, relation, destination), Block(indptr, indices, num_src, weights, totals, edges, ages=ages)

    def _floats(self, place: int | None, count: int) -> Array | None:
        """One number for each edge, if there are any."""
        return None if place is None else floats_received(self._array(place), count, self._who).copy()

    def _edges(self, lists: _Lists, count: int) -> Array | None:
        """The numbers of edges. Their upper bound is known to the row source, which validates them."""
        if lists.edges is None:
            return None
        most, dtype = np.iinfo(np.int64).max, np.dtype(np.int64)
        return numbers_received(self._array(lists.edges), most, dtype, self._who, count).copy()

    def _totals(self, lists: _Lists, rows: int) -> Array | None:
        if lists.totals is None:
            return None
        place, count = lists.totals
        if place not in self._shared:
            array = self._array(place)
            self._shared[place] = floats_received(array, len(array), self._who).copy()
        if not rows <= count <= len(self._shared[place]):
            raise _wrong(self._who, "totals of other rows than a block has")
        return self._shared[place][:count]

    def _kind(self, lists: _Lists) -> EdgeType:
        if self._form.typed and len(lists.kind) == 3:
            source, relation, destination = lists.kind
            return source, relation, destination
        if self._form.typed or lists.kind:
            raise _wrong(self._who, "an invalid relation")
        (only,) = self._form.vertices
        return only, "", only

    def _array(self, place: int) -> Array:
        if place >= len(self._arrays) or self._arrays[place].ndim != 1:
            raise _wrong(self._who, "an array that is missing or not flat")
        return self._arrays[place]


def _wrong(who: str, what: str) -> PenstockError:
    return malformed(who, f"answered with a batch that has {what}")
