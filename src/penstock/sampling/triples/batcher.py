"""Batches of triples: ends, the entities that replace them as negatives, and the vertices that they need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, mix, unit
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.sampling.block import BatchKey
from penstock.sampling.links.batcher import WholeEdgeBatch
from penstock.sampling.links.known import End
from penstock.sampling.links.negatives import STEP, TRIES
from penstock.sampling.triples.triple_set import Entities, KnownTriples, Triples, is_listed, reverse_of

# Entities that replace an end of true triples, drawn by hash: uniformly, or by a power of their degree.

_LOOKED_UP = 16
"""A list of true entities up to this many times as long as what was drawn is looked up there,
rather than the reverse.
"""


class DrawnEntities(NamedTuple):
    """`entities` [groups, k] are the negatives of each of the `group` triples of their row; `masked` [m] are positions
    in the [triples, k] scores that must not count: true triples, and entities of another type.
    """

    entities: Array
    group: int
    masked: Array


_DIRECT = 1 << 21
"""Entities up to which a batch has tables with a place for each: 8 MiB."""


class _DrawnPlaces(NamedTuple):
    """The last position at which each entity was drawn, or -1: of every entity, or, with `keys`, of those drawn."""

    keys: Array
    place: Array

    @classmethod
    def of(cls, entities: int, drawn: int) -> "_DrawnPlaces":
        """No places yet, of so many entities, among which `drawn` are drawn."""
        slots = 0 if entities <= _DIRECT else 1 << (2 * drawn).bit_length()
        return cls(np.full(slots, -1, np.int64), np.full(slots or entities, -1, np.int32))


@dataclass(frozen=True)
class TripleNegatives:
    """How the entities that replace an end are drawn.

    `k` for every `group` triples (0: for the whole batch), or all entities where k is 0, with repeats; in proportion to
    their degree in the training triples to the power of `power`. With `filtered`, those that make a true triple do not
    count; what counts for no triple of a group is drawn again. A triple's own end never counts.
    """

    k: int = 1
    group: int = 1
    power: float = 0.0
    filtered: bool = True

    def draw(
        self, triples: Triples, end: End, entities: Entities, known: KnownTriples, weights: Array | None, key: np.uint64
    ) -> DrawnEntities:
        """The entities that replace `end` of some triples; `weights` are sums of entities' weights
        (see `weight_sums`).
        """
        low, high = entities.limits(triples.relation, end)
        other: End = "source" if end == "destination" else "destination"
        kept, own = triples.end(other), triples.end(end)
        first, last = known.bounds(triples.relation, kept, end) if self.filtered else (own * 0, own * 0)
        others = known.index(end)[1]
        if not self.k:
            every = np.arange(entities.count)
            return DrawnEntities(
                every[None], max(1, triples.total), _masked_of_all(len(every), low, high, own, first, last, others)
            )
        group = self.group or max(1, triples.total)
        drawn = np.zeros((-(-triples.total // group), self.k), np.int64)
        starts, useless = np.arange(0, triples.total, group), np.ones(drawn.shape, np.bool_)
        sums, places = np.empty(0) if weights is None else weights, _DrawnPlaces.of(entities.count, self.k)
        for attempt in range(TRIES):
            _draw(key, attempt, group, low, high, sums, useless, drawn)
            mask = np.zeros((triples.total, self.k), np.bool_)
            _mask(drawn, group, low, high, own, first, last, others, places, mask)
            useless = np.logical_and.reduceat(mask, starts) if len(starts) else useless[:0]
            if not useless.any():
                break
        return DrawnEntities(drawn, group, np.flatnonzero(mask))

    def per_triple(self, entities: int) -> int:
        """The number of negatives of a triple at one end."""
        return self.k or entities


TRIPLE_NEGATIVES: dict[str, Callable[[int, int, float, bool], TripleNegatives]] = {
    "uniform": lambda k, group, power, filtered: TripleNegatives(k, 1, power, filtered),
    "joint": lambda k, group, power, filtered: TripleNegatives(k, group, power, filtered),
    "all": lambda k, group, power, filtered: TripleNegatives(0, 0, 0.0, filtered),
}
"""By name: each triple's own, shared by a group of triples, and every entity."""


def triple_negatives(name: str, k: int, group: int = 0, power: float = 0.0, filtered: bool = True) -> TripleNegatives:
    """The policy of that name."""
    if name not in TRIPLE_NEGATIVES:
        raise PenstockError(
            f"Knowledge graphs have no negatives called {name!r}{nearest(name, TRIPLE_NEGATIVES)}", code="unknown-name"
        )
    return TRIPLE_NEGATIVES[name](k, group, power, filtered)


def weight_sums(triples: Triples, entities: Entities, power: float) -> Array | None:
    """[entities + 1] prefix sums of the entities' degrees to a power, from 0; None where all weigh the same."""
    if not power:
        return None
    ends = np.concatenate([triples.head, triples.tail])
    weights = np.bincount(ends, minlength=entities.count).astype(np.float64) ** power
    return np.concatenate([[0.0], np.cumsum(weights)])


def _masked_of_all(count: int, low: Array, high: Array, own: Array, first: Array, last: Array, others: Array) -> Array:
    """Positions of [triples, entities] that do not count, ascending: own ends, true triples,
    entities of another type.
    """
    most = len(own) + int((last - first).sum() + low.sum() + (count - high).sum())
    masked = np.empty(most, np.int64)
    return masked[: _places_of_all(count, low, high, own, first, last, others, masked)]


@njit(nogil=True, cache=True)
def _places_of_all(
    count: int, low: Array, high: Array, own: Array, first: Array, last: Array, others: Array, masked: Array
) -> int:
    """Write each triple's positions, and return how many; true entities are of the right type, and ascend."""
    size = 0
    for i in range(own.shape[0]):
        row, waiting = i * count, True
        for entity in range(low[i]):
            masked[size] = row + entity
            size += 1
        for x in range(first[i], last[i]):
            if waiting and own[i] <= others[x]:
                waiting = False
                if own[i] < others[x]:
                    masked[size] = row + own[i]
                    size += 1
            masked[size] = row + others[x]
            size += 1
        if waiting:
            masked[size] = row + own[i]
            size += 1
        for entity in range(high[i], count):
            masked[size] = row + entity
            size += 1
    return size


@njit(nogil=True, cache=True)
def _draw(
    key: np.uint64, attempt: int, group: int, low: Array, high: Array, sums: Array, useless: Array, drawn: Array
) -> None:
    """Draw those entities again that count for no triple of their group."""
    for g in range(drawn.shape[0]):
        start, stop = g * group, min((g + 1) * group, low.shape[0])
        lowest, highest = low[start:stop].min(), high[start:stop].max()
        stream = mix(key ^ np.uint64(g))
        for j in range(drawn.shape[1]):
            if useless[g, j]:
                bits = draw(stream, np.uint64(j) * STEP + np.uint64(attempt))
                drawn[g, j] = _entity(bits, lowest, highest, sums)


@njit(nogil=True, cache=True)
def _mask(
    drawn: Array,
    group: int,
    low: Array,
    high: Array,
    own: Array,
    first: Array,
    last: Array,
    others: Array,
    places: "_DrawnPlaces",
    mask: Array,
) -> None:
    """Mark what does not count. `places` are empty, before and afterwards."""
    k = drawn.shape[1]
    keys, place = places
    following = np.empty(k, place.dtype)
    for g in range(drawn.shape[0]):
        row = drawn[g]
        for j in range(k):
            # The last draw of an entity, and from there its earlier ones.
            slot = _slot(keys, row[j])
            following[j] = place[slot]
            place[slot] = j
            if keys.shape[0]:
                keys[slot] = row[j]
        lowest, highest = row.min(), row.max()
        for i in range(g * group, min((g + 1) * group, own.shape[0])):
            if lowest < low[i] or highest >= high[i]:
                for j in range(k):
                    mask[i, j] |= row[j] < low[i] or row[j] >= high[i]
            _mark(places, following, own[i], mask[i])
            if last[i] - first[i] <= _LOOKED_UP * k:
                for x in range(first[i], last[i]):
                    _mark(places, following, others[x], mask[i])
            else:
                for j in range(k):
                    if is_listed(others, first[i], last[i], row[j]):
                        mask[i, j] = True
        if keys.shape[0]:
            keys[:], place[:] = -1, -1
        else:
            for j in range(k):
                place[row[j]] = -1


@njit(nogil=True, cache=True)
def _slot(keys: Array, entity: int) -> int:
    """Where the place of an entity is kept: at its number, or, in a table with `keys`, where it is or could be."""
    if keys.shape[0] == 0:
        return entity
    mask = keys.shape[0] - 1
    slot: Any = np.int64(mix(np.uint64(entity)) & np.uint64(mask))
    while keys[slot] >= 0 and keys[slot] != entity:
        slot = (slot + 1) & mask
    return int(slot)


@njit(nogil=True, cache=True)
def _mark(places: "_DrawnPlaces", following: Array, entity: int, row: Array) -> None:
    """Mark an entity wherever it was drawn."""
    keys, place = places
    j = place[_slot(keys, entity)]
    while j >= 0:
        row[j] = True
        j = following[j]


@njit(nogil=True, cache=True)
def _entity(bits: np.uint64, low: int, high: int, sums: Array) -> int:
    """One of low..high - 1, uniformly or in proportion to the steps of `sums`."""
    if sums.shape[0] == 0:
        return low + below(bits, high - low)
    sought = sums[low] + unit(bits) * (sums[high] - sums[low])
    left, right = low, high - 1
    while left < right:
        middle = (left + right) // 2
        if sums[middle + 1] > sought:
            right = middle
        else:
            left = middle + 1
    return left


# From positions of triples to a batch: ends, negatives, and the vertices whose rows they need.

Corrupted = dict[End, DrawnEntities]


@dataclass(eq=False)
class TripleBatch:
    """Triples, and by end the entities that replace it. `nodes` are the different vertices of all of them by node type,
    ascending; `numbers` their entity numbers, ascending: one for each row of the model's outputs, types concatenated.

    `exclude` are the pairs by edge type that a sampler must not draw. `whole` describes the batch that this is a share
    of.
    """

    triples: Triples
    corrupted: Corrupted
    nodes: dict[str, Array]
    numbers: Array
    exclude: dict[EdgeType, Array]
    key: BatchKey | None = None
    whole: WholeEdgeBatch | None = None

    def __len__(self) -> int:
        return self.triples.total

    @property
    def destination(self) -> Array:
        """Tails by entity number, by which workers divide a batch."""
        return self.triples.tail

    def rows(self, entities: Array) -> Array:
        """The rows of some of its entities."""
        return np.searchsorted(self.numbers, entities)


class TripleBatcher:
    """Makes batches of training triples; may be called from several threads at once.

    `known` are the triples that filtered negatives avoid. `edge_types` are those of the graph that carry messages: a
    batch's own triples, and their reverses, are excluded from them; none where the model has no layers.
    """

    def __init__(
        self,
        triples: Triples,
        entities: Entities,
        relations: Sequence[EdgeType],
        edge_types: Sequence[EdgeType],
        negatives: TripleNegatives,
        ends: Sequence[End],
        known: KnownTriples,
    ) -> None:
        self.triples, self.entities, self.negatives, self.ends = triples, entities, negatives, tuple(ends)
        self._relations, self.known = list(relations), known
        self._sends = bool(edge_types)
        self._reverses = [reverse_of(kind, edge_types) for kind in relations]
        self.weights = weight_sums(triples, entities, negatives.power)

    def batch(self, positions: Array, key: BatchKey) -> TripleBatch:
        """The batch of the triples at some positions."""
        chosen = self.triples.at(np.ascontiguousarray(positions, np.int64))
        corrupted = {
            end: self.negatives.draw(
                chosen, end, self.entities, self.known, self.weights, key.purpose(f"negatives/{end}")
            )
            for end in self.ends
        }
        nodes, numbers = numbered(self.entities, chosen, corrupted)
        return TripleBatch(chosen, corrupted, nodes, numbers, self._exclude(chosen) if self._sends else {}, key)

    def share(self, batch: TripleBatch, places: Array) -> TripleBatch:
        """Some triples of a batch with their negatives; nothing is drawn anew, and `exclude` stays whole."""
        triples = batch.triples.at(places)
        corrupted: Corrupted = {end: _at(drawn, places, len(batch)) for end, drawn in batch.corrupted.items()}
        nodes, numbers = numbered(self.entities, triples, corrupted)
        pairs = sum(len(batch) * drawn.entities.shape[1] - len(drawn.masked) for drawn in batch.corrupted.values())
        whole = WholeEdgeBatch(len(batch), len(batch) + pairs)
        return replace(batch, triples=triples, corrupted=corrupted, nodes=nodes, numbers=numbers, whole=whole)

    def _exclude(self, chosen: Triples) -> dict[EdgeType, Array]:
        found = dict[EdgeType, Array]()
        order = np.argsort(chosen.relation, kind="stable")
        cuts = np.searchsorted(chosen.relation[order], np.arange(len(self._relations) + 1))
        for number in np.flatnonzero(np.diff(cuts)):
            kind, reverse = self._relations[number], self._reverses[number]
            some = order[cuts[number] : cuts[number + 1]]
            head = chosen.head[some] - self.entities.start(kind[0])
            pairs = np.stack([head, chosen.tail[some] - self.entities.start(kind[2])])
            found[kind] = pairs
            if reverse is not None:
                found[reverse] = pairs[::-1].copy()
        return found


def numbered(
    entities: Entities, triples: Triples, corrupted: Mapping[End, DrawnEntities]
) -> tuple[dict[str, Array], Array]:
    """The different vertices of a batch by type, and their entity numbers, ascending."""
    every = triples.head, triples.tail, *(drawn.entities.ravel() for drawn in corrupted.values())
    if entities.count > _DIRECT:
        numbers = np.unique(np.concatenate(every))
    else:
        there = np.zeros(entities.count, np.bool_)
        for some in every:
            there[some] = True
        numbers = np.flatnonzero(there)
    return entities.by_type(numbers)[0], numbers


def _at(drawn: DrawnEntities, places: Array, count: int) -> DrawnEntities:
    k = drawn.entities.shape[1]
    mask = np.zeros((count, k), np.bool_)
    mask.ravel()[drawn.masked] = True
    masked = np.flatnonzero(mask[places])
    if len(drawn.entities) == 1:
        return DrawnEntities(drawn.entities if len(places) else drawn.entities[:0], max(1, len(places)), masked)
    return DrawnEntities(drawn.entities[places // drawn.group], 1, masked)
