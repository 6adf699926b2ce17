"""From a job to its sampler, and what an epoch goes through with it."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.graph.integrity import require_times
from penstock.graph.schema import EdgeType
from penstock.pipeline.loading import Batch
from penstock.pipeline.schedule import Planned
from penstock.sampling import NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.cluster import ClusterSampler, clusters_from, clusters_of
from penstock.sampling.fastgcn import FastGCN
from penstock.sampling.labor import Labor
from penstock.sampling.ladies import Ladies
from penstock.sampling.saint import Saint
from penstock.train.job import Job

Sample = Callable[..., Batch]
"""`sample(seeds by node type, planned, exclude=...)`."""


@dataclass(frozen=True)
class Drawing:
    """A sampler ready for a task: `sample` takes seeds by node type, an epoch goes through `items`."""

    sample: Sample
    items: Array
    batch_size: int


def layers_of(job: Job) -> int:
    """Layers of the model: those asked for, or one a fan-out."""
    per_hop: dict[str, Sized] = {
        "neighbour": job.fanouts,
        "labor": job.fanouts,
        "fastgcn": job.layer_sizes,
        "ladies": job.layer_sizes,
    }
    if job.sampler not in per_hop:
        return job.layers or 2
    hops, what = per_hop[job.sampler], "fan-outs" if job.sampler in ("neighbour", "labor") else "layer sizes"
    if job.layers and len(hops) != job.layers:
        raise PenstockError(
            f"The model has {job.layers} layers and the job {len(hops)} {what} ({hops}): give one a layer."
        )
    return len(hops)


def clock_for(job: Job, graph: Graph) -> tuple[str, Array] | None:
    """The time field of a job and the time of every vertex as a seed."""
    if job.time is None:
        return None
    (nodes,) = graph.nodes.values()
    name = job.seed_time or job.time.removeprefix("node:")
    if name not in nodes.fields:
        raise PenstockError(f"The vertices have no field {name!r} with their times as seeds: set `seed_time`.")
    require_times(nodes, "vertices", name)
    return job.time, np.asarray(nodes.fields[name])


def make_drawing(job: Job, graph: Graph, train: Array, excluding: bool = False) -> Drawing:
    """The job's sampler over `train` items. `excluding`: its batches leave out edges that the task names."""
    if excluding and job.sampler != "neighbour":
        raise PenstockError(f"Tasks on edges are sampled with sampler neighbour, not {job.sampler}.")
    if excluding and job.time is not None:
        raise PenstockError("Tasks on edges are not sampled by time: leave out `time`.")
    if not graph.is_homogeneous:
        return _typed(job, graph, train)
    make = _HOMOGENEOUS[job.sampler]
    return make(job, graph, train)


def _neighbour(job: Job, graph: Graph, train: Array) -> Drawing:
    fanouts, clock = _plain(job.fanouts), clock_for(job, graph)
    totals = job.needs_totals
    sampler = NeighbourSampler(graph, fanouts, job.replace, weight=job.weight, time=job.time, totals=totals)
    if clock is None:
        return Drawing(_of_vertices(sampler), train, job.batch_size)
    _, times = clock

    def timed(seeds: dict[str, Array], planned: Planned) -> Batch:
        (only,) = seeds.values()
        return sampler.sample(only, planned.key, times=times[only])

    return Drawing(timed, train, job.batch_size)


def _labor(job: Job, graph: Graph, train: Array) -> Drawing:
    return Drawing(_of_vertices(Labor(graph, _plain(job.fanouts))), train, job.batch_size)


def _layerwise(job: Job, graph: Graph, train: Array) -> Drawing:
    kind = FastGCN if job.sampler == "fastgcn" else Ladies
    return Drawing(_of_vertices(kind(graph, job.layer_sizes)), train, job.batch_size)


def _saint(job: Job, graph: Graph, train: Array) -> Drawing:
    kind = job.sampler.removeprefix("saint-")
    sampler = Saint(graph, train, kind=kind, size=job.saint_size, walk_length=job.walk_length, layers=layers_of(job))
    return Drawing(_of_vertices(sampler), sampler.items, 1)


def _cluster(job: Job, graph: Graph, train: Array) -> Drawing:
    if job.partition is not None:
        from penstock.partition import open_partition

        clusters = clusters_from(open_partition(Path(job.partition), job.unchecked))
    else:
        clusters = clusters_of(graph, job.clusters, job.seed)
    sampler = ClusterSampler(graph, clusters, train, layers=layers_of(job))
    return Drawing(_of_vertices(sampler), sampler.items, job.clusters_per_batch)


_HOMOGENEOUS: dict[str, Callable[[Job, Graph, Array], Drawing]] = {
    "neighbour": _neighbour,
    "labor": _labor,
    "fastgcn": _layerwise,
    "ladies": _layerwise,
    "saint-vertex": _saint,
    "saint-edge": _saint,
    "saint-walk": _saint,
    "cluster": _cluster,
}


def _typed(job: Job, graph: Graph, train: Array) -> Drawing:
    if job.sampler != "neighbour":
        raise PenstockError(f"Sampler {job.sampler} is for graphs with one node and edge type: use neighbour.")
    if job.time is not None:
        raise PenstockError("Temporal sampling is for graphs with one node and edge type: leave out `time`.")
    fanouts: list[int | Mapping[EdgeType | str, int]] = [
        dict(fanout.items()) if isinstance(fanout, dict) else fanout for fanout in job.fanouts
    ]
    sampler = TypedNeighbourSampler(graph, fanouts, job.replace, weight=job.weight, totals=job.needs_totals)
    return Drawing(lambda seeds, planned, **more: sampler.sample(seeds, planned.key, **more), train, job.batch_size)


def _of_vertices(sampler: Any) -> Sample:
    """Samplers of graphs with one node type take the seeds as they are."""

    def sample(seeds: dict[str, Array], planned: Planned, **more: Any) -> Batch:
        (only,) = seeds.values()
        batch: Batch = sampler.sample(only, planned.key, **more)
        return batch

    return sample


def _plain(fanouts: list[int | dict[str, int]]) -> list[int]:
    if any(isinstance(fanout, dict) for fanout in fanouts):
        raise PenstockError("Fan-outs a relation are for graphs with several relations: give one number a hop.")
    return [fanout for fanout in fanouts if isinstance(fanout, int)]
