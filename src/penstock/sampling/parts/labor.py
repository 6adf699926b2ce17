"""LABOR of a cut graph: the owner of a list decides by itself, as all owners draw the same number of a source."""

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.key import BatchKey
from penstock.sampling.lists import Readable, Readers, check_seeds, numbered
from penstock.sampling.neighbours import ALL
from penstock.sampling.relabel import PerThread, Rows, rows_for


class PartedLabor:
    """As `sampling.labor.Labor`, over lists that draw as it does; batches carry original numbers."""

    def __init__(self, readable: Readable, fanouts: Sequence[int]) -> None:
        if len(readable.counts) != 1 or len(readable.relations) != 1 or readable.names is None:
            raise PenstockError("Sampler labor is for graphs with one node and edge type: use neighbour.")
        if not fanouts or any(fanout == 0 or fanout < ALL for fanout in fanouts):
            raise PenstockError(f"Fan-outs {list(fanouts)} cannot be sampled: give positive numbers, or -1 for all.")
        ((self.node_type, count),), (self._lists,) = readable.counts.items(), readable.relations.values()
        self.fanouts, self._count, self._names = list(fanouts), count, readable.names[self.node_type]
        self._rows: PerThread[Rows] = PerThread(lambda: rows_for(count))

    def sample(self, seeds: Array, key: BatchKey, *, exclude: Array | None = None) -> MiniBatch:
        """The batch of some different seeds; the same for the same key on any thread."""
        if exclude is not None:
            raise PenstockError("Sampler labor leaves out no edges: tasks on edges use sampler neighbour.")
        seeds = check_seeds(seeds, self._count, self.node_type, index_dtype(self._count))
        rows, blocks = self._rows.get(), list[Block]()
        rows.start(seeds)
        try:
            for hop, fanout in enumerate(self.fanouts):
                readers = Readers(rows.vertices[: rows.known])
                blocks.append(numbered(self._lists.start_draw(readers, key.hop(hop), fanout, False)(), rows))
            totals = self._lists.start_totals(Readers(rows.vertices[: rows.known]))()
            for block in blocks:
                block.totals = totals[: block.num_src]
            vertices = rows.vertices[: rows.known].copy()
        finally:
            rows.forget()
        names = self._names[vertices]
        return MiniBatch(seeds, vertices, blocks[::-1], node_type=self.node_type, key=key, names=names)
