"""Attention on typed blocks: within each relation, summed over relations, beside the vertex itself."""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from penstock.graph.schema import EdgeType
from penstock.nn.layers.gat import GATLayer
from penstock.nn.layers.relations import own_terms, readable_relations
from penstock.sampling.block import TypedBlock


class TypedGATLayer(nn.Module):
    """own[type](x) + sum over relations of their own GAT; a vertex is no neighbour of itself."""

    def __init__(
        self,
        width_in: int,
        out_per_head: int,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        heads: int = 1,
        concat: bool = True,
        v2: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.node_types = list(node_types)
        self._place = {kind: place for place, kind in enumerate(edge_types)}
        width_out = heads * out_per_head if concat else out_per_head
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in node_types)
        self.relations = nn.ModuleList(
            GATLayer(
                width_in,
                out_per_head,
                heads,
                concat,
                v2,
                self_loop=False,
                dropout=dropout,
                bias=False,
                two_sided=True,
            )
            for _ in edge_types
        )

    def forward(self, block: TypedBlock, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[num_dst[t], out] of every type t that has rows to compute and its weights here."""
        result = own_terms(block, x, dict(zip(self.node_types, self.own, strict=True)))
        parts = dict(readable_relations(block, x, self._place, result))
        for kind, place in self._place.items():
            source, _, target = kind
            attention = cast(GATLayer, self.relations[place])
            if kind not in parts:
                attention.without_edges()
                continue
            part = parts[kind]
            result[target] = result[target] + attention(part, x[source], x[target][: part.num_dst], kind)
        return result
