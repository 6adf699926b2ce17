"""The triples of a graph whose relations are edge types, and one numbering of the entities of all node types."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.sampling.links.known import End, lower_bound

_REVERSED = "rev-"


class Triples(NamedTuple):
    """Heads and tails by entity number, relations by their position in `relations_of`; int64 each."""

    head: Array
    relation: Array
    tail: Array

    @property
    def total(self) -> int:
        """The number of triples in the set."""
        return len(self.head)

    def at(self, places: Array | slice) -> "Triples":
        """The triples at some positions."""
        return Triples(*(column[places] for column in self))

    def end(self, end: End) -> Array:
        """The entities at one end."""
        return self.head if end == "source" else self.tail

    @staticmethod
    def joined(some: Iterable["Triples"]) -> "Triples":
        """One set of the triples of several, concatenated in order."""
        none = Triples(*(np.empty(0, np.int64) for _ in range(3)))
        return Triples(*(np.concatenate(columns) for columns in zip(none, *some, strict=True)))


class Entities:
    """One number for each vertex of the types that relations join: types in stored order, one after the other."""

    def __init__(self, counts: Mapping[str, int], relations: Sequence[EdgeType]) -> None:
        joined = {kind[0] for kind in relations} | {kind[2] for kind in relations}
        self.types = [name for name in counts if name in joined]
        self.starts = np.cumsum([0, *(counts[name] for name in self.types)])
        place = {name: number for number, name in enumerate(self.types)}
        ends = np.array([[place[kind[0]], place[kind[2]]] for kind in relations], np.int64).reshape(-1, 2)
        self._low = {"source": self.starts[ends[:, 0]], "destination": self.starts[ends[:, 1]]}
        self._high = {"source": self.starts[ends[:, 0] + 1], "destination": self.starts[ends[:, 1] + 1]}

    @property
    def count(self) -> int:
        """The number of entities of all types."""
        return int(self.starts[-1])

    def start(self, node_type: str) -> int:
        """The number of a type's first vertex."""
        return int(self.starts[self.types.index(node_type)])

    def limits(self, relation: Array, end: End) -> tuple[Array, Array]:
        """The range [low, high) of entities that can be at an end of each relation."""
        return self._low[end][relation], self._high[end][relation]

    def by_type(self, numbers: Array) -> tuple[dict[str, Array], Array]:
        """Vertices by type, given ascending, different numbers; types without any are left out. Order is kept."""
        cuts = np.searchsorted(numbers, self.starts)
        found = {
            name: numbers[first:last] - start
            for name, start, first, last in zip(self.types, self.starts, cuts, cuts[1:], strict=False)
            if last > first
        }
        return found, cuts


def relations_of(edge_types: Iterable[EdgeType]) -> list[EdgeType]:
    """The relations of triples: all edge types but those that `reverse_edges` adds for messages."""
    kinds = list(edge_types)
    return [kind for kind in kinds if not _is_reverse(kind, kinds)]


def reverse_of(kind: EdgeType, edge_types: Iterable[EdgeType]) -> EdgeType | None:
    """The edge type that `reverse_edges` adds for a relation; None where there is none."""
    other = kind[2], f"{_REVERSED}{kind[1]}", kind[0]
    return other if other in edge_types else None


def _is_reverse(kind: EdgeType, kinds: Sequence[EdgeType]) -> bool:
    if not kind[1].startswith(_REVERSED):
        return False
    return (kind[2], kind[1].removeprefix(_REVERSED), kind[0]) in kinds


def training_triples(graph: Graph, relations: Sequence[EdgeType], entities: Entities) -> Triples:
    """The triples in the lists, relation by relation, each in the order of its list."""
    return Triples.joined(
        Triples(
            np.asarray(graph.edges[kind].indices, np.int64) + entities.start(kind[0]),
            np.full(graph.edges[kind].count, number, np.int64),
            graph.edges[kind].destinations().astype(np.int64) + entities.start(kind[2]),
        )
        for number, kind in enumerate(relations)
    )


def held_out_triples(graph: Graph, relations: Sequence[EdgeType], entities: Entities, split: str) -> Triples:
    """The triples that are held out of the lists for a split, relation by relation."""
    found = []
    for number, kind in enumerate(relations):
        pairs = np.asarray(graph.edges[kind].held_out.get(split, np.empty((0, 2), np.int64)), np.int64)
        ends = pairs[:, 0] + entities.start(kind[0]), pairs[:, 1] + entities.start(kind[2])
        found.append(Triples(ends[0], np.full(len(pairs), number, np.int64), ends[1]))
    return Triples.joined(found)


# Which triples are true: sorted lists of the entities at one end, by relation and the other end.


class _Index(NamedTuple):
    keys: Array
    """relation * entities + entity at the other end, ascending."""
    others: Array
    """The entity at this end, ascending among equal keys; no pair of both twice."""


class KnownTriples:
    """True triples among `entities` entities, looked up from either end."""

    def __init__(self, triples: Triples, entities: int) -> None:
        self._entities = entities
        self._index = {
            "destination": _sorted(triples.relation * entities + triples.head, triples.tail),
            "source": _sorted(triples.relation * entities + triples.tail, triples.head),
        }

    def keys(self, relation: Array, kept: Array) -> Array:
        """The keys by which the index is sorted."""
        return np.asarray(relation * self._entities + kept)

    def index(self, end: End) -> tuple[Array, Array]:
        """Sorted keys (see `keys`), and the entities at `end` that make true triples with them."""
        return self._index[end]

    def bounds(self, relation: Array, kept: Array, end: End) -> tuple[Array, Array]:
        """The range of the index that has the true entities at `end` for each relation and other end."""
        keys, sought = self._index[end].keys, self.keys(relation, kept)
        return np.searchsorted(keys, sought, "left"), np.searchsorted(keys, sought, "right")

    def occurrences(self, triples: Triples) -> Array:
        """How many true triples share each triple's relation and head, and how many its relation and tail, summed."""
        first, last = self.bounds(triples.relation, triples.head, "destination")
        before, behind = self.bounds(triples.relation, triples.tail, "source")
        return np.asarray(last - first + behind - before)

    def contains(self, triples: Triples) -> Array:
        """Whether each triple is true."""
        first, last = self.bounds(triples.relation, triples.head, "destination")
        found = np.empty(triples.total, np.bool_)
        _contains(self._index["destination"].others, first, last, triples.tail, found)
        return found


def _sorted(keys: Array, others: Array) -> _Index:
    order = np.lexsort((others, keys))
    keys, others = keys[order], others[order]
    new = np.ones(len(keys), np.bool_)
    new[1:] = (keys[1:] != keys[:-1]) | (others[1:] != others[:-1])
    return _Index(np.ascontiguousarray(keys[new]), np.ascontiguousarray(others[new]))


@njit(nogil=True, cache=True)
def is_listed(others: Array, first: int, last: int, entity: int) -> bool:
    """Whether an entity is in others[first:last], which ascends."""
    place = lower_bound(others, first, last, entity)
    return bool(place < last and others[place] == entity)


@njit(nogil=True, cache=True)
def _contains(others: Array, first: Array, last: Array, entities: Array, found: Array) -> None:
    for i in range(len(entities)):
        found[i] = is_listed(others, first[i], last[i], entities[i])
