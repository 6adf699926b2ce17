"""What follows a layer, and how the outputs of all layers become one."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayerEnd(nn.Module):
    """The end of a layer: residual, norm, activation."""

    def __init__(self, width_in: int, width_out: int, residual: bool, norm: str, activation: str, bare: bool) -> None:
        super().__init__()
        self.bare, self.activation = bare, activation
        self.residual: nn.Module | None = None
        if residual:
            self.residual = nn.Identity() if width_in == width_out else nn.Linear(width_in, width_out, bias=False)
        norms: dict[str, Any] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
        self.norm: nn.Module | None = None if bare or norm == "none" else norms[norm](width_out)

    def forward(self, y: Tensor, own: Tensor) -> Tensor:
        """The layer's output, from the convolution's output `y` and the layer's input `own`."""
        if self.residual is not None:
            y = y + self.residual(own)
        if self.bare:
            return y
        y = y if self.norm is None else self.norm(y)
        return torch.relu(y) if self.activation == "relu" else functional.elu(y)


class Join(nn.Module):
    """Joins the outputs of all layers to the final one."""

    def __init__(self, jump: str, width_in: int, width_out: int) -> None:
        super().__init__()
        self.jump = jump
        self.head = None if jump == "none" else nn.Linear(width_in, width_out)

    def forward(self, outputs: list[Tensor]) -> Tensor:
        if self.head is None:
            return outputs[-1]
        rows = torch.cat(outputs, dim=1) if self.jump == "cat" else torch.stack(outputs).amax(dim=0)
        result: Tensor = self.head(rows)
        return result
