"""Distances between complex rows: the sum of the absolute values of the differences of their numbers.

There is no matrix product for them, and an array of all differences is `width` times as large as the result. On the
host a kernel makes each distance at once, and its gradients likewise, and so does one of `nn.device` on a GPU. For
other types of numbers torch makes the array.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.blocks import ranges
from penstock.kernels import njit
from penstock.nn.device.distances import device_distances
from penstock.nn.scorers.relations import complex_magnitudes
from penstock.nn.threads import run_chunks

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
    """Of groups [g, m, width] and [g, k, width] on the host."""

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
        # Pieces of whole groups where there are several: each then has its candidates for itself.
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
    """[..., 2, half]: an index that is a sum keeps kernels from using vector instructions."""
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
