"""Distances between rows on a GPU, differentiable: no array of all differences is made, forward or backward."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.traced import launches

_FORWARD = {"BLOCK_L": 16, "BLOCK_R": 32, "BLOCK_C": 8}
_BACKWARD = {"BLOCK_L": 16, "BLOCK_R": 8, "BLOCK_C": 16}
"""Rows and columns of a tile, whose sums fit the registers of four warps."""


def device_distances(left: Tensor, right: Tensor, complex_rows: bool) -> Tensor:
    """[g, m, k] of float32 rows [g, m, width] and [g, k, width]: the sums of the absolute values of the differences.

    With `complex_rows` the first half of a row are real parts and the second half imaginary ones.
    """
    return cast(Tensor, cast(Any, _Distances).apply(left, right, complex_rows))


class _Distances(torch.autograd.Function):
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
        to_left = _gradients(left, right, given, right.shape[1], 1, ctx.complex_rows)
        return to_left, _gradients(right, left, given, 1, right.shape[1], ctx.complex_rows), None


def _gradients(
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
