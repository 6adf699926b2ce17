"""How long before its seed's time an edge was, as numbers that layers can read (Xu et al., ICLR 2020, TGAT)."""

from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.nn.edge_messages import edge_features
from penstock.sampling.block import Block
from penstock.traced import tensor_of


class TimeEncoding(nn.Module):
    """cos(w * age + b), `width` numbers for each edge. Frequencies w begin between 1 and 1e-9, and are learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.logspace(0, -9, width))
        self.phase = nn.Parameter(torch.zeros(width))

    def forward(self, block: Block) -> Tensor:
        """[edges, width]."""
        if block.ages is None:
            raise PenstockError(
                "The layer encodes how old edges are, and the block does not say it: sample by `time`, with ages.",
                code="mismatched-inputs",
            )
        ages: Any = block.ages
        given: Tensor = ages if isinstance(ages, Tensor) else tensor_of(ages)
        return torch.cos(given.to(self.frequency.dtype)[:, None] * self.frequency + self.phase)


def edge_inputs(block: Block, width: int, encoding: TimeEncoding | None) -> Tensor:
    """What a layer reads of each edge: `width` numbers that it carries, and how old it is."""
    parts = [edge_features(block, width)] if width else []
    if encoding is not None:
        parts.append(encoding(block))
    return parts[0] if len(parts) == 1 else torch.cat([part.to(parts[-1].dtype) for part in parts], dim=1)
