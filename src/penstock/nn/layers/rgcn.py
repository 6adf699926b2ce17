"""RGCN: a weight per relation on the aggregate of its neighbours, one per node type on the vertex itself."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType, edge_key
from penstock.nn.aggregation import Reduce, aggregate
from penstock.nn.derived import without_empty_rows
from penstock.nn.operator_costs import Order
from penstock.nn.order import Costs, aggregates_first, transform_neighbours, transformed
from penstock.sampling.block import Block

# Shared by layers on typed blocks: the vertices' own terms, and which relations there are to read.


def own_terms(block: Block, x: Mapping[str, Tensor], layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Each type's own layer on its destination rows, for the types that have any."""
    return {name: layers[name](rows) for name, rows in own_rows(block, x, layers).items()}


def own_rows(block: Block, x: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The destination rows of those of the types that have any."""
    result = {}
    for name in names:
        rows = block.dst_counts.get(name, 0)
        if not rows:
            continue
        if name not in x or len(x[name]) < rows:
            raise PenstockError(
                f"The block needs {rows:,} rows of {name!r}, which are not in the input.", code="mismatched-inputs"
            )
        result[name] = x[name][:rows]
    return result


def readable_relations(
    block: Block, x: Mapping[str, Tensor], known: Container[EdgeType], wanted: Mapping[str, Tensor]
) -> Iterator[tuple[EdgeType, Block]]:
    """The relations with edges that end in a wanted type."""
    for kind, part in block.relations.items():
        source, _, target = kind
        if target not in wanted or not part.num_edges:
            continue
        if kind not in known:
            raise PenstockError(
                f"The block has edges {edge_key(kind)}, for which the model has no weights: build the model with all"
                " edge types.",
                code="mismatched-inputs",
            )
        if source not in x or part.num_dst != len(wanted[target]):
            raise PenstockError(
                f"The block of {edge_key(kind)} does not fit the rows of its two types.", code="shape-mismatch"
            )
        yield kind, part


class RGCNLayer(nn.Module):
    """own[type](x) + sum over relations of W_r * aggregate of the relation's neighbours.

    With `bases` > 0 the weights of all relations are mixtures of that many. With `blocks` > 0 the weight of a relation
    is block-diagonal with that many blocks. With the mean this is also SAGE summed over relations.
    """

    def __init__(
        self,
        width_in: int,
        width_out: int,
        node_types: Sequence[str],
        edge_types: Sequence[EdgeType],
        bases: int = 0,
        blocks: int = 0,
        aggregate: Reduce = "mean",
        bias: bool = True,
        order: Order = "auto",
        costs: Costs | None = None,
    ) -> None:
        super().__init__()
        _check_blocks(width_in, width_out, bases, blocks)
        self.reduce, self.order, self.costs = aggregate, order, costs
        self.node_types = list(node_types)
        self._place = {kind: place for place, kind in enumerate(edge_types)}
        self.own = nn.ModuleList(nn.Linear(width_in, width_out, bias) for _ in node_types)
        shape = (blocks, width_in // blocks, width_out // blocks) if blocks else (width_in, width_out)
        self.weight = nn.Parameter(torch.empty(bases or len(edge_types), *shape))
        self.mixture = nn.Parameter(torch.empty(len(edge_types), bases)) if bases else None
        for matrix in self.weight.flatten(0, -3).unbind():
            nn.init.xavier_uniform_(matrix)
        if self.mixture is not None:
            nn.init.xavier_uniform_(self.mixture)

    def forward(self, block: Block, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[dst_counts[t], out] of every type t that has rows to compute and weights here."""
        # Unbound once, since the gradient of each slice would be as large as the whole.
        weights = self._weights().unbind()
        if block.on_device and self.weight.dim() == 3:
            return self._grouped(block, x, weights)
        result = own_terms(block, x, dict(zip(self.node_types, self.own, strict=True)))
        for kind, part in readable_relations(block, x, self._place, result):
            source, _, target = kind
            rows, values = self._relation(part, x[source], weights[self._place[kind]])
            if rows is None or len(values) == len(result[target]):
                result[target] += values
            else:
                result[target].index_add_(0, rows, values)
        return result

    def _grouped(self, block: Block, x: dict[str, Tensor], weights: Sequence[Tensor]) -> dict[str, Tensor]:
        """The same on a device, with one product for each type: of its own rows and its relations' aggregates side by
        side. Relations that are transformed first are added to it.
        """
        mine = own_rows(block, x, self.node_types)
        layers = {name: cast(nn.Linear, own) for name, own in zip(self.node_types, self.own, strict=True)}
        rows = {name: [given] for name, given in mine.items()}
        matrices = {name: [layers[name].weight] for name in mine}
        added: dict[str, list[Tensor]] = {name: [] for name in mine}
        order: Order = "aggregate" if self.reduce == "max" else self.order
        for kind, part in readable_relations(block, x, self._place, mine):
            (source, _, target), weight = kind, weights[self._place[kind]].mT
            if aggregates_first(part, x[source], weight, order, self.costs):
                rows[target].append(aggregate(part, x[source], self.reduce))
                matrices[target].append(weight)
            else:
                added[target].append(aggregate(part, transformed(x[source], weight), self.reduce))
        result = {}
        for name in mine:
            product = torch.cat(rows[name], dim=1), torch.cat(matrices[name], dim=1)
            result[name] = sum(added[name], functional.linear(*product, layers[name].bias))
        return result

    def _relation(self, block: Block, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor]:
        """The rows that a relation reaches, and what it adds to them: few, where there are many relations.

        On a device None, for all rows: finding those that a relation reaches would require a wait.
        """
        order: Order = "aggregate" if self.reduce == "max" else self.order
        rows = None
        if not block.on_device:
            block, found = without_empty_rows(block)
            rows = torch.from_numpy(found)
        combine = partial(aggregate, block, reduce=self.reduce)
        values = transform_neighbours(block, x, weight.mT, combine, order, self.costs)
        return rows, values

    def _weights(self) -> Tensor:
        if self.mixture is None:
            return self.weight
        return torch.einsum("rb,bio->rio", self.mixture, self.weight)


def _check_blocks(width_in: int, width_out: int, bases: int, blocks: int) -> None:
    if blocks and bases:
        raise PenstockError(
            "The weights of relations are mixtures of bases or made of blocks, not both: leave out bases or blocks.",
            code="unsupported-combination",
        )
    if blocks and (width_in % blocks or width_out % blocks):
        raise PenstockError(
            f"A weight of {width_in} x {width_out} has no {blocks} equal blocks: choose a number that divides both.",
            code="shape-mismatch",
        )


# The first layer of an RGCN on vertices without features: its weight matrices have a row for each vertex.


class OneHotRGCNLayer(nn.Module):
    """own part of x + bias[type] + the sum over relations of the aggregate of its neighbours' mixed parts.

    This is the RGCN layer of one-hot input, where a weight matrix has a row for each vertex. Those rows are x: the
    first `width_out` values of a vertex are its row of the weight of the vertex itself, the next its rows of `bases`
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

    def forward(self, block: Block, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[dst_counts[t], width_out] of every type t that has rows to compute."""
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
