"""Scorers by products and of plain pairs, and the base of scorers with a table of relations."""

from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.store.initial_rows import AUTO, IDENTITY, InitialRows, chosen_rows

# The base of scorers with a table of relations. A scorer turns the row of one end and its relation into a *query*: a
# point among the rows that may be at the other end. Scores of a query are then a matrix product or distances, so that
# one query is compared with all entities at once.

End = Literal["source", "destination"]


class ScorerSettings(NamedTuple):
    """The settings of a scorer beside its size."""

    inverse: bool = False
    """Whether each relation has a second vector, which is used to predict heads."""
    margin: float = 9.0
    """The value that distances are subtracted from."""
    distance: int = 1
    """The norm of TransE's distances: 1 or 2."""
    init: str = AUTO
    """The initial values of the relations' vectors, as a job's `embedding_init`."""


class RelationScorer(nn.Module):
    """A scorer with one row of `vectors` for each relation, and one more for its inverse if asked for."""

    vectors: nn.Parameter

    def __init__(self, width: int, relations: int, columns: int, inverse: bool = False) -> None:
        super().__init__()
        self.width, self.relations, self.inverse = width, relations, inverse
        self.vectors = nn.Parameter(torch.empty(relations * (1 + inverse), columns))

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide."""
        raise NotImplementedError

    def begin(self, init: str, auto: InitialRows) -> None:
        """Initialise the vectors as `init` says; `auto` are the values that it means by that word."""
        chosen = chosen_rows(init, auto, *self.vectors.shape)
        if chosen.kind == "normal":
            nn.init.normal_(self.vectors, 0.0, chosen.scale)
        else:
            nn.init.uniform_(self.vectors, -chosen.scale, chosen.scale)

    def combine(self, rows: Tensor, vectors: Tensor, end: End) -> Tensor:
        """Queries for vertices at `end`, from the other end's rows and the relations' vectors."""
        raise NotImplementedError

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores [..., m, k] of each of the queries [..., m, width] with each of the candidates [..., k, width]."""
        raise NotImplementedError

    def match(self, queries: Tensor, rows: Tensor) -> Tensor:
        """Scores of queries with one row each; shapes are broadcast, and the last dimension is reduced."""
        raise NotImplementedError

    def magnitudes(self, rows: Tensor) -> Tensor:
        """The absolute values in rows, of which regularisers sum powers."""
        return rows.abs()

    def query(self, rows: Tensor, relation: Tensor, end: End) -> Tensor:
        """The query for vertices at `end`, for each row of the other end and its relation's number."""
        vectors, end = self.relation_rows(relation, end)
        return self.combine(rows, vectors, end)

    def relation_rows(self, relation: Tensor, end: End) -> tuple[Tensor, End]:
        """The vectors by which vertices at `end` are predicted, and the end that they lead to."""
        if self.inverse and end == "source":
            return self.vectors[relation + self.relations], "destination"
        return self.vectors[relation], end

    def forward(self, h_src: Tensor, h_dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]: the scores; `relation` [pairs] numbers each pair's relation and may be left out
        where there is one.
        """
        if relation is None and self.relations > 1:
            raise PenstockError(
                f"Pairs of {self.relations} relations need a relation number for each pair: pass it.",
                code="option-missing",
            )
        vectors = self.vectors[0] if relation is None else self.vectors[relation]
        return self.match(self.combine(h_src, vectors, "destination"), h_dst)


def check_even(name: str, width: int) -> None:
    """Refuse rows of odd width, which cannot be complex numbers."""
    if width % 2:
        raise PenstockError(
            f"Scorer {name} reads rows as complex numbers, so their width must be even, and it is {width}: change"
            " `embedding`, or `hidden` where the model has layers.",
            code="invalid-value",
        )


def complex_product(a: Tensor, b: Tensor, conjugate: bool = False) -> Tensor:
    """a * b, or a * conj(b), of rows whose first half are real and whose second half imaginary parts."""
    (x, y), (u, v) = a.chunk(2, -1), b.chunk(2, -1)
    if conjugate:
        v = -v
    return torch.cat([x * u - y * v, x * v + y * u], -1)


def complex_magnitudes(rows: Tensor) -> Tensor:
    """The absolute values of complex numbers, bounded away from zero, where they have no gradient."""
    x, y = rows.chunk(2, -1)
    return (x.square() + y.square() + 1e-30).sqrt()


# Scorers by products: DistMult (Yang et al., 2015) and ComplEx (Trouillon et al., 2016).


class _ProductScorer(RelationScorer):
    """Scores by the dot product of a query and a row."""

    def _begin_products(self, init: str, real: int) -> None:
        """Vectors are initialised like the rows of entities; with `identity` the first `real` columns are around one.

        An untrained scorer is then the dot product, in which every entity is its own best answer. Symmetric relations
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
        """The absolute values of the complex numbers."""
        return complex_magnitudes(rows)


# Scorers of plain pairs, and the classifier of edges.


class DotScorer(nn.Module):
    """Scores a pair by the dot product h_src . h_dst."""

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide; settings are ignored."""
        return cls()

    def forward(self, h_src: Tensor, h_dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]: the scores; relations are ignored."""
        return (h_src * h_dst).sum(dim=-1)


class MLPScorer(nn.Module):
    """An MLP on h_src * h_dst."""

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or width
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide; settings are ignored."""
        return cls(width)

    def forward(self, h_src: Tensor, h_dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]: the scores; relations are ignored."""
        result: Tensor = self.layers(h_src * h_dst).squeeze(-1)
        return result


class EdgeClassifier(nn.Module):
    """Classifies edges by an MLP on both ends, their difference and their product."""

    def __init__(self, width: int, out: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or width
        self.layers = nn.Sequential(nn.Linear(4 * width, hidden), nn.ReLU(), nn.Linear(hidden, out))

    def forward(self, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """Logits of shape [edges, out]."""
        ends = torch.cat([h_src, h_dst, (h_src - h_dst).abs(), h_src * h_dst], dim=-1)
        result: Tensor = self.layers(ends)
        return result
