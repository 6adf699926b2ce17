"""A profile scaled to a cluster of another size: the graph is cut and some batches are drawn, nothing is trained."""

from itertools import islice
from typing import Any

import numpy as np

from penstock.cost.profile import Profile
from penstock.cost.scaled_profile import SCALED_SAMPLERS, scaled_profile
from penstock.cost.work import TaskWork, count_work
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.hardware.cluster import ClusterDocument
from penstock.partition import Cut, assign, open_partition
from penstock.pipeline.schedule import Planned, Schedule
from penstock.progress import SILENT, Progress
from penstock.quantities import counted
from penstock.sampling import MiniBatch
from penstock.train.batch_source import make_batch_source
from penstock.train.data import choose_task, open_data
from penstock.train.job import Job

_BATCHES = 10
"""Batches that are drawn to count what they read."""


def fit_profile(profile: Profile, job: Job, cluster: ClusterDocument, progress: Progress) -> Profile:
    """The profile for a cluster's machines and workers: itself, or predicted from it, which is said."""
    parts, workers = len(cluster.machines), cluster.workers
    if (profile.parts, profile.workers) == (parts, workers):
        return profile
    with progress.step("counting what batches read"):
        graph = open_data(job)
        _check_scalable(job, graph)
        part_of = _cut(graph, profile.parts, cluster.method)
        measured = _work(job, graph, part_of, profile.parts, profile.workers)
        smaller = None
        if profile.smaller_batch is not None:
            small = job.model_copy(update={"batch_size": profile.smaller_batch})
            smaller = _work(small, graph, part_of, profile.parts, profile.workers)
        wanted = _work(job, graph, _parts_of(graph, cluster), parts, workers)
    progress.note(
        f"The profile was measured with {counted(profile.parts, 'parts')} and {counted(profile.workers, 'workers')}:"
        f" it is scaled to {counted(parts, 'parts')} and {counted(workers, 'workers')}, by what batches of this graph"
        " read. Measure at this size to be sure."
    )
    return scaled_profile(profile, measured, wanted, smaller, graph.nbytes)


def _check_scalable(job: Job, graph: Graph) -> None:
    why = None
    if job.sampler not in SCALED_SAMPLERS:
        why = f"batches of sampler {job.sampler} are drawn as a whole"
    elif job.time is not None:
        why = "its batches are drawn by time"
    elif not graph.is_homogeneous:
        why = "its graph has several node types or relations"
    elif not (task := choose_task(graph, job)).startswith("node"):
        why = f"its task is {task}"
    if why is not None:
        raise PenstockError(
            f"The profile cannot be scaled to another number of parts or workers, as {why}: measure with"
            " `penstock profile JOB --cluster` for this cluster.",
            code="mismatched-inputs",
        )


def _work(job: Job, graph: Graph, part_of: Array, parts: int, workers: int) -> TaskWork:
    (nodes,) = graph.nodes.values()
    source = make_batch_source(job, graph, np.asarray(nodes.splits["train"]))
    (name,) = graph.node_types

    def draw(seeds: Array, planned: Planned) -> MiniBatch[Any]:
        return source.sample({name: seeds}, planned)

    batches = Schedule(source.items, source.batch_size, job.seed, epochs=_BATCHES).from_position()
    return count_work(draw, islice(batches, _BATCHES), part_of, parts, workers)


def _parts_of(graph: Graph, cluster: ClusterDocument) -> Array:
    """The part of every vertex: the cluster's own partition, or the graph cut as a run would cut it."""
    parts = len(cluster.machines)
    if cluster.partition is None:
        return _cut(graph, parts, cluster.method)
    partition = open_partition(cluster.partition)
    if partition.parts != parts:
        raise PenstockError(
            f"{cluster.partition} has {partition.parts} parts and the cluster {parts} machines: a plan needs one part"
            " for each machine; cut the graph into as many parts.",
            code="mismatched-inputs",
        )
    original = np.asarray(partition.original())
    part_of = np.empty(len(original), np.int64)
    part_of[original] = partition.book.owner(np.arange(len(original)))
    return part_of


def _cut(graph: Graph, parts: int, method: str) -> Array:
    if parts == 1:
        return np.zeros(graph.num_nodes, np.int64)
    return assign(graph, Cut(parts, method=method), progress=SILENT).assignment
