"""The in-neighbour lists of one relation and how to draw from them: what every neighbour sampler shares."""

from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import EdgeSet
from penstock.sampling.admissible import Conditions, draw_admissible, total_admissible, total_whole
from penstock.sampling.block import Block
from penstock.sampling.exclusion import NOTHING, Exclusion
from penstock.sampling.kernels import count_edges, draw_uniform
from penstock.sampling.relabel import Rows
from penstock.sampling.temporal import Clock
from penstock.sampling.weighted import weights_of

_NONE = np.empty(0, np.int64)


class Readers(NamedTuple):
    """Rows that read their lists. Where time counts, each belongs to a seed's tree and has that seed's time."""

    vertices: Array
    trees: Array = _NONE
    limits: Array = _NONE
    exclusion: Exclusion = NOTHING


class Lists:
    """Draws from one relation's lists: uniform, or in proportion to a field; with or without replacement."""

    def __init__(
        self,
        edges: EdgeSet,
        where: str,
        original: Array | None = None,
        replace: bool = False,
        weight: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.replace, self.weighted = replace, weight is not None
        self._indptr, self._indices = edges.indptr, edges.indices
        self._original = _NONE if original is None else np.asarray(original, np.int64)
        if original is not None and len(self._original) != len(edges.indptr) - 1:
            raise PenstockError(f"{where} has {len(edges.indptr) - 1:,} lists and {len(original):,} original numbers.")
        self._conditions, self._sums = Conditions(), np.empty(0, np.float32)
        if weight is not None:
            weights, self._sums = weights_of(edges, weight, where)
            self._conditions = self._conditions._replace(weights=weights)
        if clock is not None:
            self._conditions = self._conditions._replace(**clock._asdict())
        self._plain = weight is None and clock is None

    def block(self, readers: Readers, sources: Rows, key: np.uint64, fanout: int, edges: bool) -> Block:
        """One hop of one relation: draw for the readers and number what is drawn among the sources."""
        indptr, positions, weights = self._draw(readers, key, fanout)
        rows = sources.number(self._indices, indptr, positions)
        return Block(indptr, rows, sources.known, weights, edges=positions if edges else None)

    def totals(self, readers: Readers) -> Array:
        """The number, or the weight, of the edges that each reader may draw, as float32."""
        totals = np.empty(len(readers.vertices), np.float32)
        if len(readers.limits) or readers.exclusion:
            conditions = self._conditions_of(readers)
            total_admissible(self._indptr, self._indices, readers.vertices, self._sums, conditions, totals)
        else:
            total_whole(self._indptr, readers.vertices, self._sums, totals)
        return totals

    def _draw(self, readers: Readers, key: np.uint64, fanout: int) -> tuple[Array, Array, Array | None]:
        vertices = readers.vertices
        most = count_edges(self._indptr, vertices, fanout, self.replace)
        indptr, positions = np.empty(len(vertices) + 1, np.int64), np.empty(most, np.int64)
        lists = self._indptr, self._indices, self._original
        if self._plain and not readers.exclusion:
            draw_uniform(self._indptr, self._original, key, fanout, self.replace, vertices, indptr, positions)
            return indptr, positions, None
        estimates = self.weighted and (fanout < 0 or not self.replace)
        weights = np.empty(most if estimates else 0, np.float32)
        conditions = self._conditions_of(readers)
        used = draw_admissible(
            *lists, key, fanout, self.replace, vertices, readers.trees, conditions, indptr, positions, weights
        )
        return indptr, positions[:used], weights[:used] if estimates else None

    def _conditions_of(self, readers: Readers) -> Conditions:
        return self._conditions._replace(limits=readers.limits, exclusion=readers.exclusion)


def check_seeds(seeds: Array, count: int, node_type: str, dtype: np.dtype[np.signedinteger]) -> Array:
    """Seeds as the kernels want them, within 0..count - 1."""
    seeds = np.asarray(seeds)
    if seeds.ndim != 1 or (len(seeds) and seeds.dtype.kind not in "iu"):
        raise PenstockError(
            f"Seeds of type {node_type!r} have shape {seeds.shape} and type {seeds.dtype}:"
            " give a flat array of vertex numbers."
        )
    if len(seeds) and (seeds.min() < 0 or seeds.max() >= count):
        raise PenstockError(f"A seed of type {node_type!r} is outside 0..{count - 1}.")
    return np.ascontiguousarray(seeds, dtype)
