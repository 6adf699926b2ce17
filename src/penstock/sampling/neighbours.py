"""Neighbour sampling: a fixed number of in-neighbours per vertex and hop."""

import threading

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.graph import Graph
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.kernels import count_edges, forget, number_seeds, sample_hop
from penstock.sampling.key import BatchKey

ALL = -1
"""As a fan-out: every neighbour."""


class NeighbourSampler:
    """Draws `fanouts[h]` in-neighbours of every vertex known at hop h, counted from the seeds.

    Uniform, without repeats unless `replace`; a vertex with fewer neighbours gives all of them once. `sample` may be
    called from several threads at once.
    """

    def __init__(self, graph: Graph, fanouts: list[int], replace: bool = False, original: Array | None = None) -> None:
        if not graph.is_homogeneous:
            raise PenstockError("NeighbourSampler samples graphs with one node type and one edge type.")
        if not fanouts or any(fanout == 0 or fanout < ALL for fanout in fanouts):
            raise PenstockError(f"Fan-outs {fanouts} cannot be sampled: give positive numbers, or -1 for all.")
        self.fanouts, self.replace = list(fanouts), replace
        self._indptr, self._indices = graph.indptr, graph.indices
        self._original = np.empty(0, np.int64) if original is None else np.asarray(original, np.int64)
        self._threads = threading.local()

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch:
        """The batch of some different seeds; the same for the same key on any thread."""
        room = self._room()
        seeds = np.ascontiguousarray(seeds, room.vertices.dtype)
        if len(seeds) and (seeds.min() < 0 or seeds.max() >= len(room.place)):
            raise PenstockError(f"A seed is outside 0..{len(room.place) - 1}.")
        known = number_seeds(seeds, room.place, room.vertices)
        if known < 0:
            raise PenstockError(f"Vertex {seeds[-known - 1]} is twice among the seeds: give each once.")
        blocks = []
        try:
            for hop, fanout in enumerate(self.fanouts):
                block, known = self._hop(room, known, fanout, key.hop(hop))
                blocks.append(block)
            vertices = room.vertices[:known].copy()
        finally:
            forget(room.place, room.vertices, known)
        return MiniBatch(seeds, vertices, blocks[::-1])

    def _hop(self, room: "_Room", known: int, fanout: int, key: np.uint64) -> tuple[Block, int]:
        most = count_edges(self._indptr, room.vertices[:known], fanout, self.replace)
        indptr, indices = np.empty(known + 1, np.int64), np.empty(most, np.int32)
        found = sample_hop(
            self._indptr,
            self._indices,
            self._original,
            key,
            fanout,
            self.replace,
            room.place,
            room.vertices,
            known,
            indptr,
            indices,
        )
        return Block(indptr, indices, found), found

    def _room(self) -> "_Room":
        if not hasattr(self._threads, "room"):
            self._threads.room = _Room(len(self._indptr) - 1)
        room: _Room = self._threads.room
        return room


class _Room:
    """What one thread reuses from batch to batch: eight bytes a vertex of the graph, sixteen beyond 2^31."""

    def __init__(self, count: int) -> None:
        self.place = np.full(count, -1, np.int32)
        self.vertices = np.empty(count, index_dtype(count))
