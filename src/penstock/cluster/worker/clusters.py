"""Cluster-GCN's clusters on several machines: the first worker computes them and sends them to the others.

METIS wants the graph in one place: for the time that it takes, the first worker has all lists in the numbers before
the cut (4 bytes an edge, 8 a vertex) and what METIS makes of them, as a single machine has. It keeps the result in the
run's folder, so that a worker started again need not find it anew, and all tasks have the same whatever library each
has.
"""

from pathlib import Path

import numpy as np

from penstock.cluster.worker.cut_graph import Parts
from penstock.errors import PenstockError
from penstock.graph.arrays import Array, open_array
from penstock.graph.atomic import replace_whole
from penstock.graph.data import NodeSet
from penstock.graph.graph import Graph
from penstock.partition import open_partition
from penstock.sampling.cluster import clusters_from, clusters_of
from penstock.train.job import Job
from penstock.wire import Message

_FILE = "clusters.npy"
_PIECE = 1 << 20
"""Vertices whose clusters are given at a time: 8 MiB."""
_AGAIN = 0.1
"""Seconds before the first worker is asked again."""


def clusters_for(parts: Parts, job: Job) -> Array:
    """The cluster (int64) of every vertex, by its number before the cut."""
    return offer_clusters(parts, job) if is_first_worker(parts) else _ask(parts)


def is_first_worker(parts: Parts) -> bool:
    """Whether this task finds the clusters for all."""
    task = parts.member.setup.task
    return task.kind == "worker" and task.rank == 0


def offer_clusters(parts: Parts, job: Job) -> Array:
    """Compute the clusters, and from then on send them to workers that ask."""
    found: list[Array] = []

    def give(message: Message, sender: str) -> Message:
        first = message.body.get("first")
        if not isinstance(first, int) or first < 0:
            raise PenstockError(
                f"Clusters were asked for from vertex {first!r} on: ask from 0 or more.", code="value-out-of-range"
            )
        # Without an array: not yet.
        return Message("clusters", {}, tuple(clusters[first : first + _PIECE] for clusters in found))

    parts.member.endpoint.serve("clusters", give)
    found.append(_kept(parts, job))
    return found[0]


def _kept(parts: Parts, job: Job) -> Array:
    """From the run's folder, or found and put there."""
    path, count = Path(parts.member.setup.run) / _FILE, parts.partition.book.count()
    if path.exists():
        try:
            return np.array(open_array(path, "int64", (count,)))
        except PenstockError:
            raise PenstockError(
                f"{path} does not hold the clusters of {count:,} vertices: delete it, and they are computed again.",
                code="damaged-file",
            ) from None
    clusters = _found(parts, job)
    replace_whole(path, lambda file: np.save(file, clusters, allow_pickle=False))
    return clusters


def _found(parts: Parts, job: Job) -> Array:
    """Compute the clusters as a run on one machine does."""
    if job.partition is not None:
        clusters = clusters_from(open_partition(Path(job.partition), job.unchecked))
        count = parts.partition.book.count()
        if len(clusters) != count:
            raise PenstockError(
                f"There are {len(clusters):,} cluster numbers ({clusters.dtype}) for {count:,} vertices: give one"
                " integer for each vertex.",
                code="shape-mismatch",
            )
    else:
        (kind,) = parts.edge_types
        nodes = {kind[2]: NodeSet(parts.partition.book.count())}
        graph = Graph(nodes, {kind: parts.reader.lists(kind)}, str(parts.partition.document.graph))
        clusters = clusters_of(graph, job.clusters, job.seed)
    return np.ascontiguousarray(clusters, np.int64)


def _ask(parts: Parts) -> Array:
    """Of the first worker, for as long as the run goes on: the controller brings it back, or ends the run."""
    channel = parts.member.endpoint.channel("worker-0", "state")
    clusters, known = np.empty(parts.partition.book.count(), np.int64), 0
    while known < len(clusters):
        try:
            arrays = channel.call(Message("clusters", {"first": known})).arrays
        except PenstockError:
            # It is not there, or has not come to where it answers.
            arrays = ()
        if arrays:
            (piece,) = arrays
            if piece.ndim != 1 or piece.dtype != np.int64 or not 0 < len(piece) <= len(clusters) - known:
                raise PenstockError(
                    "The first worker sent an answer without valid clusters: run the same release on all machines.",
                    code="malformed-message",
                )
            clusters[known : known + len(piece)] = piece
            known += len(piece)
        elif parts.member.stopped.wait(_AGAIN):
            raise PenstockError("The controller ended the run.", code="closed")
    return clusters
