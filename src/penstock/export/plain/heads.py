"""Heads of tasks on edges: scores of pairs and triples, classes of edges."""

import torch
from torch import Tensor, nn


class Dot(nn.Module):
    """Scores a pair by the inner product of its rows."""

    def forward(self, source: Tensor, target: Tensor, relation: Tensor | None = None) -> Tensor:
        return (source * target).sum(-1)


class PairMlp(nn.Module):
    """Scores a pair by an MLP on the elementwise product of its rows."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, source: Tensor, target: Tensor, relation: Tensor | None = None) -> Tensor:
        result: Tensor = self.layers(source * target).squeeze(-1)
        return result


class EdgeClassifier(nn.Module):
    """Classifies edges by the rows of both ends."""

    def __init__(self, width: int, hidden: int, width_out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4 * width, hidden), nn.ReLU(), nn.Linear(hidden, width_out))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [edges, classes], from the rows of the edges' ends."""
        ends = torch.cat([source, target, (source - target).abs(), source * target], dim=-1)
        result: Tensor = self.layers(ends)
        return result


class RelationScorer(nn.Module):
    """DistMult, ComplEx, TransE or RotatE. Rows of `vectors` past those of the relations are their inverses'."""

    def __init__(self, form: str, rows: int, columns: int, margin: float = 0.0, distance: int = 1) -> None:
        super().__init__()
        self.form, self.margin, self.distance = form, margin, distance
        self.vectors = nn.Parameter(torch.zeros(rows, columns))

    def forward(self, source: Tensor, target: Tensor, relation: Tensor | None = None) -> Tensor:
        """[triples]: how well a head and a tail fit a relation."""
        vectors = self.vectors[0] if relation is None else self.vectors[relation]
        if self.form == "distmult":
            return (source * vectors * target).sum(-1)
        if self.form == "transe":
            apart: Tensor = torch.linalg.vector_norm(source + vectors - target, ord=self.distance, dim=-1)
            return self.margin - apart
        if self.form == "complex":
            return (_product(source, vectors) * target).sum(-1)
        real, imaginary = (_product(source, torch.cat([vectors.cos(), vectors.sin()], -1)) - target).chunk(2, -1)
        return self.margin - (real.square() + imaginary.square() + 1e-30).sqrt().sum(-1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The product of complex numbers stored as real parts followed by imaginary parts."""
    (x, y), (u, v) = a.chunk(2, -1), b.chunk(2, -1)
    return torch.cat([x * u - y * v, x * v + y * u], -1)
