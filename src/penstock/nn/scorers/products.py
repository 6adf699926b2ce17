"""Scorers by products: DistMult (Yang et al., 2015) and ComplEx (Trouillon et al., 2016)."""

from typing import Self

from torch import Tensor, nn

from penstock.nn.scorers.relations import (
    End,
    RelationScorer,
    ScorerSettings,
    check_even,
    complex_magnitudes,
    complex_product,
)
from penstock.store.initial_rows import AUTO, IDENTITY, InitialRows


class _ProductScorer(RelationScorer):
    """Scores by the dot product of a query and a row."""

    def _begin_products(self, init: str, real: int) -> None:
        """Vectors are drawn like the rows of entities; with `identity` the `real` first columns are around one.

        An untrained scorer is the dot product then, in which every entity is its own best answer. Symmetric relations
        between entities without features do not recover from that.
        """
        if init != IDENTITY:
            self.begin(init, InitialRows("normal", 0.1))
            return
        if real < self.width:
            nn.init.normal_(self.vectors, 0.0, 0.1)
        nn.init.normal_(self.vectors.data[:, :real], 1.0, 0.1)

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """[..., m, k], as one matrix product."""
        return queries @ candidates.transpose(-1, -2)

    def match(self, queries: Tensor, rows: Tensor) -> Tensor:
        """One product for each pair."""
        return (queries * rows).sum(dim=-1)


class DistMultScorer(_ProductScorer):
    """h_src . (vector of the relation * h_dst)."""

    def __init__(self, width: int, relations: int = 1, inverse: bool = False, init: str = AUTO) -> None:
        super().__init__(width, relations, width, inverse)
        self._begin_products(init, width)

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide."""
        return cls(width, relations, settings.inverse, settings.init)

    def combine(self, rows: Tensor, vectors: Tensor, end: End) -> Tensor:
        """The same for both ends: DistMult scores a triple and its reverse alike."""
        return rows * vectors


class ComplExScorer(_ProductScorer):
    """The real part of h_src . (vector of the relation * conj(h_dst)), of rows read as complex numbers."""

    def __init__(self, width: int, relations: int = 1, inverse: bool = False, init: str = AUTO) -> None:
        check_even("complex", width)
        super().__init__(width, relations, width, inverse)
        self._begin_products(init, width // 2)

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide."""
        return cls(width, relations, settings.inverse, settings.init)

    def combine(self, rows: Tensor, vectors: Tensor, end: End) -> Tensor:
        """h * r for tails, t * conj(r) for heads."""
        return complex_product(rows, vectors, conjugate=end == "source")

    def magnitudes(self, rows: Tensor) -> Tensor:
        """Of complex numbers."""
        return complex_magnitudes(rows)
