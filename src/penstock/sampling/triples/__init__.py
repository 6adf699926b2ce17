"""Triples (head, relation, tail) of all relations of a graph as examples: batches, negatives, filtered ranks.

`triple_set` reads the triples of a graph, numbers the entities of all node types in one sequence, and answers which
triples are true; `batcher` makes batches, and draws the entities that replace an end as negatives; `ranks` ranks
triples among those with one end replaced.
"""

from penstock.sampling.triples.batcher import (
    TRIPLE_NEGATIVES,
    DrawnEntities,
    TripleBatch,
    TripleBatcher,
    TripleNegatives,
    triple_negatives,
)
from penstock.sampling.triples.ranks import filtered_ranks
from penstock.sampling.triples.triple_set import (
    Entities,
    KnownTriples,
    Triples,
    held_out_triples,
    relations_of,
    training_triples,
)

__all__ = [
    "TRIPLE_NEGATIVES",
    "DrawnEntities",
    "Entities",
    "KnownTriples",
    "TripleBatch",
    "TripleBatcher",
    "TripleNegatives",
    "Triples",
    "filtered_ranks",
    "held_out_triples",
    "relations_of",
    "training_triples",
    "triple_negatives",
]
