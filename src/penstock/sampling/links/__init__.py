"""Links as examples: edges become batches with negatives, are held out, and are ranked.

`batcher` turns edge positions into an `EdgeBatch`, and gives each of several workers a part of it; `negatives` has the
policies that choose negatives. `edge_split` holds edges out, and says which training edges carry no messages where the
whole graph is one batch; `edge_ranks` ranks held-out edges among candidates. `known` answers which pairs are true
edges, and which relation is the reverse of another. The neighbourhoods of a batch's vertices come from the node
samplers, which are given `nodes` and `exclude` of the batch.
"""

from typing import Any

from penstock.errors import PenstockError, nearest
from penstock.sampling.links.batcher import EdgeBatch, EdgeBatcher, Exclude, PairBatcher, share_of
from penstock.sampling.links.edge_ranks import ScoreBlock, dot_product, drawn_candidates, ranks, ranks_of_scores
from penstock.sampling.links.edge_split import (
    HeldOutRule,
    Supervision,
    split_and_tell,
    split_edges,
    split_positions,
    supervise,
)
from penstock.sampling.links.known import KnownEdges, Reverse, find_reverse, known_edges
from penstock.sampling.links.negatives import DrawnNegatives, InBatch, Joint, NegativePolicy, Positives, Uniform

NEGATIVES: dict[str, type[NegativePolicy]] = {"uniform": Uniform, "joint": Joint, "in-batch": InBatch}

__all__ = [
    "NEGATIVES",
    "DrawnNegatives",
    "EdgeBatch",
    "EdgeBatcher",
    "Exclude",
    "HeldOutRule",
    "InBatch",
    "Joint",
    "KnownEdges",
    "NegativePolicy",
    "PairBatcher",
    "Positives",
    "Reverse",
    "ScoreBlock",
    "Supervision",
    "Uniform",
    "dot_product",
    "drawn_candidates",
    "find_reverse",
    "known_edges",
    "negatives_named",
    "ranks",
    "ranks_of_scores",
    "share_of",
    "split_and_tell",
    "split_edges",
    "split_positions",
    "supervise",
]


def negatives_named(name: str, **options: Any) -> NegativePolicy:
    """The policy of that name with its options; for an unknown name the error suggests the nearest."""
    if name not in NEGATIVES:
        raise PenstockError(
            f"There is no kind of negatives called {name!r}{nearest(name, NEGATIVES)}", code="unknown-name"
        )
    taken = NEGATIVES[name].__dataclass_fields__
    for option in options:
        if option not in taken:
            raise PenstockError(
                f"{name!r} negatives have no option {option!r}: they take {', '.join(taken)}.", code="unknown-name"
            )
    return NEGATIVES[name](**options)
