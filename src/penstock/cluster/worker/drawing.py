"""Batches of a cut graph: drawn by this process or by sampler tasks, for seeds by their original numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.cluster.worker.clusters import is_first_worker, offer_clusters
from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.joint import JOINT, LAYERWISE, joint_sampler
from penstock.cluster.worker.split import SeedSplit
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.pipeline.loading import Batch
from penstock.pipeline.schedule import Planned
from penstock.sampling import MiniBatch, NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.links import Absent, Exclude
from penstock.sampling.parts import LackingSampler, RemoteSampler, edge_types_in, parted_labor, parted_sampler
from penstock.train.job import Job
from penstock.train.samplers import Drawing

SAMPLER = "train"
"""The name under which sampler tasks serve the job's sampler."""


def job_sampler(parts: Parts, job: Job) -> Any:
    """The job's sampler over all parts."""
    fanouts: list[Any] = [dict(fanout) if isinstance(fanout, dict) else fanout for fanout in job.fanouts]
    if job.sampler == "labor":
        if any(isinstance(fanout, dict) for fanout in fanouts):
            raise PenstockError("Fan-outs a relation are for graphs with several relations: give one number a hop.")
        return parted_labor(parts.partition, fanouts, local=parts.owned, channels=parts.lists)
    if job.sampler in JOINT:
        return joint_sampler(parts, job)

    def lacking(absent: Mapping[EdgeType, Absent]) -> NeighbourSampler | TypedNeighbourSampler:
        return parted_sampler(
            parts.partition,
            fanouts,
            job.replace,
            job.weight,
            totals=job.needs_totals,
            time=job.time,
            local=parts.owned,
            channels=parts.lists,
            absent=absent,
            vertex_times=parts.vertex_times(job.time),
        )

    return LackingSampler(lacking, edge_types_in(parts.owned, parts.lists))


def make_parted_drawing(parts: Parts, job: Job, node_type: str, typed: bool, train: Array, new: Array) -> Drawing:
    """`train` are the training vertices, ascending, and `new` their numbers in the cut graph, which may be `typed`."""
    sampler = _sampler_for(parts, job)

    def sample(seeds: Mapping[str, Array], planned: Planned, **more: Any) -> Batch:
        (given,) = seeds.values()
        numbers = new[np.searchsorted(train, given)]
        batch: Batch = sampler.sample({node_type: numbers} if typed else numbers, planned.key, **more)
        # Labels are found by the numbers that the task knows.
        batch.seeds = {node_type: given} if typed else given
        return batch

    return Drawing(sample, train, job.batch_size)


def make_timed_drawing(parts: Parts, job: Job, times: Array, train: Array, split: SeedSplit) -> Drawing:
    """Of a graph of one type, by time; `times` are those of all vertices as seeds, and `split` takes this worker's
    seeds of a whole batch: a seed's draws depend on its place in it."""
    sampler, partition = _sampler_for(parts, job), parts.partition
    new = partition.new_ids(train)

    def sample(seeds: Mapping[str, Array], planned: Planned) -> Batch:
        (whole,) = seeds.values()
        places = split.places(planned)
        given = whole[places]
        numbers = new[np.searchsorted(train, given)]
        batch: Batch = sampler.sample(numbers, planned.key, times=times[given], places=places)
        batch.seeds = given
        return batch

    return Drawing(sample, train, job.batch_size)


def make_joint_drawing(parts: Parts, job: Job, train: Array, new: Array) -> Drawing:
    """For samplers that draw a batch as a whole: `sample` keeps this worker's share, whose seeds it may have to find.

    `train` are the training vertices, ascending, and `new` their numbers in the cut graph.
    """
    remote = _sampling_tasks(parts)
    if remote is not None and job.sampler == "cluster" and is_first_worker(parts):
        # Its samplers wait for them.
        offer_clusters(parts, job)
    sampler: Any = joint_sampler(parts, job, new) if remote is None else remote
    draw, items, size = sampler.sample, train, job.batch_size
    if job.sampler not in LAYERWISE:
        draw, items = (sampler.sample, sampler.items) if remote is None else (remote.sample_items, remote.items())
        size = job.clusters_per_batch if job.sampler == "cluster" else 1

    def sample(seeds: Mapping[str, Array], planned: Planned) -> Batch:
        (given,) = seeds.values()
        if job.sampler in LAYERWISE:
            given = new[np.searchsorted(train, given)]
        batch: Batch = draw(given, planned.key)
        assert isinstance(batch, MiniBatch) and batch.names is not None
        batch.seeds = batch.names[: len(batch.seeds)]
        return batch

    return Drawing(sample, items, size)


def make_parted_edge_drawing(parts: Parts, job: Job, new: Mapping[str, Array], typed: bool, items: Array) -> Drawing:
    """For tasks on edges: `items` are the training edges' positions, `new` the new numbers of all vertices, by type."""
    sampler = _sampler_for(parts, job)

    def sample(seeds: Mapping[str, Array], planned: Planned, *, exclude: Exclude) -> Batch:
        numbers: Any = {name: new[name][these] for name, these in seeds.items()}
        pairs: Any
        if isinstance(exclude, dict):
            pairs = {
                kind: np.stack([new[kind[0]][sources], new[kind[2]][targets]])
                for kind, (sources, targets) in exclude.items()
            }
        else:
            ((only, numbers),) = numbers.items()
            pairs = new[only][exclude]
        batch: Batch = sampler.sample(numbers, planned.key, exclude=pairs, absent=parts.absent)
        batch.seeds = dict(seeds) if typed else next(iter(seeds.values()))
        return batch

    return Drawing(sample, items, job.batch_size)


def _sampler_for(parts: Parts, job: Job) -> Any:
    """The job's sampler, or the tasks that sample for this worker."""
    return _sampling_tasks(parts) or job_sampler(parts, job)


def _sampling_tasks(parts: Parts) -> RemoteSampler | None:
    """The tasks that sample for this worker, if there are any."""
    setup = parts.member.setup
    helpers = setup.layout.samplers_of(setup.task.rank)
    if not helpers:
        return None
    book = parts.partition.book
    counts = {name: book.count(name) for name in book.node_types}
    names = {name: parts.partition.original(name) for name in book.node_types}
    channels = [parts.member.post.channel(task, "batches", 1) for task in helpers]
    return RemoteSampler(channels, SAMPLER, counts, names)
