"""Batches of a cut graph that are drawn as a whole, and of which a worker keeps its share.

Layers of FastGCN and LADIES are drawn for all seeds together, and subgraphs hold whatever training vertices they hold:
every worker draws the whole batch, which costs it the lists, and keeps what its own loss vertices need of it, so that
no other features are pulled.
"""

from collections.abc import Callable
from typing import Protocol

from penstock.graph.arrays import Array
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.key import BatchKey
from penstock.sampling.parts.homogeneous import PartedGraph
from penstock.sampling.share import share_of


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
    ) -> None:
        """`share` tells the places of this worker's among vertices in the cut graph's numbers; None: all are. With
        `every_row` a share holds all rows of all layers but the last, with `every_input` this worker's share of the
        batch's vertices too: all workers together then have all of them."""
        self.node_type, self.items = graph.node_type, getattr(sampler, "items", None)
        self._names, self._sampler, self._share = graph.names, sampler, share
        self._every_row, self._every_input = every_row, every_input

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch[Block]:
        """The share of the batch of some different seeds or items; it knows how many seeds the whole has."""
        batch = self._sampler.sample(seeds, key)
        if self._share is None:
            batch.whole = batch.num_seeds
            for block in batch.blocks:
                # They are positions in lists that are not here.
                block.edges = None
        else:
            inputs = self._share(batch.vertices[self.node_type]) if self._every_input else None
            batch = share_of(batch, self._share(batch.seeds[self.node_type]), self._every_row, inputs)
        batch.names = {self.node_type: self._names[batch.vertices[self.node_type]]}
        return batch
