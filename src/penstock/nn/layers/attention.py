"""Attention layers: GAT and GATv2, on blocks and typed blocks, and the transformer; and the encoding of times."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.nn.aggregation import aggregate, edge_features, gather, of_destinations, of_sources
from penstock.nn.attention import attend, attend_by_scores, attend_inputs, attend_jointly
from penstock.nn.derived import edge_lists, looped_edges, with_self_loops
from penstock.nn.device.attention import ALIGNED, attend_joined
from penstock.nn.device.attention import attend_jointly as attend_jointly_there
from penstock.nn.device.drop import Rectified
from penstock.nn.device.gather import TableRows, compute_dtype
from penstock.nn.device.input_attention import attend_inputs as attend_inputs_there
from penstock.nn.device.input_attention import suits_inputs
from penstock.nn.device.products import Ending, pair_of_products, product
from penstock.nn.drop import drop_edges, skip_drop
from penstock.nn.layers.rgcn import own_terms, readable_relations
from penstock.nn.operator_costs import Order
from penstock.nn.order import Costs, as_matrix, attends_inputs, transformed_heads
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import tensor_of

# An encoding of how long before its seed's time an edge was (Xu et al., ICLR 2020, TGAT).


class TimeEncoding(nn.Module):
    """cos(w * age + b), `width` values for each edge. Frequencies w are initialised between 1 and 1e-9, and learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.logspace(0, -9, width))
        self.phase = nn.Parameter(torch.zeros(width))

    def forward(self, block: Block) -> Tensor:
        """[edges, width]: the encoded ages."""
        if block.ages is None:
            raise PenstockError(
                "The layer encodes the ages of edges, and the block has none: sample by `time`, with ages.",
                code="mismatched-inputs",
            )
        ages: Any = block.ages
        given: Tensor = ages if isinstance(ages, Tensor) else tensor_of(ages)
        return torch.cos(given.to(self.frequency.dtype)[:, None] * self.frequency + self.phase)


def edge_inputs(block: Block, width: int, encoding: TimeEncoding | None) -> Tensor:
    """The inputs of each edge: `width` edge features, and its encoded age."""
    parts = [edge_features(block, width)] if width else []
    if encoding is not None:
        parts.append(encoding(block))
    return parts[0] if len(parts) == 1 else torch.cat([part.to(parts[-1].dtype) for part in parts], dim=1)


# Graph attention: GAT, and GATv2, whose scores combine both ends before the leaky ReLU.


class GATLayer(nn.Module):
    """`heads` weighted means of the transformed neighbours, side by side (`concat`) or averaged.

    With `self_loop` a vertex is one more neighbour of itself. `two_sided` gives destinations a transformation of their
    own, which v2 always has; `layer(block, x, x_dst)` then takes them from another matrix. `dropout` drops attention
    coefficients. With `edge_width`, v2 adds transformed edge features to both ends before the leaky ReLU; a self loop
    has the mean of its vertex's other edges, as in PyG. Without v2, the host may weigh inputs that need no gradient
    before it transforms them (`order`).
    """

    def __init__(
        self,
        width_in: int,
        out_per_head: int,
        heads: int = 1,
        concat: bool = True,
        v2: bool = False,
        negative_slope: float = 0.2,
        self_loop: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        two_sided: bool = False,
        edge_width: int = 0,
        time_width: int = 0,
        order: Order = "auto",
        costs: Costs | None = None,
    ) -> None:
        super().__init__()
        self.order, self.costs = order, costs
        if (edge_width or time_width) and not v2:
            raise PenstockError("GAT reads no edge features: use v2 (gatv2).", code="unsupported-combination")
        self.heads, self.size, self.concat, self.v2 = heads, out_per_head, concat, v2
        self.slope, self.self_loop, self.dropout = negative_slope, self_loop, dropout
        self.source = nn.Linear(width_in, heads * out_per_head, bias=v2 and bias)
        two_sided = two_sided or v2
        self.target = nn.Linear(width_in, heads * out_per_head, bias=v2 and bias) if two_sided else None
        self.score_source = nn.Parameter(torch.empty(heads, out_per_head))
        self.score_target = None if v2 else nn.Parameter(torch.empty(heads, out_per_head))
        self.time, self.edge_width = TimeEncoding(time_width) if time_width else None, edge_width
        carried = edge_width + time_width
        self.edge = nn.Linear(carried, heads * out_per_head, bias=False) if carried else None
        self.bias = nn.Parameter(torch.zeros(heads * out_per_head if concat else out_per_head)) if bias else None
        for weight in (self.source.weight, self.score_source, self.score_target):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.target is not None:
            nn.init.xavier_uniform_(self.target.weight)
        if self.edge is not None:
            nn.init.xavier_uniform_(self.edge.weight)

    def forward(
        self,
        block: Block,
        x: Tensor | TableRows | Rectified,
        x_dst: Tensor | None = None,
        kind: EdgeType | None = None,
        end: Ending | None = None,
    ) -> Any:
        """[num_dst, out] of x [num_src, in]; `x_dst` [num_dst, in] where destinations are not the first rows of x.

        `kind` is the block's relation in a batch of several, for its dropout. GATv2 on a device may carry out `end`.
        """
        if x_dst is not None and (self.target is None or self.self_loop):
            raise PenstockError(
                "Attention between two matrices needs GATLayer(two_sided=True, self_loop=False).",
                code="unsupported-combination",
            )
        drops, how = self.training and self.dropout > 0, (self.heads, self.order, self.costs)
        if isinstance(x, TableRows) and (x.direct or (self._attends_there(block, x) and not drops)):
            return self._of_inputs_there(cast(DeviceBlock, block), x)
        if self.v2 and self.self_loop and self.edge is None and not drops and isinstance(block, DeviceBlock):
            return self._jointly_there(block, x, end)
        if isinstance(x, Rectified) and isinstance(block, DeviceBlock) and self._joins() and not drops:
            return self._biased(self._joined(block, x, None, self.self_loop))
        rows: Tensor = as_matrix(x, self.source.weight)
        if self.score_target is not None and attends_inputs(block, rows, self.source.weight, *how):
            return self._of_inputs(block, rows, x_dst, kind)
        own = rows[: block.num_dst] if x_dst is None else x_dst
        return self._biased(self._attended(block, rows, own, kind))

    def _attended(self, block: Block, x: Tensor, own: Tensor, kind: EdgeType | None) -> Tensor:
        """[num_dst, heads * size]: the weighted means of transformed rows."""
        lists, carried = (block, None) if self.edge is None else self._edges(block, x.dtype)
        loops = self.self_loop and carried is None
        lists, loops, kept = self._kept(lists, loops, x.device, kind)
        if self._joins() and block.on_device:
            return self._joined(cast(DeviceBlock, lists), x, kept, loops)
        values = self.source(x)
        targets = values[: block.num_dst] if self.target is None else self.target(own)
        if carried is not None:
            sums = of_sources(lists, values) + of_destinations(lists, targets) + carried
            leaked = functional.leaky_relu(sums, self.slope)
            return attend_by_scores(lists, self._scores(leaked, self.score_source), values, kept)
        if self.score_target is None:
            return attend_jointly(lists, values, targets, self.score_source, self.slope, kept, loops)
        of_src, of_dst = self._scores(values, self.score_source), self._scores(targets, self.score_target)
        return attend(lists, of_src, of_dst, values, self.slope, kept, loops)

    def _kept(
        self, lists: Block, loops: bool, device: torch.device, kind: EdgeType | None
    ) -> tuple[Block, bool, Tensor | None]:
        """The lists, whether self loops must be added to them, and what dropout leaves of each edge's coefficients."""
        if not self.training or self.dropout == 0:
            return lists, loops, None
        lists = with_self_loops(lists) if loops else lists
        ones = torch.ones(lists.num_edges, self.heads, device=device)
        return lists, False, drop_edges(lists, ones, self.dropout, kind)

    def _joins(self) -> bool:
        """Whether one product gives values and scores."""
        return self.score_target is not None and self.target is None

    def _joined(self, lists: DeviceBlock, x: Tensor | Rectified, kept: Tensor | None, loops: bool) -> Tensor:
        """Values and scores by one product: a . (W x) = (a W) . x; their gradients are then one matrix too."""
        weight = self.source.weight
        parts = [weight, *self._directions()]
        rows = weight.new_zeros(-sum(len(part) for part in parts) % ALIGNED, weight.shape[1])
        joined = product(x, torch.cat([*parts, rows]))
        return attend_joined(lists, joined, self.heads, self.size, self.slope, kept, loops)

    def _jointly_there(self, block: DeviceBlock, x: Tensor | TableRows | Rectified, end: Ending | None) -> Any:
        """GATv2 on a device where every list has an entry: coefficients add up to one, so that the bias of the sources
        is added to the sums inside the leaky ReLU and to the result. No bias then needs a pass over rows of its own.
        """
        assert self.target is not None
        given = x.materialise(compute_dtype(self.source.weight)) if isinstance(x, TableRows) else x
        values, targets = pair_of_products(given, self.source.weight, self.target.weight, block.num_dst)
        bias, others = self.source.bias, self.target.bias
        shift = None if bias is None or others is None else bias + others
        how = self.score_source, self.slope, None, True, shift
        if not self.concat:
            return self._biased(attend_jointly_there(block, values, targets, *how), bias)
        dropping = None if end is None else end(targets)
        added = None if self.bias is None or bias is None else self.bias + bias
        rows = attend_jointly_there(block, values, targets, *how, added, dropping)
        return rows if dropping is None else Rectified(rows, dropping.scale)

    def _of_inputs(self, block: Block, x: Tensor, x_dst: Tensor | None, kind: EdgeType | None) -> Tensor:
        """The layer where inputs are weighed before they are transformed."""
        lists, loops, kept = self._kept(block, self.self_loop, x.device, kind)
        rows = attend_inputs(lists, x, *self._directions(), x_dst, self.slope, kept, loops)
        return self._biased(transformed_heads(rows, self.source.weight.view(self.heads, self.size, -1)))

    def _attends_there(self, block: Block, x: Tensor | TableRows) -> bool:
        """Whether a device weighs these inputs before it transforms them."""
        longest = block.derived.get("longest") if isinstance(block, DeviceBlock) else None
        is_possible = self.target is None and self.score_target is not None and not x.requires_grad
        return is_possible and suits_inputs(self.heads, x.shape[1], self.heads * self.size, longest)

    def _of_inputs_there(self, block: DeviceBlock, x: TableRows) -> Tensor:
        """The layer where a device weighs inputs before it transforms them. The bias is a weight of ones behind them,
        as its gradient would be one more pass over all results.
        """
        weight = self.source.weight.view(self.heads, self.size, -1)
        joins = self.concat and self.bias is not None
        behind = weight.new_zeros(self.heads, self.size, 8 - weight.shape[2] % 4 if joins else -weight.shape[2] % 4)
        if joins and self.bias is not None:
            behind = torch.cat([self.bias.view(self.heads, self.size, 1), behind[:, :, 1:]], dim=2)
        joined = torch.cat([weight, behind], dim=2).to(compute_dtype(weight))
        result = attend_inputs_there(block, x, torch.cat(self._directions()), joined, self.slope, self.self_loop)
        return result if joins else self._biased(result)

    def _directions(self) -> tuple[Tensor, Tensor]:
        """[heads, in] each: the scores' directions in the inputs, of sources and of destinations."""
        assert self.score_target is not None
        weight = self.source.weight.view(self.heads, self.size, -1)
        if self.target is None:
            both = torch.bmm(torch.stack([self.score_source, self.score_target], dim=1), weight)
            return both[:, 0], both[:, 1]
        others = self.target.weight.view(weight.shape)
        return (self.score_source[:, None] @ weight)[:, 0], (self.score_target[:, None] @ others)[:, 0]

    def _biased(self, result: Tensor, more: Tensor | None = None) -> Tensor:
        """The heads side by side or averaged, plus the bias, and `more` of it [heads * size]."""
        if not self.concat:
            result = result.view(-1, self.heads, self.size).mean(dim=1)
            more = None if more is None else more.view(self.heads, self.size).mean(dim=0)
        if self.bias is None or more is None:
            more = self.bias if more is None else more
        else:
            more = self.bias + more
        return result if more is None else result + more

    def _edges(self, block: Block, dtype: torch.dtype) -> tuple[Block, Tensor]:
        """The lists that are attended to, and each edge's term in the sum of both ends."""
        assert self.edge is not None
        rows = self.edge(edge_inputs(block, self.edge_width, self.time).to(dtype))
        if not self.self_loop:
            return block, rows
        looped = looped_edges(block)
        return looped.block, gather(looped.reads, torch.cat([rows, aggregate(looped.others, rows, "mean")]))

    def without_edges(self) -> None:
        """Replaces `forward` where the relation has no edges in this part of a batch."""
        skip_drop(self.dropout if self.training else 0.0)

    def _scores(self, rows: Tensor, direction: Tensor) -> Tensor:
        """[rows, heads]: the inner products of each head's columns with its direction."""
        return torch.einsum("rhc,hc->rh", rows.view(-1, self.heads, self.size), direction)


# Attention on typed blocks: within each relation, summed over relations, plus the vertex's own term.


class TypedGATLayer(nn.Module):
    """own[type](x) + the sum over relations of their own GAT; a vertex is not its own neighbour."""

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
        order: Order = "auto",
        costs: Costs | None = None,
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
                order=order,
                costs=costs,
            )
            for _ in edge_types
        )

    def forward(self, block: Block, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[dst_counts[t], out] of every type t that has rows to compute and weights here."""
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


# A transformer's attention over neighbours (Shi et al., IJCAI 2021), with edge features in keys and values.


class TransformerLayer(nn.Module):
    """own(x) + `heads` softmax-weighted means of value(x_u) + edge(e_uv), side by side (`concat`) or averaged.

    Scores are query(x_v) . (key(x_u) + edge(e_uv)) / sqrt(size of a head). A vertex is not its own neighbour. Without
    `edge_width` there are no edge features; `time_width` values encode ages of edges. `dropout` drops attention
    coefficients.
    """

    def __init__(
        self,
        width_in: int,
        out_per_head: int,
        heads: int = 1,
        concat: bool = True,
        edge_width: int = 0,
        dropout: float = 0.0,
        time_width: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.concat, self.dropout = heads, out_per_head, concat, dropout
        width = heads * out_per_head
        self.key, self.query, self.value = (nn.Linear(width_in, width) for _ in range(3))
        self.time, self.edge_width = TimeEncoding(time_width) if time_width else None, edge_width
        carried = edge_width + time_width
        self.edge = nn.Linear(carried, width, bias=False) if carried else None
        self.own = nn.Linear(width_in, width if concat else out_per_head)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]."""
        own = x[: block.num_dst]
        keys, values = of_sources(block, self.key(x)), of_sources(block, self.value(x))
        if self.edge is not None:
            carried = self.edge(edge_inputs(block, self.edge_width, self.time).to(x.dtype))
            keys, values = keys + carried, values + carried
        asked = of_destinations(block, self.query(own))
        scores = (asked * keys).view(-1, self.heads, self.size).sum(dim=2) / math.sqrt(self.size)
        kept = None
        if self.training and self.dropout > 0:
            kept = drop_edges(block, torch.ones(block.num_edges, self.heads, device=x.device), self.dropout)
        result = attend_by_scores(edge_lists(block), scores, values, kept)
        if not self.concat:
            result = result.view(-1, self.heads, self.size).mean(dim=1)
        mine: Tensor = self.own(own)
        return result + mine
