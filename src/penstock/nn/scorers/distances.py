"""Scorers by distances, TransE and RotatE, and the distances between rows that they use, on host and GPU."""

import math
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.nn.scorers.products import (
    End,
    RelationScorer,
    ScorerSettings,
    check_even,
    complex_magnitudes,
    complex_product,
)
from penstock.nn.threads import run_chunks
from penstock.processes import ranges
from penstock.store.initial_rows import AUTO, distance_rows, unit_rows
from penstock.traced import launches

# Distances between rows on a GPU, differentiable, without an array of all differences, forward or backward.

_FORWARD = {"BLOCK_L": 16, "BLOCK_R": 32, "BLOCK_C": 8}
_BACKWARD = {"BLOCK_L": 16, "BLOCK_R": 8, "BLOCK_C": 16}
"""Rows and columns of a tile, whose sums fit the registers of four warps."""


def device_distances(left: Tensor, right: Tensor, complex_rows: bool) -> Tensor:
    """[g, m, k] of float32 rows [g, m, width] and [g, k, width]: the sums of the absolute values of the differences.

    With `complex_rows` the first half of a row are real parts and the second half imaginary ones.
    """
    return cast(Tensor, cast(Any, _DeviceDistances).apply(left, right, complex_rows))


class _DeviceDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, complex_rows: bool) -> Tensor:
        left, right = left.contiguous(), right.contiguous()
        ctx.save_for_backward(left, right)
        ctx.complex_rows = complex_rows
        out = torch.empty((len(left), left.shape[1], right.shape[1]), dtype=torch.float32, device=left.device)
        if out.numel() and launches(left, right, out):
            from penstock.nn.device.distance_kernels import distances

            tiles = -(-left.shape[1] // _FORWARD["BLOCK_L"]), -(-right.shape[1] // _FORWARD["BLOCK_R"])
            half = left.shape[2] // 2 if complex_rows else left.shape[2]
            launch = distances[(len(left) * tiles[0], tiles[1])]
            launch(left, right, out, left.shape[1], right.shape[1], HALF=half, COMPLEX=complex_rows, **_FORWARD)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, None]:
        left, right = ctx.saved_tensors
        given = given.contiguous()
        to_left = _device_gradients(left, right, given, right.shape[1], 1, ctx.complex_rows)
        return to_left, _device_gradients(right, left, given, 1, right.shape[1], ctx.complex_rows), None


def _device_gradients(
    left: Tensor, right: Tensor, given: Tensor, left_step: int, right_step: int, complex_rows: bool
) -> Tensor:
    out = torch.zeros_like(left) if not right.numel() else torch.empty_like(left)
    if left.numel() and right.numel() and launches(left, right, given, out):
        from penstock.nn.device.distance_kernels import gradients

        half = left.shape[2] // 2 if complex_rows else left.shape[2]
        tiles = -(-left.shape[1] // _BACKWARD["BLOCK_L"]), -(-half // _BACKWARD["BLOCK_C"])
        launch = gradients[(len(left) * tiles[0], tiles[1])]
        counts = left.shape[1], right.shape[1]
        launch(left, right, given, out, *counts, left_step, right_step, HALF=half, COMPLEX=complex_rows, **_BACKWARD)
    return out


# Distances between complex rows: the sum of the absolute values of the differences. There is no matrix product for
# them, and an array of all differences is `width` times as large as the result. On the host a kernel computes each
# distance and its gradients at once, and so does one of `nn.device` on a GPU. For other dtypes torch makes the array.

_CHUNKS = 8
"""Pieces of the gradients of one group of candidates: each has an array of its own as large as the candidates."""
_FAST = {"reassoc", "contract", "arcp", "nsz"}


def complex_distances(queries: Tensor, candidates: Tensor) -> Tensor:
    """[..., m, k] of queries [..., m, width] and candidates [..., k, width]; first half real, second imaginary."""
    if queries.dtype != torch.float32 or candidates.dtype != torch.float32:
        return complex_magnitudes(queries.unsqueeze(-2) - candidates.unsqueeze(-3)).sum(-1)
    shape = (*queries.shape[:-1], candidates.shape[-2])
    groups = queries.reshape(-1, *queries.shape[-2:]), candidates.reshape(-1, *candidates.shape[-2:])
    if queries.device.type != "cpu":
        return device_distances(*groups, complex_rows=True).reshape(shape)
    found: Tensor = _Distances.apply(*groups)  # type: ignore[no-untyped-call]
    return found.reshape(shape)


class _Distances(torch.autograd.Function):
    """The distances of groups [g, m, width] and [g, k, width] on the host."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, candidates: Tensor) -> Tensor:
        ctx.save_for_backward(queries, candidates)
        points, rows = _parts(_flat(queries)), _parts(candidates.detach().contiguous().numpy())
        size, out = queries.shape[1], np.empty((len(points), candidates.shape[1]), np.float32)
        pieces = list(ranges(len(points), max(1, -(-len(points) // (4 * _CHUNKS)))))
        run_chunks(lambda _, first, last: _distances(points, rows, size, first, last, out), pieces)
        return torch.from_numpy(out).view(len(queries), size, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        queries, candidates = ctx.saved_tensors
        points, rows = _parts(_flat(queries)), _parts(candidates.detach().contiguous().numpy())
        groups, size = queries.shape[:2]
        given, to_points = _flat(gradients[0]), np.zeros_like(points)
        # Pieces are whole groups where there are several: each then has its candidates for itself.
        step = max(1, -(-groups // _CHUNKS)) * size if groups > 1 else max(1, -(-size // _CHUNKS))
        pieces = list(ranges(len(points), step))
        alone = groups > 1 or len(pieces) == 1
        parts = np.zeros((1 if alone else len(pieces), *rows.shape), np.float32)

        def work(number: int, first: int, last: int) -> None:
            part = parts[0 if alone else number]
            _gradients(points, rows, size, first, last, given, to_points, part)

        run_chunks(work, pieces)
        summed = parts[0] if alone else parts.sum(0)
        return torch.from_numpy(to_points).view_as(queries), torch.from_numpy(summed).view_as(candidates)


def _flat(values: Tensor) -> Array:
    found: Array = values.detach().contiguous().view(-1, values.shape[-1]).numpy()
    return found


def _parts(values: Array) -> Array:
    """[..., 2, half]: computed indices would keep kernels from vectorising."""
    return values.reshape(*values.shape[:-1], 2, values.shape[-1] // 2)


@njit(nogil=True, cache=True, fastmath=_FAST)
def _distances(points: Array, rows: Array, size: int, first: int, last: int, out: Array) -> None:
    half = points.shape[2]
    for i in range(first, last):
        own_x, own_y = points[i, 0], points[i, 1]
        group = rows[i // size]
        for j in range(group.shape[0]):
            other_x, other_y, total = group[j, 0], group[j, 1], np.float32(0)
            for k in range(half):
                x, y = own_x[k] - other_x[k], own_y[k] - other_y[k]
                total += np.sqrt(x * x + y * y)
            out[i, j] = total


@njit(nogil=True, cache=True, fastmath=_FAST)
def _gradients(
    points: Array, rows: Array, size: int, first: int, last: int, given: Array, to_points: Array, to_rows: Array
) -> None:
    half, tiny = points.shape[2], np.float32(1e-30)
    for i in range(first, last):
        own_x, own_y, sum_x, sum_y = points[i, 0], points[i, 1], to_points[i, 0], to_points[i, 1]
        group, others = rows[i // size], to_rows[i // size]
        for j in range(group.shape[0]):
            scale = given[i, j]
            if scale == 0:
                continue
            other_x, other_y, share_x, share_y = group[j, 0], group[j, 1], others[j, 0], others[j, 1]
            for k in range(half):
                x, y = own_x[k] - other_x[k], own_y[k] - other_y[k]
                slope = scale / np.sqrt(x * x + y * y + tiny)
                sum_x[k] += slope * x
                sum_y[k] += slope * y
                share_x[k] -= slope * x
                share_y[k] -= slope * y


# Distances between rows by the sum of absolute differences, or by the root of the sum of squares, without gradients.
# There is no exact matrix product for them: |a|² + |b|² - 2ab loses the digits by which close rows differ, and these
# decide ranks. A kernel computes each distance directly, for some candidates at a time that stay in the cache while all
# queries pass.

_FAST_NORMS = {"reassoc", "contract", "nsz"}
_CACHED = 1 << 16
"""Bytes of candidates that stay in the cache."""
_PIECES = 64
"""Pieces that threads take as they become free."""


def norm_distances(queries: Tensor, candidates: Tensor, norm: int) -> Tensor:
    """[m, k] distances of queries [m, width] and candidates [k, width], float32 on the host; `norm` is 1 or 2."""
    points, rows = (np.ascontiguousarray(each.detach().numpy()) for each in (queries, candidates))
    out = np.empty((len(points), len(rows)), np.float32)
    kernel, block = (_sums if norm == 1 else _roots), max(1, _CACHED // max(1, 4 * rows.shape[1]))
    pieces = list(ranges(len(rows), max(block, -(-len(rows) // _PIECES))))
    run_chunks(lambda _, first, last: kernel(points, rows, first, last, block, out), pieces)
    return torch.from_numpy(out)


@njit(nogil=True, cache=True, fastmath=_FAST_NORMS)
def _sums(points: Array, rows: Array, first: int, last: int, block: int, out: Array) -> None:
    for start in range(first, last, block):
        for i in range(points.shape[0]):
            own = points[i]
            for j in range(start, min(start + block, last)):
                other, total = rows[j], np.float32(0)
                for k in range(own.shape[0]):
                    total += abs(own[k] - other[k])
                out[i, j] = total


@njit(nogil=True, cache=True, fastmath=_FAST_NORMS)
def _roots(points: Array, rows: Array, first: int, last: int, block: int, out: Array) -> None:
    for start in range(first, last, block):
        for i in range(points.shape[0]):
            own = points[i]
            for j in range(start, min(start + block, last)):
                other, total = rows[j], np.float32(0)
                for k in range(own.shape[0]):
                    apart = own[k] - other[k]
                    total += apart * apart
                out[i, j] = np.sqrt(total)


# Scorers by distances: TransE (Bordes et al., 2013) and RotatE (Sun et al., 2019).


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
        self.begin(init, unit_rows(width) if distance == 2 else distance_rows(margin, width))

    @classmethod
    def build(cls, width: int, relations: int, settings: ScorerSettings) -> Self:
        """The scorer of rows `width` wide."""
        return cls(width, relations, settings.inverse, settings.margin, settings.distance, settings.init)

    def combine(self, rows: Tensor, vectors: Tensor, end: End) -> Tensor:
        """h + r for tails, t - r for heads."""
        return rows + vectors if end == "destination" else rows - vectors

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Computed without a matrix product, whose rounding would decide between rows that are close.

        Ranks on the host, which need no gradients, use a kernel's distances.
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
    """`margin` minus the distance between h_src rotated by the relation's angles and h_dst, of complex rows.

    The distance is the sum of the absolute values of the differences of their complex numbers. Angles are initialised
    uniformly, whatever a job's `embedding_init` says about rows.
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
        """Rotated by the angles for tails, by their negatives for heads."""
        return complex_product(rows, torch.cat([vectors.cos(), vectors.sin()], -1), conjugate=end == "source")

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """[..., m, k], without an array of all differences on the host."""
        return self.margin - complex_distances(queries, candidates)

    def match(self, queries: Tensor, rows: Tensor) -> Tensor:
        """One distance for each pair."""
        return self.margin - complex_magnitudes(queries - rows).sum(-1)

    def magnitudes(self, rows: Tensor) -> Tensor:
        """The absolute values of complex numbers; for angles, which have none, the angles themselves."""
        return complex_magnitudes(rows) if rows.shape[-1] == self.width else rows.abs()
