"""Scores of vertex pairs, from the rows of both ends: for link prediction and edge classification."""

from typing import Literal

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError

ScorerName = Literal["dot", "distmult", "mlp"]


def build_scorer(name: ScorerName, width: int, relations: int = 1) -> nn.Module:
    """A scorer by name: `score(h_src, h_dst, relation=None)` returns one number for each pair."""
    match name:
        case "dot":
            return DotScorer()
        case "distmult":
            return DistMultScorer(width, relations)
        case "mlp":
            return MLPScorer(width)
    raise PenstockError(f"There is no scorer {name!r}: choose dot, distmult or mlp.", code="unknown-name")


class DotScorer(nn.Module):
    """Scores a pair by the dot product h_src . h_dst."""

    def forward(self, h_src: Tensor, h_dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]; relations make no difference."""
        return (h_src * h_dst).sum(dim=-1)


class DistMultScorer(nn.Module):
    """h_src . (vector of the relation * h_dst)."""

    def __init__(self, width: int, relations: int = 1) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(relations, width))
        # Around one, so that an untrained scorer is the dot product.
        nn.init.normal_(self.vectors, 1.0, 0.1)

    def forward(self, h_src: Tensor, h_dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]; `relation` [pairs] numbers each pair's relation and may be left out where there is one."""
        if relation is None and len(self.vectors) > 1:
            raise PenstockError(
                f"Pairs of {len(self.vectors)} relations need a relation number for each pair: pass it.",
                code="option-missing",
            )
        vectors = self.vectors[0] if relation is None else self.vectors[relation]
        return (h_src * vectors * h_dst).sum(dim=-1)


class MLPScorer(nn.Module):
    """A small network on h_src * h_dst."""

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or width
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, h_src: Tensor, h_dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]; relations make no difference."""
        result: Tensor = self.layers(h_src * h_dst).squeeze(-1)
        return result


class EdgeClassifier(nn.Module):
    """Classes of edges: a small network on both ends, their difference and their product."""

    def __init__(self, width: int, out: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or width
        self.layers = nn.Sequential(nn.Linear(4 * width, hidden), nn.ReLU(), nn.Linear(hidden, out))

    def forward(self, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """Logits of shape [edges, out]."""
        ends = torch.cat([h_src, h_dst, (h_src - h_dst).abs(), h_src * h_dst], dim=-1)
        result: Tensor = self.layers(ends)
        return result
