"""Batches of GraphSAINT: the induced subgraph, its weights, and the weights of the seeds' losses."""

from typing import Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.graph.hashing import key_of
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.homogeneous import Homogeneous, Reader, homogeneous
from penstock.sampling.importance import Distribution, importance
from penstock.sampling.induced import Induced, Inducer, blocks_on
from penstock.sampling.key import BatchKey
from penstock.sampling.saint.edges import EdgeDraws
from penstock.sampling.saint.inclusion import edge_weights, inclusion
from penstock.sampling.saint.walks import WalkDraws


class VertexDraws:
    """A draw visits one vertex, so two vertices are together only by different draws."""

    def __init__(self, graph: Homogeneous) -> None:
        mass = importance(graph, self_loops=True)
        self._distribution = Distribution(mass, graph.natural_order())
        self.mass = mass / self._distribution.total

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """The vertices drawn, in order, with repeats."""
        return self._distribution.draw(key.purpose("vertices"), amount)[0]

    def joint(self, inside: Induced) -> Array:
        """No draw visits two vertices."""
        return np.zeros(len(inside.indices))


class Draws(Protocol):
    """Independent draws that each visit some vertices."""

    mass: Array
    """The chance (float64) that one draw visits a vertex."""

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """The vertices visited by `amount` draws, in order, with repeats."""
        ...

    def joint(self, inside: Induced) -> Array:
        """The chance (float64) that one draw visits both ends, of every edge of a subgraph; loops do not matter."""
        ...


KINDS = ("vertex", "edge", "walk")


class Saint:
    """Subgraphs of `size` draws: vertices, edges, or walks of `walk_length` steps from roots of even chance.

    Edges have the weight 1 / P(u in | v in): where v is in, weighted sums are unbiased for the list's sum. Seeds are
    the training vertices inside, perhaps none. Their weights are 1 / (T p_v), T being the number of training vertices
    that can be drawn and p_v the chance that v is in: the expectation of the sum of seed weight * loss is the mean loss
    of those T. All chances are exact, but for walks of more than one step, where later steps are counted over as many
    walks as `presample` subgraphs have.

    `items` numbers the subgraphs of an epoch, which together hold as many vertices as the graph, in the mean. `sample`
    may be called from several threads at once.
    """

    def __init__(
        self,
        graph: Graph | Homogeneous,
        train: Array,
        kind: str = "vertex",
        size: int = 1000,
        walk_length: int = 2,
        layers: int = 2,
        presample: int | None = None,
        original: Array | None = None,
        seed: int = 0,
    ) -> None:
        self._graph = homogeneous(graph, "Saint", original)
        _check(kind, size, walk_length, layers, presample)
        if kind == "walk" and walk_length > 1:
            # Later steps are counted over many walks and by edge: whoever has room for that has it for the lists.
            self._graph = self._graph.whole()
        self.kind, self.size, self.layers = kind, size, layers
        self._is_train = self._graph.train_mask(train)
        self._draws = self._draws_of(walk_length, presample, seed)
        self._inclusion = inclusion(self._draws.mass, size)
        self._trained = int(self._is_train[self._inclusion > 0].sum())
        if not self._trained:
            raise PenstockError(
                f"No training vertex of {graph.name!r} has an edge: draw vertices or walks instead.",
                code="missing-data",
            )
        self.items = np.arange(int(np.ceil(self._graph.count / self._inclusion.sum())))
        self._inducer = Inducer(self._graph)

    def sample(self, items: Array, key: BatchKey) -> MiniBatch[Block]:
        """The subgraph of one item. Its draws depend on the key alone, and are the same on any thread."""
        if np.size(items) != 1:
            raise PenstockError(
                f"GraphSAINT draws one subgraph for each batch, not {np.size(items)}: set batch_size to 1.",
                code="value-out-of-range",
            )
        reader = self._graph.reader()
        vertices = self._seeds_first(self._draws.visit(self.size, key, reader))
        inside = self._inducer.induce(vertices, reader)
        weights = edge_weights(inside, self._draws.mass[inside.vertices], self._draws.joint(inside), self.size)
        seeds = inside.vertices[: int(self._is_train[inside.vertices].sum())]
        seed_weights = (1 / (self._trained * self._inclusion[seeds])).astype(np.float32)
        blocks = blocks_on(self._graph, inside, weights, len(seeds), self.layers)
        name = self._graph.node_type
        return MiniBatch({name: seeds}, {name: inside.vertices}, blocks, seed_weights=seed_weights, key=key)

    def _seeds_first(self, visited: Array) -> Array:
        """Every visited vertex once, in order of appearance, training vertices before others."""
        _, first = np.unique(visited, return_index=True)
        vertices = visited[np.sort(first)]
        inside = self._is_train[vertices]
        return np.concatenate([vertices[inside], vertices[~inside]])

    def _draws_of(self, walk_length: int, presample: int | None, seed: int) -> Draws:
        if self.kind == "vertex":
            return VertexDraws(self._graph)
        if self.kind == "edge":
            return EdgeDraws(self._graph)
        if presample is None:
            # As the paper: until a vertex has been in about fifty subgraphs.
            walks = 50 * self._graph.count // (walk_length + 1)
        else:
            walks = presample * self.size
        return WalkDraws(self._graph, walk_length, max(walks, 1), key_of(seed, "saint/presample"))


def _check(kind: str, size: int, walk_length: int, layers: int, presample: int | None) -> None:
    if kind not in KINDS:
        raise PenstockError(
            f"There is no GraphSAINT sampler of kind {kind!r}: use one of {', '.join(KINDS)}.", code="unknown-name"
        )
    least = 2 if kind == "vertex" else 1
    if size < least:
        raise PenstockError(f"size is {size}, which draws no edge: give {least} or more.", code="value-out-of-range")
    if walk_length < 1 or layers < 1:
        raise PenstockError(
            f"walk_length is {walk_length} and layers is {layers}: give 1 or more for both.",
            code="value-out-of-range",
        )
    if presample is not None and presample < 1:
        raise PenstockError(
            f"presample is {presample}: give 1 or more, or leave it out.",
            code="value-out-of-range",
        )
