"""Scorers by distances: TransE (Bordes et al., 2013) and RotatE (Sun et al., 2019)."""

import math
from typing import Self

import torch
from torch import Tensor, nn

from penstock.nn.device.distances import device_distances
from penstock.nn.scorer_table import initial_rows
from penstock.nn.scorers.complex_distance import complex_distances
from penstock.nn.scorers.norm_distance import norm_distances
from penstock.nn.scorers.relations import (
    End,
    RelationScorer,
    ScorerSettings,
    check_even,
    complex_magnitudes,
    complex_product,
)
from penstock.store.initial_rows import AUTO


class TransEScorer(RelationScorer):
    """`margin` minus the distance between h_src + vector of the relation and h_dst; `distance` is its norm, 1 or 2."""

    def __init__(
        self,
        width: int,
        relations: int = 1,
        inverse: bool = False,
        margin: float = 9.0,
        distance: int = 1,
        init: str = AUTO,
    ) -> None:
        super().__init__(width, relations, width, inverse)
        self.margin, self.distance = margin, distance
        self.begin(init, initial_rows(AUTO, "transe", relations, width, margin, distance))

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide."""
        return cls(width, relations, settings.inverse, settings.margin, settings.distance, settings.init)

    def combine(self, rows: Tensor, vectors: Tensor, end: End) -> Tensor:
        """h + r for tails, t - r for heads."""
        return rows + vectors if end == "destination" else rows - vectors

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Without a matrix product, whose rounding would decide between rows that are close.

        Ranks on the host, which need no gradients, are made of a kernel's distances.
        """
        if queries.dim() == 2 and not torch.is_grad_enabled() and _on_host(queries, candidates):
            return self.margin - norm_distances(queries, candidates, self.distance)
        on_device = queries.device.type != "cpu" and queries.dtype == candidates.dtype == torch.float32
        if on_device and self.distance == 1:
            groups = queries.reshape(-1, *queries.shape[-2:]), candidates.reshape(-1, *candidates.shape[-2:])
            apart = device_distances(*groups, complex_rows=False)
            return self.margin - apart.reshape(*queries.shape[:-1], candidates.shape[-2])
        mode = "donot_use_mm_for_euclid_dist"
        return self.margin - torch.cdist(queries, candidates, p=float(self.distance), compute_mode=mode)

    def match(self, queries: Tensor, rows: Tensor) -> Tensor:
        """One distance for each pair."""
        apart: Tensor = torch.linalg.vector_norm(queries - rows, ord=self.distance, dim=-1)
        return self.margin - apart


def _on_host(*rows: Tensor) -> bool:
    return all(each.device.type == "cpu" and each.dtype == torch.float32 for each in rows)


class RotatEScorer(RelationScorer):
    """`margin` minus the distance between h_src turned by the relation's angles and h_dst, of complex rows.

    The distance is the sum of the absolute values of the differences of their complex numbers. Angles begin anywhere,
    whatever a job's `embedding_init` says of rows.
    """

    def __init__(self, width: int, relations: int = 1, inverse: bool = False, margin: float = 9.0) -> None:
        check_even("rotate", width)
        super().__init__(width, relations, width // 2, inverse)
        self.margin = margin
        nn.init.uniform_(self.vectors, -math.pi, math.pi)

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide."""
        return cls(width, relations, settings.inverse, settings.margin)

    def combine(self, rows: Tensor, vectors: Tensor, end: End) -> Tensor:
        """Turned by the angles for tails, turned back for heads."""
        return complex_product(rows, torch.cat([vectors.cos(), vectors.sin()], -1), conjugate=end == "source")

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """[..., m, k], without an array of all differences on the host."""
        return self.margin - complex_distances(queries, candidates)

    def match(self, queries: Tensor, rows: Tensor) -> Tensor:
        """One distance for each pair."""
        return self.margin - complex_magnitudes(queries - rows).sum(-1)

    def magnitudes(self, rows: Tensor) -> Tensor:
        """Of complex numbers; turning by an angle has none, and the angles count as they are."""
        return complex_magnitudes(rows) if rows.shape[-1] == self.width else rows.abs()
