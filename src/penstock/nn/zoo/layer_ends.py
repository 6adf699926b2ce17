"""What stands behind convolutions in a model: residual, norm, activation, dropout; and the join of all layers."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.nn.device.rectified import Rectified
from penstock.nn.device.rows import TableRows
from penstock.nn.drop import drop, rectify_later, relu_drop, skip_drop
from penstock.nn.norm import BatchNorm
from penstock.nn.options import ModelOptions


class LayerEnd(nn.Module):
    """dropout(activation(norm(y + own))) of a convolution's rows y; only y + own behind the last layer."""

    def __init__(self, options: ModelOptions, width_in: int, width_out: int, last: bool) -> None:
        super().__init__()
        self.bare, self.dropout, self.activation = last, options.dropout, options.activation
        self.residual: nn.Module | None = None
        if options.residual:
            same = width_in == width_out
            self.residual = nn.Identity() if same else nn.Linear(width_in, width_out, bias=False)
        self.norm = None if last else _norm(options.norm, width_out)

    def forward(self, y: Tensor, own: Tensor | TableRows | None, node_type: str | None = None) -> Tensor:
        """The layer's rows, of the convolution's; `own` is the input, whose first rows are the same vertices'.

        `node_type` is the rows' type, in a batch of several.
        """
        if self.residual is not None and own is not None:
            y = y + self.residual(own[: len(y)])
        if self.bare:
            return y
        if self.norm is not None:
            y = self.norm(y)
        if self.activation == "relu":
            return relu_drop(y, self._share, node_type)
        return drop(functional.elu(y), self._share, node_type)

    def without_rows(self) -> None:
        """What stands for `forward` where a part of a batch has no rows to compute."""
        if self.batch_norm is not None:
            self.batch_norm.without_rows()
        if not self.bare:
            skip_drop(self._share)

    def rectify_later(self, y: Tensor) -> Rectified:
        """The same without a residual, activation and dropout left to whoever reads the rows."""
        if self.norm is not None:
            y = self.norm(y)
        return rectify_later(y, self._share)

    @property
    def _share(self) -> float:
        """How much is dropped now."""
        return self.dropout if self.training else 0.0

    @property
    def batch_norm(self) -> BatchNorm | None:
        """Its norm, where that is a batch's."""
        return self.norm if isinstance(self.norm, BatchNorm) else None


class Join(nn.Module):
    """All layers' outputs of the same rows to the final one: the last, or a linear head on all of them."""

    def __init__(self, options: ModelOptions, out: int) -> None:
        super().__init__()
        self.jump = options.jump
        width = options.hidden * options.layers if options.jump == "cat" else options.hidden
        self.head = None if options.jump == "none" else nn.Linear(width, out)

    def forward(self, outputs: list[Tensor]) -> Tensor:
        """The joined rows, of shape [rows, out]."""
        if self.head is None:
            return outputs[-1]
        rows = torch.cat(outputs, dim=1) if self.jump == "cat" else torch.stack(outputs).amax(dim=0)
        result: Tensor = self.head(rows)
        return result


def layer_widths(options: ModelOptions, width: int, out: int) -> list[tuple[int, int]]:
    """Widths in and out of every layer; with jumping knowledge the head makes `out`."""
    last = out if options.jump == "none" else options.hidden
    widths = [width] + [options.hidden] * (options.layers - 1) + [last]
    return list(pairwise(widths))


def _norm(name: str, width: int) -> nn.Module | None:
    if name == "none":
        return None
    return BatchNorm(width) if name == "batch" else nn.LayerNorm(width)
