"""HGT (Hu et al., WWW 2020): attention over the neighbours of all relations at once, with weights for each relation."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn.aggregation import of_destinations, of_sources
from penstock.nn.attention import attend_by_scores
from penstock.nn.device.attention import attend_dots
from penstock.nn.drop import drop_edges, skip_drop
from penstock.nn.layers.rgcn import own_terms, readable_relations
from penstock.nn.masked import MaskedBlock
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import is_traced, room

# The lists of several relations with the same destinations, as one block, for attention over all of them at once.


class JoinedLists(NamedTuple):
    """A row's lists, one relation after the other. Their sources are all relations' rows, concatenated."""

    block: Block
    places: Any
    """The position of each relation's edges in the joined block, concatenated; an array or tensor,
    as the blocks have.
    """

    def rows_of_edges(self, rows: Sequence[Tensor]) -> Tensor:
        """Rows for the edges of each relation, in the order of the joined block's edges."""
        given = torch.cat(list(rows))
        if is_traced():
            return torch.empty_like(given)
        where = self.places if isinstance(self.places, Tensor) else torch.from_numpy(self.places)
        return torch.empty_like(given).index_copy(0, where, given)


def joined_lists(parts: Sequence[Block], rows: Sequence[int]) -> JoinedLists:
    """Blocks with the same destinations as one block; `rows` are the numbers of their source rows, which are
    concatenated.

    Weights are kept where a block has any, and 1 for others. Blocks of a device must have no spare room.
    """
    if parts[0].on_device:
        return _joined_there(cast(Sequence[DeviceBlock], parts), rows)
    joined = _joined_here(parts, rows)
    if parts[0].mask is None:
        return joined
    return joined._replace(block=MaskedBlock(joined.block, joined.rows_of_edges([part.mask for part in parts])))


def _joined_here(parts: Sequence[Block], rows: Sequence[int]) -> JoinedLists:
    edges, dst = sum(part.num_edges for part in parts), parts[0].num_dst
    indptr, indices, places = room(dst + 1, np.int64), room(edges, np.int32), room(edges, np.int64)
    weights = room(edges, np.float32) if any(part.weights is not None for part in parts) else None
    block = JoinedLists(Block(indptr, indices, sum(rows), weights), places)
    if is_traced():
        return block
    lengths = [np.diff(part.indptr) for part in parts]
    indptr[0] = 0
    np.cumsum(sum(lengths), out=indptr[1:])
    starts, offset, done = indptr[:-1].copy(), 0, 0
    for part, length, count in zip(parts, lengths, rows, strict=True):
        where: Array = np.arange(part.num_edges) + np.repeat(starts - part.indptr[:-1], length)
        places[done : done + part.num_edges] = where
        indices[where] = part.indices + offset
        if weights is not None:
            weights[where] = 1.0 if part.weights is None else part.weights
        starts, offset, done = starts + length, offset + count, done + part.num_edges
    return block


def _joined_there(parts: Sequence[DeviceBlock], rows: Sequence[int]) -> JoinedLists:
    """The same with torch operations, without waiting for the device."""
    device, edges = parts[0].device, sum(part.num_edges for part in parts)
    lengths = [part.lists.diff().long() for part in parts]
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    ends = torch.cat([zero, torch.stack(lengths).sum(dim=0).cumsum(0)])
    starts, offset, places, sources, weights = ends[:-1], 0, [], [], []
    for part, length, count in zip(parts, lengths, rows, strict=True):
        shift = (starts - part.lists[:-1]).repeat_interleave(length, output_size=part.num_edges)
        places.append(torch.arange(part.num_edges, device=device) + shift)
        sources.append(cast(Any, part.indices) + offset)
        given = cast(Any, part.weights)
        weights.append(torch.ones(part.num_edges, device=device) if given is None else given)
        starts, offset = starts + length, offset + count
    where = torch.cat(places)

    def ordered(values: list[Tensor]) -> Any:
        given = torch.cat(values)
        return torch.empty_like(given).index_copy(0, where, given)

    heavy = ordered(weights) if any(part.weights is not None for part in parts) else None
    lists: Any = ends.int()
    assert len(where) == edges
    return JoinedLists(DeviceBlock(lists, ordered(sources), sum(rows), heavy), where)


class HGTLayer(nn.Module):
    """skip * out[type](gelu(attended)) + (1 - skip) * x, where `attended` are `heads` softmax-weighted means over the
    neighbours of all relations of value[type](x_u) M_r.

    Scores are query[type](x_v) . key[type](x_u) A_r times a learned number for each relation and head, divided by the
    root of a head's size. `skip` is learned for each type, and left out where widths differ. With `answer` > 0 a linear
    map for each type computes outputs of that width. `dropout` drops attention coefficients.
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

    def forward(self, block: Block, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[dst_counts[t], out] of every type t that has rows to compute and weights here."""
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
            attend = self._attended_there if all(map(_is_plain, found.values())) else self._attended
            attended = attend(found, rows, queries[name], kept) if found else None
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
        keys, values = [], []
        for kind, of_key, of_value in zip(parts, *self._relation_weights(parts), strict=True):
            key, value = rows[kind[0]]
            keys.append(self._by_head(key, of_key))
            values.append(self._by_head(value, of_value))
        joined = joined_lists(list(parts.values()), [len(each) for each in keys])
        pairs = of_destinations(joined.block, queries) * of_sources(joined.block, torch.cat(keys))
        scores = pairs.view(-1, self.heads, self.size).sum(dim=2)
        shares = joined.rows_of_edges([kept[kind] for kind in parts]) if kept else None
        return attend_by_scores(joined.block, scores, torch.cat(values), shares)

    def _attended_there(
        self,
        parts: dict[EdgeType, Block],
        rows: dict[str, tuple[Tensor, Tensor]],
        queries: Tensor,
        kept: dict[EdgeType, Tensor],
    ) -> Tensor:
        """`_attended` on a device: relation by relation, without a row for each edge.

        The relations' matrices are applied to the destinations, which are fewer than the sources: a query times A_r^T,
        and M_r on the mean of the values. The means of the relations are weighed by their softmaxes' denominators.
        """
        key_weights, value_weights = (torch.stack(each) for each in self._relation_weights(parts))
        by_head = queries.view(len(queries), self.heads, self.size)
        asked = torch.einsum("nht,rhst->rnhs", by_head, key_weights).flatten(2)
        means, logs = [], []
        for (kind, part), mine in zip(parts.items(), asked.unbind(), strict=True):
            key, value = rows[kind[0]]
            block = cast(DeviceBlock, part)
            mean, log = attend_dots(block, key, mine.to(key.dtype), value, self.heads, kept.get(kind))
            means.append(mean.view(len(queries), self.heads, self.size))
            logs.append(log)
        shares = torch.stack(logs).softmax(dim=0)[..., None]
        weighed = shares.to(means[0].dtype) * torch.stack(means)
        return torch.einsum("rnhs,rhst->nht", weighed, value_weights).flatten(1)

    def _relation_weights(self, parts: dict[EdgeType, Block]) -> tuple[list[Tensor], list[Tensor]]:
        """The scaled matrices of keys and those of values, one for each relation, [heads, size, size]."""
        # Unbound once, since the gradient of each slice would be as large as the whole; and chosen without an index,
        # which would be copied to a device.
        scaled = self.relation_key * (self.relation_scale / math.sqrt(self.size))[:, :, None, None]
        of_keys, of_values = scaled.unbind(), self.relation_value.unbind()
        places = [self._place[kind] for kind in parts]
        return [of_keys[place] for place in places], [of_values[place] for place in places]

    def _by_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """[rows, width]: each head's columns times its matrix."""
        by_head = x.view(len(x), self.heads, self.size).transpose(0, 1)
        return torch.bmm(by_head, weight).transpose(0, 1).reshape(len(x), self.heads * self.size)

    def _kept(self, parts: dict[EdgeType, Block], x: dict[str, Tensor]) -> dict[EdgeType, Tensor]:
        """The dropout factors of the coefficients, [edges, heads] by relation; empty where nothing is dropped."""
        share, kept = self.dropout if self.training else 0.0, {}
        for kind in self._place:
            if kind not in parts:
                # Calls of dropout are numbered alike in every part of a batch.
                skip_drop(share)
            elif share > 0:
                ones = torch.ones(parts[kind].num_edges, self.heads, device=x[kind[0]].device)
                kept[kind] = drop_edges(parts[kind], ones, share, kind)
        return kept


def _is_plain(block: Block) -> bool:
    """Whether a block is on a device and all of its edges count alike."""
    return block.on_device and block.weights is None and block.mask is None


class _Output(nn.Module):
    """The output of one type, from what its vertices attended to and their own rows."""

    def __init__(self, width_in: int, width: int, answer: int) -> None:
        super().__init__()
        self.width = width
        self.out = nn.Linear(width, width)
        self.skip = nn.Parameter(torch.ones(1)) if width == width_in else None
        self.answer = nn.Linear(width, answer) if answer else None

    def forward(self, x: Tensor, attended: Tensor | None = None) -> Tensor:
        """[rows, out] of the vertices' rows; `attended` is None where there was nothing to attend to."""
        given = x.new_zeros(len(x), self.width) if attended is None else attended
        result: Tensor = self.out(functional.gelu(given))
        if self.skip is not None:
            share = self.skip.sigmoid()
            result = share * result + (1 - share) * x
        return result if self.answer is None else self.answer(result)
