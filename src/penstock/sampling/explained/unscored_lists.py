"""The lists of a whole graph, drawn as sampler explained draws them for one reader, before anything was explained.

What such draws read can so be counted before a run: all remote vertices have the same score.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.sampling.explained.locality_draw import draw_by_locality
from penstock.sampling.lists import DrawnNeighbours, Readers

_NO_VERTICES, _NO_SCORES = np.empty(0, np.int64), np.empty(0, np.float64)


class CutNumbers:
    """The numbers of a graph's vertices when it is cut: those of a part follow each other."""

    def __init__(self, part_of: Array, parts: int) -> None:
        self.original: Array = np.argsort(part_of, kind="stable")
        self.new = np.empty(len(part_of), np.int64)
        self.new[self.original] = np.arange(len(part_of))
        self._first = np.concatenate([[0], np.cumsum(np.bincount(part_of, minlength=parts))])

    def home(self, part: int) -> Array:
        """The range [first, last) of a part's vertices, int64 of shape [1, 2]."""
        return np.asarray(self._first[None, part : part + 2], np.int64)


class UnscoredLists:
    """Draws for a reader to which the vertices of one part are local, from lists in the graph's own numbers."""

    weighted = True

    def __init__(self, edges: EdgeSet, numbers: CutNumbers, part: int, bias: float) -> None:
        self._edges, self._numbers, self._home, self._bias = edges, numbers, numbers.home(part), bias

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """The draws, once the result is waited for."""
        if edges or readers.exclusion or len(readers.limits):
            raise PenstockError(
                "Draws by explanations give no edge numbers and leave out no edges: use sampler neighbour.",
                code="unsupported-combination",
            )
        return partial(self._drawn, readers.vertices, key, fanout)

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """The lengths of whole lists."""
        return partial(self._lengths, readers.vertices, np.dtype(np.float32))

    def _lengths(self, vertices: Array, dtype: np.dtype[np.generic]) -> Array:
        lengths: Array = self._edges.indptr[1:][vertices] - self._edges.indptr[:-1][vertices]
        return lengths.astype(dtype)

    def _drawn(self, vertices: Array, key: np.uint64, fanout: int) -> DrawnNeighbours:
        lengths = self._lengths(vertices, np.dtype(np.int64))
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(indptr[-1]) + np.repeat(self._edges.indptr[:-1][vertices] - indptr[:-1], lengths)
        sources = self._edges.indices[places]
        drawn_indptr, positions, weights = draw_by_locality(
            indptr,
            self._numbers.new[sources],
            vertices.astype(np.int64),
            self._numbers.original,
            self._home,
            _NO_VERTICES,
            _NO_SCORES,
            1.0,
            key,
            fanout,
            self._bias,
            np.arange(len(vertices)),
        )
        return DrawnNeighbours(drawn_indptr, sources[positions], None, weights)
