"""Rows whose rectifier and dropout are still to be carried out: whoever reads them does, and on the way back too.

Carried out on its own, each would be a pass over the largest matrix of a batch. What is made instead are marks, a byte
for four numbers.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.device.drop import DropKey, apply_marks, mark_rows
from penstock.nn.device.gather import Marks


@dataclass(eq=False)
class Rectified:
    """drop(relu(rows)): `marks` say which numbers are left. SAGE reads it as it is; `settled` is for the others."""

    rows: Tensor
    marks: Marks

    def settled(self) -> Tensor:
        """As a matrix of its own."""
        return cast(Tensor, cast(Any, _Settled).apply(self.rows, self.marks))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        """Of the rows."""
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        """Of the rows."""
        return self.rows.device

    @property
    def requires_grad(self) -> bool:
        """Of the rows."""
        return self.rows.requires_grad

    def dim(self) -> int:
        """A matrix."""
        return 2


def rectified(rows: Tensor, key: DropKey, limit: int, scale: float) -> Rectified:
    """`rows` with the rectifier and dropout marked. A `limit` of 65536 drops nothing."""
    bits = torch.empty(len(rows), -(-rows.shape[1] // 4), dtype=torch.uint8, device=rows.device)
    mark_rows(rows.detach().contiguous(), key, limit, bits)
    return Rectified(rows.contiguous(), Marks(bits, scale))


class _Settled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, marks: Marks) -> Tensor:
        ctx.marks = marks
        return apply_marks(rows.detach().contiguous(), marks.bits, marks.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return apply_marks(grad.contiguous(), ctx.marks.bits, ctx.marks.scale), None
