"""A worker's share of a batch of edges: some of the positives, against what stands against them in the whole batch."""

from dataclasses import replace

import numpy as np

from penstock.graph.arrays import Array
from penstock.sampling.links.batch import EdgeBatch, WholeEdgeBatch
from penstock.sampling.links.batcher import number_ends


def share_of(batch: EdgeBatch, rows: Array) -> EdgeBatch:
    """The positives at some places of a batch, with their negatives; nothing is drawn anew, and `exclude` stays whole.

    Negatives that several positives share stay with each worker that has one of them.
    """
    wrong_destination, group = _of_rows(batch.negative_destination_rows, batch.group, rows)
    wrong_source, other = _of_rows(batch.negative_source_rows, batch.group, rows)
    source_type, _, destination_type = batch.edge_type
    ends = batch.source_rows[rows], batch.destination_rows[rows], wrong_destination, wrong_source
    # Rows of the whole batch are numbered as vertices are: each is a vertex, or a vertex at a time.
    places, own = number_ends(source_type, destination_type, *ends)
    nodes = {name: batch.nodes[name][these] for name, these in places.items()}
    times = batch.node_times
    # Among the seeds of the whole batch, where types stand one behind the other.
    starts = dict(zip(batch.nodes, np.cumsum([0, *map(len, batch.nodes.values())]).tolist(), strict=False))
    return replace(
        batch,
        edges=batch.edges[rows],
        source=batch.source[rows],
        destination=batch.destination[rows],
        negative_source=nodes[source_type][own[3]],
        negative_destination=nodes[destination_type][own[2]],
        nodes=nodes,
        source_rows=own[0],
        destination_rows=own[1],
        negative_source_rows=own[3],
        negative_destination_rows=own[2],
        group=max(group, other),
        negative_source_mask=_at(batch.negative_source_mask, rows),
        negative_destination_mask=_at(batch.negative_destination_mask, rows),
        labels=_at(batch.labels, rows),
        whole=WholeEdgeBatch(len(batch), batch.num_pairs),
        times=_at(batch.times, rows),
        node_times=None if times is None else {name: times[name][these] for name, these in places.items()},
        places={name: these + starts[name] for name, these in places.items()},
    )


def _of_rows(negatives: Array, group: int, rows: Array) -> tuple[Array, int]:
    """What stands against some positives: the only group's for all of them, else a row each."""
    if negatives.shape[1] == 0:
        return np.empty((len(rows), 0), np.int64), 1
    if len(negatives) == 1 and len(rows):
        return negatives, len(rows)
    return negatives[rows // group], 1


def _at(values: Array | None, rows: Array) -> Array | None:
    return None if values is None else values[rows]
