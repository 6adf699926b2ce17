"""Which triples are true: sorted lists of the entities that stand at one end, by relation and the other end."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.sampling.links.known import End, lower_bound
from penstock.sampling.triples.triple_set import Triples


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
        """By what the index is sorted."""
        return np.asarray(relation * self._entities + kept)

    def index(self, end: End) -> tuple[Array, Array]:
        """Sorted keys of `keys`, and the entities at `end` that make true triples with them."""
        return self._index[end]

    def bounds(self, relation: Array, kept: Array, end: End) -> tuple[Array, Array]:
        """From where to where the index has the true entities at `end` of each relation and other end."""
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
