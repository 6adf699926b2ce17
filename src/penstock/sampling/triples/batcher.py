"""From positions of triples to a batch: ends, negatives, and the vertices whose rows they need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.sampling.key import BatchKey
from penstock.sampling.links.batch import WholeEdgeBatch
from penstock.sampling.links.known import End
from penstock.sampling.triples.known import KnownTriples
from penstock.sampling.triples.negatives import DrawnEntities, TripleNegatives, weight_sums
from penstock.sampling.triples.triple_set import Entities, Triples, reverse_of

Corrupted = dict[End, DrawnEntities]


@dataclass(eq=False)
class TripleBatch:
    """Triples, and by end what replaces it. `nodes` are the different vertices of all of them by node type, ascending;
    `numbers` their entity numbers, ascending: a row of the model's outputs, types one behind the other, for each.

    `exclude` are the pairs by edge type that a sampler must not draw. `whole` is of the batch that this is a share of.
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

    `known` are the triples that filtered negatives avoid. `edge_types` are those of the graph that messages go along:
    a batch's own triples, and their reverses, are excluded from them; there are none where nothing is sent along edges.
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
        """Some triples of a batch with what stands against them; nothing is drawn anew, and `exclude` stays whole."""
        return share_of(batch, places, self.entities)

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
    there = np.zeros(entities.count, np.bool_)
    for some in (triples.head, triples.tail, *(drawn.entities.ravel() for drawn in corrupted.values())):
        there[some] = True
    numbers = np.flatnonzero(there)
    return entities.by_type(numbers)[0], numbers


def share_of(batch: TripleBatch, places: Array, entities: Entities) -> TripleBatch:
    """The triples at some places of a batch, with what stands against them in the whole batch."""
    triples = batch.triples.at(places)
    corrupted: Corrupted = {end: _at(drawn, places, len(batch)) for end, drawn in batch.corrupted.items()}
    nodes, numbers = numbered(entities, triples, corrupted)
    pairs = sum(len(batch) * drawn.entities.shape[1] - len(drawn.masked) for drawn in batch.corrupted.values())
    return replace(
        batch,
        triples=triples,
        corrupted=corrupted,
        nodes=nodes,
        numbers=numbers,
        whole=WholeEdgeBatch(len(batch), len(batch) + pairs),
    )


def _at(drawn: DrawnEntities, places: Array, count: int) -> DrawnEntities:
    k = drawn.entities.shape[1]
    mask = np.zeros((count, k), np.bool_)
    mask.ravel()[drawn.masked] = True
    masked = np.flatnonzero(mask[places])
    if len(drawn.entities) == 1:
        return DrawnEntities(drawn.entities if len(places) else drawn.entities[:0], max(1, len(places)), masked)
    return DrawnEntities(drawn.entities[places // drawn.group], 1, masked)
