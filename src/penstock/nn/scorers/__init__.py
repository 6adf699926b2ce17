"""Scores of vertex pairs, from the rows of both ends: for link prediction and edge classification.

`products` has scorers by products of rows, scorers of plain pairs, and the base of scorers with a table of relations,
for knowledge graphs; `distances` has those that score by distance. A new scorer is a class and a line in
`nn.scorer_table`.
"""

from torch import nn

from penstock.nn.scorer_table import SCORERS
from penstock.nn.scorers.distances import RotatEScorer, TransEScorer
from penstock.nn.scorers.products import (
    ComplExScorer,
    DistMultScorer,
    DotScorer,
    EdgeClassifier,
    End,
    MLPScorer,
    RelationScorer,
    ScorerSettings,
)
from penstock.traced import new_weights

__all__ = [
    "ComplExScorer",
    "DistMultScorer",
    "DotScorer",
    "EdgeClassifier",
    "End",
    "MLPScorer",
    "RelationScorer",
    "RotatEScorer",
    "ScorerSettings",
    "TransEScorer",
    "build_scorer",
]


DEFAULTS = ScorerSettings()


def build_scorer(name: str, width: int, relations: int = 1, settings: ScorerSettings = DEFAULTS) -> nn.Module:
    """A scorer by name: `score(h_src, h_dst, relation=None)` returns one number for each pair."""
    with new_weights():
        scorer: nn.Module = SCORERS[name].build(width, relations, settings)
    return scorer
