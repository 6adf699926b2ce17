"""RGCN: a weight per relation on the aggregate of its neighbours, one per node type on the vertex itself."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.nn.aggregation import Reduce, aggregate
from penstock.nn.derived import without_empty_rows
from penstock.nn.layers.relations import own_terms, readable_relations
from penstock.nn.order import Costs, transform_neighbours
from penstock.nn.order_costs import Order
from penstock.sampling.block import Block, TypedBlock
from penstock.sampling.device.block import DeviceBlock


class RGCNLayer(nn.Module):
    """own[type](x) + sum over relations of W_r * aggregate of the relation's neighbours.

    With `bases` > 0 the weights of all relations are mixtures of that many. With `blocks` > 0 the weight of a relation
    has that many blocks along its diagonal, and zeros beside them. With the mean this is also SAGE summed over
    relations.
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

    def forward(self, block: TypedBlock, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """[num_dst[t], out] of every type t that has rows to compute and its weights here."""
        result = own_terms(block, x, dict(zip(self.node_types, self.own, strict=True)))
        # One unbinding, as the gradient of a single slice would be as large as all of them.
        weights = self._weights().unbind()
        for kind, part in readable_relations(block, x, self._place, result):
            source, _, target = kind
            rows, values = self._relation(part, x[source], weights[self._place[kind]])
            if rows is None or len(values) == len(result[target]):
                result[target] += values
            else:
                result[target].index_add_(0, rows, values)
        return result

    def _relation(self, block: Block, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor]:
        """The rows that a relation reaches, and what it adds to them: few, where there are many relations.

        On a device all rows, None: which of them a relation reaches would have to be asked of it.
        """
        order: Order = "aggregate" if self.reduce == "max" else self.order
        rows = None
        if not isinstance(block, DeviceBlock):
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
