"""Which rows of other workers are computed here instead of received, vertex by vertex, by predicted cost.

A row that is received costs its bytes, and those of its gradient on the way back. A replica costs computation, and in
later layers the rows that it reads and that are not here anyway, which change in every step; inputs of the first layer
are fetched once and kept. Costs are those that a plan measured and wrote into the job, or follow from stated rates:
never from what this process measures, so that a worker that is started again decides as before.
"""

from collections.abc import Callable, Sequence

import numpy as np

from penstock.graph.arrays import Array
from penstock.train.whole.shared.interfaces import CutLists, Rows
from penstock.train.whole.shared.levels import Replicate, batches_of, lengths_of

_READ = 4e9
"""Bytes of neighbours' rows that a core aggregates in a second."""
_FLOPS = 2e10
"""Multiplications and additions of a dense product in a second on a core."""
_PRODUCTS = 2
"""Of a row: forward, and backward to the weights. Nothing goes back to inputs that are not learned."""

Cheaper = Callable[[Array, Array], Array]
"""(numbers of neighbours, rows of these that would be received for it alone) -> whether a row is cheaper to compute."""


def replicate_where_cheaper(cut: CutLists, rank: int, cheaper: Sequence[Cheaper]) -> Replicate:
    """Decides for every vertex that is read; `cheaper` is for every layer."""

    def chosen(level: int, halo: Rows, own: Rows) -> Rows:
        number = level - 1
        known = _read_by(cut, number, own) if number else {}
        found = {}
        for kind, vertices in halo.items():
            missing = np.zeros(len(vertices), np.int64)
            if number:
                missing = _missing(cut, rank, number, kind, vertices, known)
            found[kind] = cheaper[number](lengths_of(cut, number, kind, vertices), missing)
        return found

    return chosen


def cheaper_than(
    bandwidth: float, width_in: int, width_out: int, constant: bool, learned: bool, measured: Sequence[float] = ()
) -> Cheaper:
    """`bandwidth` in bytes a second. What is aggregated of `constant` inputs is known after the first step; to
    `learned` ones, and to all rows between layers, gradients go back. `measured` are seconds of a row and of an edge,
    both passes together; where there are none, stated rates are taken."""
    received, further = (2 * 4 * width / bandwidth for width in (width_out, width_in))
    reads = 0 if constant else 1 + learned
    row = (_PRODUCTS + learned) * 2 * width_in * width_out / _FLOPS + reads * 4 * width_in / _READ
    edge = reads * 4 * width_in / _READ
    if measured:
        row, edge = measured

    def cheaper(neighbours: Array, missing: Array) -> Array:
        found: Array = row + edge * neighbours + further * missing < received
        return found

    return cheaper


def _read_by(cut: CutLists, number: int, rows: Rows) -> Rows:
    """The vertices that a layer reads of some rows, ascending."""
    found = {kind: np.empty(0, np.int64) for kind in cut.types}
    for kind, vertices in rows.items():
        for batch in batches_of(cut, number, kind, vertices):
            for source, ids in batch.vertices.items():
                found[source] = np.union1d(found[source], np.asarray(ids, np.int64))
    return found


def _missing(cut: CutLists, rank: int, number: int, kind: str, vertices: Array, known: Rows) -> Array:
    """For each of some vertices, how many of the rows that a layer reads for it are neither own nor known; its row of
    the level below is one of them."""
    counts = [np.empty(0, np.int64)]
    for batch in batches_of(cut, number, kind, vertices):
        block = batch.blocks[0]
        only = next(iter(batch.vertices))
        absent = {}
        for source, ids in batch.vertices.items():
            ids = np.asarray(ids, np.int64)
            absent[source] = (cut.ranks(source, ids) != rank) & ~np.isin(ids, known[source])
        found = absent[kind][: batch.num_seeds].astype(np.int64)
        for edge_type, part in getattr(block, "relations", {(only, "", kind): block}).items():
            # Relations to other types have no rows.
            if part.num_dst:
                found += np.bincount(part.destinations()[absent[edge_type[0]][part.indices]], minlength=part.num_dst)
        counts.append(found)
    return np.concatenate(counts)
