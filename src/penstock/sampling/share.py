"""What some of a batch's seeds need of it, where workers share a batch that was drawn as a whole."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.relabel import DirectRows, Rows


def share_of(
    batch: MiniBatch[Block], places: Array, every_row: bool = False, inputs: Array | None = None
) -> MiniBatch[Block]:
    """The seeds at some different places, and what their layers reach back to; with `every_row`, all rows of every
    layer but the last, for what measures the batch's rows.

    `inputs` are places of vertices that the share has also where none of its rows reads them, for what happens to a
    batch's vertices because they are in it. Lists keep their order and weights, so that the rows which are computed are
    computed as in the whole batch. Rows are numbered anew, and positions of edges are left out.
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
    return Block(indptr, indices, rows.known, weights, totals)


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
