"""The first layer of an RGCN on vertices without features: its weight matrices have a row for each vertex."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from penstock.graph.schema import EdgeType
from penstock.nn.aggregation import Reduce, aggregate
from penstock.nn.layers.relations import own_terms, readable_relations
from penstock.sampling.block import TypedBlock


class OneHotRGCNLayer(nn.Module):
    """own part of x + bias[type] + sum over relations of the aggregate of its neighbours' mixed parts.

    It is the RGCN layer of one-hot input, where a weight matrix has a row for each vertex. Those rows come as x: the
    first `width_out` numbers of a vertex are its row of the weight of the vertex itself, the next its rows of `bases`
    matrices. A relation's weight is a mixture of the bases.
    """

    def __init__(
        self,
        width_out: int,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        bases: int,
        aggregate: Reduce = "mean",
    ) -> None:
        super().__init__()
        self.reduce, self.bases, self.width = aggregate, bases, width_out
        self.node_types = list(node_types)
        self._place = {kind: place for place, kind in enumerate(edge_types)}
        self.own = nn.ModuleList(_OwnPart(width_out) for _ in node_types)
        self.mixture = nn.Parameter(torch.empty(len(edge_types), bases))
        nn.init.xavier_uniform_(self.mixture)

    def forward(self, block: TypedBlock, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[num_dst[t], width_out] of every type t that has rows to compute."""
        result = own_terms(block, x, dict(zip(self.node_types, self.own, strict=True)))
        parts = dict(readable_relations(block, x, self._place, result))
        for source in dict.fromkeys(kind[0] for kind in parts):
            kinds = [kind for kind in parts if kind[0] == source]
            for kind, rows in zip(kinds, self._mixed(x[source], kinds), strict=True):
                result[kind[2]] = result[kind[2]] + aggregate(parts[kind], rows.contiguous(), self.reduce)
        return result

    def _mixed(self, x: Tensor, kinds: list[EdgeType]) -> tuple[Tensor, ...]:
        """For each relation, [rows, width_out]: the bases' parts of x, mixed by its coefficients."""
        rows = x[:, self.width :].reshape(len(x), self.bases, self.width)
        mixture = self.mixture[[self._place[kind] for kind in kinds]]
        return torch.einsum("nbo,rb->rno", rows, mixture).unbind()


class _OwnPart(nn.Module):
    """The first columns of x and a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : len(self.bias)] + self.bias
