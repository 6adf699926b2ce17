"""Scorers of pairs alone, and the classifier of edges."""

from typing import Self

import torch
from torch import Tensor, nn

from penstock.nn.scorers.relations import ScorerSettings


class DotScorer(nn.Module):
    """Scores a pair by the dot product h_src . h_dst."""

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide; there is nothing to set."""
        return cls()

    def forward(self, h_src: Tensor, h_dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]; relations make no difference."""
        return (h_src * h_dst).sum(dim=-1)


class MLPScorer(nn.Module):
    """A small network on h_src * h_dst."""

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or width
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide; there is nothing to set."""
        return cls(width)

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
