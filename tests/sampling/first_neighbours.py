"""A sampler as a user would add it: the first neighbours of each vertex by original number, without any chance."""

import numpy as np

from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.entry import SamplerEntry
from penstock.sampling.lists import rows_for


class FirstNeighbours:
    """Takes the first `fanouts[h]` entries of each list."""

    def __init__(self, graph, fanouts):
        self._graph, self._fanouts = graph, fanouts

    def sample(self, seeds, key):
        """The batch of some different seeds."""
        rows, reader, blocks = rows_for(self._graph.count), self._graph.reader(), []
        rows.start(self._graph.seeds(seeds))
        for fanout in self._fanouts:
            lists = reader.read(rows.vertices[: rows.known])
            taken = [lists.indices[lists.indptr[row] : lists.indptr[row + 1]][:fanout] for row in lists.rows]
            indptr = np.cumsum([0, *map(len, taken)])
            indices = rows.number(np.concatenate(taken), indptr)
            blocks.append(Block(indptr, indices, rows.known))
        vertices = rows.vertices[: rows.known].copy()
        name = self._graph.node_type
        return MiniBatch({name: vertices[: len(seeds)]}, {name: vertices}, blocks[::-1], key=key)


FIRST = SamplerEntry(
    "first",
    lambda source, settings: FirstNeighbours(source.whole_lists("first"), settings.options.fanouts),
    per_layer="fanouts",
    joint=True,
)
