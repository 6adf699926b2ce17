"""Batches of a cut graph that are drawn as a whole, and of which a worker keeps its share.

Layers of FastGCN and LADIES are drawn for all seeds together, and subgraphs hold whatever training vertices they hold:
every worker draws the whole batch, which costs it the lists, and keeps what its own loss vertices need of it
(`share_of`), so that no other features are pulled.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.key import BatchKey
from penstock.sampling.parts.homogeneous import PartedGraph
from penstock.sampling.relabel import DirectRows, Rows


class WholeSampler(Protocol):
    """Draws a batch for all workers, from seeds or from items of its own."""

    def sample(self, seeds: Array, key: BatchKey, /) -> MiniBatch[Block]:
        """The batch of some different seeds or items."""
        ...


class SharedSampler:
    """Samples a share of every batch; `items`, where the sampler finds its seeds, are what an epoch goes through."""

    def __init__(
        self,
        graph: PartedGraph,
        sampler: WholeSampler,
        share: Callable[[Array], Array] | None = None,
        every_row: bool = False,
        every_input: bool = False,
        edges: bool = False,
    ) -> None:
        """`share` tells the places of this worker's among vertices in the cut graph's numbers; None: all are. With
        `every_row` a share holds all rows of all layers but the last, with `every_input` this worker's share of the
        batch's vertices too: all workers together then have all of them. With `edges` blocks have the numbers of their
        edges, where the sampler knows them."""
        self.node_type, self.items = graph.node_type, getattr(sampler, "items", None)
        self._names, self._sampler, self._share = graph.names, sampler, share
        self._every_row, self._every_input, self._edges = every_row, every_input, edges

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch[Block]:
        """The share of the batch of some different seeds or items; it knows how many seeds the whole has."""
        batch = self._sampler.sample(seeds, key)
        if not self._edges:
            for block in batch.blocks:
                block.edges = None
        if self._share is None:
            batch.whole = batch.num_seeds
        else:
            inputs = self._share(batch.vertices[self.node_type]) if self._every_input else None
            batch = share_of(batch, self._share(batch.seeds[self.node_type]), self._every_row, inputs)
        batch.names = {self.node_type: self._names[batch.vertices[self.node_type]]}
        return batch


def share_of(
    batch: MiniBatch[Block], places: Array, every_row: bool = False, inputs: Array | None = None
) -> MiniBatch[Block]:
    """The seeds at some different places, and what their layers reach back to; with `every_row`, all rows of every
    layer but the last, for what measures the batch's rows.

    `inputs` are places of vertices that the share has also where none of its rows reads them, for what happens to a
    batch's vertices because they are in it. Lists keep their order and weights, so that the rows which are computed are
    computed as in the whole batch. Rows are numbered anew.
    """
    name, vertices = batch.node_type, batch.vertices[batch.node_type]
    rows, blocks = DirectRows(len(vertices)), list[Block]()
    rows.start(np.ascontiguousarray(places, np.int64))
    for below, block in reversed(list(zip([None, *batch.blocks[:-1]], batch.blocks, strict=True))):
        more = inputs if below is None else np.arange(below.num_dst) if every_row else None
        blocks.append(_kept(block, rows, more))
    return MiniBatch(
        {name: batch.seeds[name][places]},
        {name: vertices[rows.vertices[: rows.known]]},
        blocks[::-1],
        seed_weights=None if batch.seed_weights is None else batch.seed_weights[places],
        key=batch.key,
        whole=batch.num_seeds,
    )


def _kept(block: Block, rows: Rows, more: Array | None = None) -> Block:
    """The lists of the rows known so far; what they read is known afterwards, and so are `more` rows."""
    indptr, positions = _lists_of(block.indptr, rows.vertices[: rows.known])
    indices = rows.number(block.indices[positions], indptr)
    if more is not None:
        rows.number(np.array(more, np.int64), np.zeros(1, np.int64))
    weights = None if block.weights is None else block.weights[positions]
    totals = None if block.totals is None else block.totals[rows.vertices[: rows.known]]
    edges = None if block.edges is None else block.edges[positions]
    return Block(indptr, indices, rows.known, weights, totals, edges)


@njit(nogil=True, cache=True)
def _lists_of(indptr: Array, rows: Array) -> tuple[Array, Array]:
    """Offsets of some rows' lists one behind the other, and the positions of what is in them."""
    out_indptr = np.zeros(rows.shape[0] + 1, np.int64)
    for i in range(rows.shape[0]):
        out_indptr[i + 1] = out_indptr[i] + indptr[rows[i] + 1] - indptr[rows[i]]
    positions = np.empty(out_indptr[-1], np.int64)
    for i in range(rows.shape[0]):
        for k in range(out_indptr[i + 1] - out_indptr[i]):
            positions[out_indptr[i] + k] = indptr[rows[i]] + k
    return out_indptr, positions
