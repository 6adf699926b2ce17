"""Layers that look at no neighbour: the baseline."""

from collections.abc import Sequence

from torch import Tensor, nn

from penstock.nn.layers.relations import own_terms
from penstock.sampling.block import Block, TypedBlock


class DenseLayer(nn.Module):
    """A linear map of the destination rows."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]."""
        result: Tensor = self.linear(x[: block.num_dst])
        return result


class TypedDenseLayer(nn.Module):
    """A linear map of each type's destination rows."""

    def __init__(self, width_in: int, width_out: int, node_types: Sequence[str]) -> None:
        super().__init__()
        self.node_types = list(node_types)
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in node_types)

    def forward(self, block: TypedBlock, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[num_dst[t], out] of every type t that has rows to compute and its weights here."""
        return own_terms(block, x, dict(zip(self.node_types, self.own, strict=True)))
