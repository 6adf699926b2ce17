"""Batches of a cut graph: drawn by this process or by sampler tasks, for seeds by their original numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.cluster.worker.clusters import is_first_worker, offer_clusters
from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.parted_source import PartedSource
from penstock.cluster.worker.split import SeedSplit, vertex_share
from penstock.coflow_context import PREPARATION, Coflow, within_coflow
from penstock.graph.arrays import Array
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.sampling.links import Exclude
from penstock.sampling.parts import HoldoutSampler, RemoteSampler, SharedSampler
from penstock.sampling.registry import sampler_entry
from penstock.train.batch_source import BatchSource, batch_size_of, settings_of
from penstock.train.job import Job

SAMPLER = "train"
"""The name under which sampler tasks serve the job's sampler."""


def job_sampler(parts: Parts, job: Job, train: Array | None = None) -> Any:
    """The job's sampler over all parts; `train` are the training vertices in the cut graph's numbers, if known."""
    with within_coflow(Coflow(PREPARATION, "", 1)):
        return _job_sampler(parts, job, train)


def _job_sampler(parts: Parts, job: Job, train: Array | None) -> Any:
    entry, source, settings = sampler_entry(job.sampler), PartedSource(parts, job, train), settings_of(job)
    if entry.joint:
        return _shared(parts, job, source, entry.build(source, settings), settings.edges)
    if "exclude" not in entry.supports:
        return entry.build(source, settings)
    return HoldoutSampler(lambda absent: entry.build(source.without(absent), settings), parts.edge_types)


def make_parted_batches(parts: Parts, job: Job, node_type: str, typed: bool, train: Array, new: Array) -> BatchSource:
    """`train` are the training vertices, ascending, and `new` their numbers in the cut graph, which may be `typed`."""
    sampler = _sampler_for(parts, job)

    def sample(seeds: Mapping[str, Array], planned: Planned, **more: Any) -> Batch:
        (given,) = seeds.values()
        numbers = new[np.searchsorted(train, given)]
        batch: Batch = sampler.sample({node_type: numbers} if typed else numbers, planned.key, **more)
        # Labels are found by the numbers that the task knows.
        batch.seeds = {node_type: given}
        return batch

    return BatchSource(sample, train, batch_size_of(job, len(train)))


def make_timed_batches(
    parts: Parts, job: Job, node_type: str, times: Array, typed: bool, train: Array, split: SeedSplit
) -> BatchSource:
    """By time; `times` are those of all vertices of the type as seeds, and `split` takes this worker's seeds of a
    whole batch, because a seed's draws depend on its place in it."""
    sampler, partition = _sampler_for(parts, job), parts.partition
    new = partition.new_ids(train, node_type)

    def sample(seeds: Mapping[str, Array], planned: Planned) -> Batch:
        (whole,) = seeds.values()
        places = split.places(planned)
        given = whole[places]
        asked: list[Any] = [new[np.searchsorted(train, given)], times[given], places]
        numbers, seen, there = ({node_type: each} if typed else each for each in asked)
        batch: Batch = sampler.sample(numbers, planned.key, times=seen, places=there)
        batch.seeds = {node_type: given}
        return batch

    return BatchSource(sample, train, job.batch_size)


def make_joint_batches(parts: Parts, job: Job, train: Array, new: Array) -> BatchSource:
    """For samplers that draw a batch as a whole: `sample` keeps this worker's share, whose seeds it may have to find.

    `train` are the training vertices, ascending, and `new` their numbers in the cut graph.
    """
    entry, remote = sampler_entry(job.sampler), _sampling_tasks(parts)
    if remote is not None and entry.uses_clusters and is_first_worker(parts):
        # Its sampler tasks wait for them.
        offer_clusters(parts, job)
    sampler: Any = job_sampler(parts, job, new) if remote is None else remote
    draw, items, size = sampler.sample, train, job.batch_size
    if entry.items_per_batch is not None:
        draw, items = (sampler.sample, sampler.items) if remote is None else (remote.sample_items, remote.items())
        size = entry.items_per_batch(job)

    def sample(seeds: Mapping[str, Array], planned: Planned) -> Batch:
        (given,) = seeds.values()
        if entry.items_per_batch is None:
            given = new[np.searchsorted(train, given)]
        batch: Batch = draw(given, planned.key)
        assert batch.names is not None
        batch.seeds = {name: batch.names[name][: len(own)] for name, own in batch.seeds.items()}
        return batch

    return BatchSource(sample, items, size)


def make_parted_edge_batches(parts: Parts, job: Job, new: Mapping[str, Array], items: Array) -> BatchSource:
    """For tasks on edges: `items` are the training edges' positions, `new` the new numbers of all vertices, by type."""
    sampler = _sampler_for(parts, job)

    typed = len(parts.edge_types) > 1 or len(parts.partition.book.node_types) > 1

    def sample(
        seeds: Mapping[str, Array],
        planned: Planned,
        *,
        exclude: Exclude | None = None,
        times: Mapping[str, Array] | None = None,
        places: Mapping[str, Array] | None = None,
    ) -> Batch:
        numbers: Any = {name: new[name][these] for name, these in seeds.items()}
        more: dict[str, Any] = {"absent": parts.absent} if parts.absent else {}
        if isinstance(exclude, dict):
            more["exclude"] = {
                kind: np.stack([new[kind[0]][sources], new[kind[2]][targets]])
                for kind, (sources, targets) in exclude.items()
            }
        elif exclude is not None:
            (only,) = numbers
            more["exclude"] = new[only][exclude]
        if times is not None:
            more |= {"times": times, "places": _places_of(seeds) if places is None else places}
        if not typed:
            (numbers,) = numbers.values()
            more |= {name: next(iter(more[name].values())) for name in ("times", "places") if name in more}
        batch: Batch = sampler.sample(numbers, planned.key, **more)
        batch.seeds = dict(seeds)
        return batch

    return BatchSource(sample, items, batch_size_of(job, len(items)))


def _places_of(seeds: Mapping[str, Array]) -> dict[str, Array]:
    """The places of all seeds of a batch that is nobody's share, types one behind the other."""
    ends = np.cumsum([0, *map(len, seeds.values())])
    return {name: np.arange(first, last) for name, first, last in zip(seeds, ends[:-1], ends[1:], strict=True)}


def _shared(parts: Parts, job: Job, source: PartedSource, sampler: Any, edges: bool) -> SharedSampler:
    """A sampler that draws a batch for all workers, of which this one keeps its share."""
    setup, graph = parts.member.setup, source.whole_lists(job.sampler)
    share = vertex_share(setup.layout.shares, setup.task.rank)
    # One machine normalises rows that no loss vertex needs too: then every worker has them all. And optimisers with
    # moments move learnable rows of a batch without any gradient.
    finds_seeds = sampler_entry(job.sampler).items_per_batch is not None
    every_input = finds_seeds and _learns_rows(parts, job, graph.node_type)
    return SharedSampler(graph, sampler, share, job.norm == "batch", every_input, edges)


def _learns_rows(parts: Parts, job: Job, node_type: str) -> bool:
    """Whether vertices have embeddings in the place of features."""
    return job.features not in parts.describe(job.label)[0]["nodes"][node_type]["fields"]


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
    channels = [parts.member.endpoint.channel(task, "batches", 1) for task in helpers]
    return RemoteSampler(channels, SAMPLER, counts, names)
