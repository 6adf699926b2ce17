"""The cut graph as training on the whole graph reads it."""

from typing import Any

import numpy as np

from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.vertex_ranges import worker_ranges
from penstock.graph.arrays import Array
from penstock.sampling import ALL, BatchKey
from penstock.sampling.block import MiniBatch
from penstock.sampling.parts import parted_sampler
from penstock.train.session import Session

_ANY = BatchKey(0, 0, 0)


class PartedCutLists:
    """See `train.whole.shared.interfaces.CutLists`. Lists of parts that are not here are asked of their owners."""

    def __init__(self, session: Session, parts: Parts) -> None:
        self._partition, book = parts.partition, parts.partition.book
        self.types, self._rank = list(book.node_types), parts.member.setup.task.rank
        self.relations = list(parts.edge_types)
        self._ranges = {name: list(worker_ranges(parts.member.setup.layout, book, name)) for name in self.types}
        self._typed = not session.graph.is_homogeneous
        self._exclude: Any = None
        self.message_edges = session.graph.num_edges
        if parts.supervised is not None:
            pairs, self.message_edges = parts.supervised
            self._exclude = pairs if self._typed else next(iter(pairs.values()))
        self._sampler: Any = parted_sampler(
            parts.partition,
            [dict.fromkeys(session.graph.edges, ALL) if self._typed else ALL],
            weight=session.list_weight,
            totals=True,
            edges=bool(session.inputs.edges),
            local=parts.owned,
            channels=parts.lists,
            absent=parts.absent,
        )

    def own(self, node_type: str) -> Array:
        """This worker's vertices, ascending."""
        parts = [np.arange(first, last) for first, last, rank in self._ranges[node_type] if rank == self._rank]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def ranks(self, node_type: str, vertices: Array) -> Array:
        """The workers that compute some vertices."""
        ranges = self._ranges[node_type]
        ends, ranks = np.array([last for _, last, _ in ranges]), np.array([rank for *_, rank in ranges])
        return ranks[np.searchsorted(ends, vertices, "right")]

    def numbers(self, node_type: str, original: Array) -> Array:
        """Numbers in the cut graph of vertices by original number."""
        return self._partition.new_ids(original, node_type)

    def names(self, node_type: str, vertices: Array) -> Array:
        """Original numbers of some vertices."""
        return np.asarray(self._partition.original(node_type)[vertices], np.int64)

    def sample(self, number: int, rows: dict[str, Array]) -> MiniBatch[Any]:
        """Whole lists: every layer follows all relations."""
        seeds: Any = rows if self._typed else next(iter(rows.values()))
        batch: MiniBatch[Any] = self._sampler.sample(seeds, _ANY, exclude=self._exclude)
        return batch
