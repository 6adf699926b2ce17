"""HGT (Hu et al., WWW 2020): attention over the neighbours of all relations at once, with weights for each relation."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.graph.schema import EdgeType
from penstock.nn.attention import attend_by_scores
from penstock.nn.drop import drop_edges, skip_drop
from penstock.nn.edge_messages import of_destinations, of_sources
from penstock.nn.joined_lists import joined_lists
from penstock.nn.layers.relations import own_terms, readable_relations
from penstock.sampling.block import Block, TypedBlock


class HGTLayer(nn.Module):
    """skip * out[type](gelu(attended)) + (1 - skip) * x, where `attended` are `heads` softmax-weighted means over the
    neighbours of all relations of value[type](x_u) M_r.

    Scores are query[type](x_v) . key[type](x_u) A_r times a learned number of relation and head, by the root of a
    head's size. `skip` is learned for each type, and left out where widths differ. With `answer` > 0 a linear map of
    each type makes that many numbers of the result. `dropout` drops shares.
    """

    def __init__(
        self,
        width_in: int,
        width: int,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        heads: int = 1,
        answer: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.dropout = heads, width // heads, dropout
        self.node_types = list(node_types)
        self.source_types = list(dict.fromkeys(source for source, _, _ in edge_types))
        self._place = {kind: place for place, kind in enumerate(edge_types)}
        self.query = nn.ModuleList(nn.Linear(width_in, width) for _ in self.node_types)
        self.key = nn.ModuleList(nn.Linear(width_in, width) for _ in self.source_types)
        self.value = nn.ModuleList(nn.Linear(width_in, width) for _ in self.source_types)
        self.own = nn.ModuleList(_Output(width_in, width, answer) for _ in self.node_types)
        shape = len(edge_types), heads, self.size, self.size
        self.relation_key, self.relation_value = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.relation_scale = nn.Parameter(torch.ones(len(edge_types), heads))
        for weight in (self.relation_key, self.relation_value):
            for matrix in weight.flatten(0, 1).unbind():
                nn.init.xavier_uniform_(matrix)

    def forward(self, block: TypedBlock, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[num_dst[t], out] of every type t that has rows to compute and its weights here."""
        queries = own_terms(block, x, dict(zip(self.node_types, self.query, strict=True)))
        parts = dict(readable_relations(block, x, self._place, queries))
        kept = self._kept(parts, x)
        used = {source for source, _, _ in parts}
        named = zip(self.source_types, zip(self.key, self.value, strict=True), strict=True)
        rows = {name: (key(x[name]), value(x[name])) for name, (key, value) in named if name in used}
        result = {}
        for name, own in zip(self.node_types, self.own, strict=True):
            if name not in queries:
                continue
            found = {kind: part for kind, part in parts.items() if kind[2] == name}
            attended = self._attended(found, rows, queries[name], kept) if found else None
            result[name] = own(x[name][: len(queries[name])], attended)
        return result

    def _attended(
        self,
        parts: dict[EdgeType, Block],
        rows: dict[str, tuple[Tensor, Tensor]],
        queries: Tensor,
        kept: dict[EdgeType, Tensor],
    ) -> Tensor:
        """[rows, width]: the means over the neighbours of all relations that end in a type."""
        # One unbinding, as the gradient of a single slice would be as large as all of them.
        scaled = self.relation_key * (self.relation_scale / math.sqrt(self.size))[:, :, None, None]
        of_keys, of_values = scaled.unbind(), self.relation_value.unbind()
        keys, values = [], []
        for kind in parts:
            key, value = rows[kind[0]]
            keys.append(self._by_head(key, of_keys[self._place[kind]]))
            values.append(self._by_head(value, of_values[self._place[kind]]))
        joined = joined_lists(list(parts.values()), [len(each) for each in keys])
        pairs = of_destinations(joined.block, queries) * of_sources(joined.block, torch.cat(keys))
        scores = pairs.view(-1, self.heads, self.size).sum(dim=2)
        shares = joined.rows_of_edges([kept[kind] for kind in parts]) if kept else None
        return attend_by_scores(joined.block, scores, torch.cat(values), shares)

    def _by_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """[rows, width]: each head's columns times its matrix."""
        by_head = x.view(len(x), self.heads, self.size).transpose(0, 1)
        return torch.bmm(by_head, weight).transpose(0, 1).reshape(len(x), self.heads * self.size)

    def _kept(self, parts: dict[EdgeType, Block], x: dict[str, Tensor]) -> dict[EdgeType, Tensor]:
        """What dropout leaves of the shares, [edges, heads] by relation; empty where nothing is dropped."""
        share, kept = self.dropout if self.training else 0.0, {}
        for kind in self._place:
            if kind not in parts:
                # Calls of dropout are numbered alike in every part of a batch.
                skip_drop(share)
            elif share > 0:
                ones = torch.ones(parts[kind].num_edges, self.heads, device=x[kind[0]].device)
                kept[kind] = drop_edges(parts[kind], ones, share, kind)
        return kept


class _Output(nn.Module):
    """What a type makes of what its vertices attended to, and of their own rows."""

    def __init__(self, width_in: int, width: int, answer: int) -> None:
        super().__init__()
        self.width = width
        self.out = nn.Linear(width, width)
        self.skip = nn.Parameter(torch.ones(1)) if width == width_in else None
        self.answer = nn.Linear(width, answer) if answer else None

    def forward(self, x: Tensor, attended: Tensor | None = None) -> Tensor:
        """[rows, out] of the vertices' rows; nothing was attended to where `attended` is None."""
        given = x.new_zeros(len(x), self.width) if attended is None else attended
        result: Tensor = self.out(functional.gelu(given))
        if self.skip is not None:
            share = self.skip.sigmoid()
            result = share * result + (1 - share) * x
        return result if self.answer is None else self.answer(result)
