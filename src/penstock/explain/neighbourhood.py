"""The exact neighbourhood of one vertex as a batch, and the batch with a mask over its edges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn.masked import MaskedBlock
from penstock.sampling.block import Block, MiniBatch, TypedBlock


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """The edges of one relation: rows of both ends in the batch, and how many hops from the vertex each edge is.

    An edge into the vertex itself is at hop 1.
    """

    kind: EdgeType
    sources: Array
    destinations: Array
    hops: Array


class Neighbourhood:
    """A batch with one seed and whole lists, whose edges are masked alike in all layers.

    A layer's lists of a relation are the first of those of any layer further out, so that the outermost block that has
    the relation has each of its edges once.
    """

    def __init__(self, batch: MiniBatch[Any], kinds: Sequence[EdgeType]) -> None:
        """`kinds` are the graph's relations; in blocks of one relation, the first is meant."""
        assert batch.num_seeds == 1, f"a neighbourhood of {batch.num_seeds} vertices"
        self.batch, self._kinds = batch, list(kinds)
        (self.node_type,) = (name for name, rows in batch.seeds.items() if len(rows))
        widest = dict[EdgeType, Block]()
        for layer in self._layers():
            for kind, block in layer.items():
                _check_prefix(block, widest.setdefault(kind, block))
        hops = {kind: _hops(kind[2], batch.blocks) for kind in widest}
        self.relations = [_relation(kind, block, hops[kind]) for kind, block in widest.items()]
        starts = np.cumsum([0, *(len(each.sources) for each in self.relations)])
        self._first = dict(zip(widest, starts.tolist(), strict=False))

    @property
    def num_edges(self) -> int:
        """Edges of all relations."""
        return sum(len(each.sources) for each in self.relations)

    @property
    def num_vertices(self) -> int:
        """Vertices of all types that the prediction depends on."""
        return sum(map(len, self.batch.vertices.values()))

    def edge_hops(self) -> Array:
        """The hop of every edge, relation after relation."""
        return np.concatenate([each.hops for each in self.relations] or [np.zeros(0, np.int64)])

    @property
    def edge_widths(self) -> dict[EdgeType, int]:
        """Numbers that edges carry in `edge_attr`, by the relations that carry any."""
        parts = [(kind, part.edge_attr) for layer in self._layers() for kind, part in layer.items()]
        return {kind: int(rows.shape[1]) for kind, rows in parts if rows is not None}

    def masked_blocks(
        self, mask: Tensor, columns: Mapping[EdgeType, Tensor] | None = None
    ) -> list[Block] | list[TypedBlock]:
        """The batch's blocks with a mask over all edges, relation after relation.

        `columns` multiply the numbers that the edges of a relation carry.
        """
        made = list[Any]()
        for block, layer in zip(self.batch.blocks, self._layers(), strict=True):
            parts = {
                kind: MaskedBlock(part, self._of_part(mask, kind, part), _scaled(part, (columns or {}).get(kind)))
                for kind, part in layer.items()
            }
            if isinstance(block, Block):
                (only,) = parts.values()
                made.append(only)
            else:
                made.append(TypedBlock(dict(parts), block.num_src, block.num_dst))
        return made

    def _of_part(self, mask: Tensor, kind: EdgeType, part: Block) -> Tensor:
        first = self._first[kind]
        return mask[first : first + part.num_edges]

    def _layers(self) -> list[dict[EdgeType, Block]]:
        return [{self._kinds[0]: block} if isinstance(block, Block) else block.relations for block in self.batch.blocks]


def _scaled(block: Block, columns: Tensor | None) -> Tensor | None:
    return None if columns is None or block.edge_attr is None else block.edge_attr * columns


def full_mask(mask: Tensor, places: Array, edges: int) -> Tensor:
    """A mask over all edges: the given values at some places and 1 elsewhere."""
    whole = torch.ones(edges, dtype=mask.dtype)
    return whole.index_put((torch.from_numpy(places),), mask)


def _hops(node_type: str, blocks: Sequence[Block | TypedBlock]) -> Array:
    """The hop of the edges into each row of a type: 1 for those that the innermost block computes."""
    counts = [block.num_dst if isinstance(block, Block) else block.num_dst.get(node_type, 0) for block in blocks]
    new = np.diff(counts[::-1], prepend=0)
    return np.repeat(np.arange(1, len(counts) + 1), new)


def _relation(kind: EdgeType, block: Block, hops: Array) -> RelationEdges:
    targets = np.asarray(block.destinations(), np.int64)
    return RelationEdges(kind, np.asarray(block.indices, np.int64), targets, hops[targets])


def _check_prefix(block: Block, widest: Block) -> None:
    rows, edges = block.num_dst, block.num_edges
    if np.array_equal(block.indptr, widest.indptr[: rows + 1]) and np.array_equal(
        block.indices, widest.indices[:edges]
    ):
        return
    raise PenstockError(
        "The layers read different neighbours of one vertex, which one mask over edges cannot cover: explain a run that"
        " was trained without `time`.",
        code="unsupported-combination",
    )
