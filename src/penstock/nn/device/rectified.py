"""Rows behind a rectifier and dropout whose gradient is still to pass them: whoever returns it lets it pass on the way.

On its own that would be a pass over the largest matrix of a batch, there and back.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.device.drop import DropKey, drop_rows, pass_where_positive
from penstock.nn.device.gather import KeptRows


@dataclass(eq=False)
class Rectified:
    """drop(relu(z)) as `rows`, connected to z as if nothing were between them; what was kept is positive.

    `SAGELayer` knows, and returns what belongs to z. For all others there is `settled`.
    """

    rows: Tensor
    scale: float

    @property
    def kept(self) -> KeptRows:
        """Which numbers of a gradient pass."""
        return KeptRows(self.rows.detach(), self.scale)

    def settled(self) -> Tensor:
        """The rows, connected as they should be."""
        return cast(Tensor, cast(Any, _Settled).apply(self.rows, self.scale))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        """The shape of the rows."""
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows."""
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        return self.rows.device

    @property
    def requires_grad(self) -> bool:
        """Whether the rows require gradients."""
        return self.rows.requires_grad

    def dim(self) -> int:
        """2: the rows form a matrix."""
        return 2


def rectified(z: Tensor, key: DropKey, limit: int, scale: float) -> Rectified:
    """drop(relu(z)) in the place of z, which must not be used afterwards. A `limit` of 65536 drops nothing."""
    return Rectified(cast(Tensor, cast(Any, _InPlace).apply(z.contiguous(), key, limit, scale)), scale)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, key: DropKey, limit: int, scale: float) -> Tensor:
        ctx.mark_dirty(z)
        drop_rows(z.detach(), key, limit, scale, True, z.detach())
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Pass the gradient through: the rectifier's part was applied in place."""
        return grad, None, None, None


class _Settled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(rows)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return pass_where_positive(rows, grad.contiguous(), ctx.scale), None
