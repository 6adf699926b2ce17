"""Batches of a cut graph: drawn by this process or by sampler tasks, for seeds by their original numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.cluster.worker.cut_graph import Parts
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.pipeline.loading import Batch
from penstock.pipeline.schedule import Planned
from penstock.sampling.parts import RemoteSampler, parted_sampler
from penstock.train.job import Job
from penstock.train.samplers import Drawing

SAMPLER = "train"
"""The name under which sampler tasks serve the job's sampler."""


def job_sampler(parts: Parts, job: Job) -> Any:
    """The job's sampler over all parts."""
    if job.sampler != "neighbour":
        raise PenstockError(
            f"Sampler {job.sampler} needs the whole graph in one place: on several machines use sampler neighbour."
        )
    fanouts: list[Any] = [dict(fanout) if isinstance(fanout, dict) else fanout for fanout in job.fanouts]
    return parted_sampler(
        parts.partition,
        fanouts,
        job.replace,
        job.weight,
        totals=job.needs_totals,
        time=job.time,
        local=parts.owned,
        channels=parts.lists,
    )


def make_parted_drawing(parts: Parts, job: Job, node_type: str, typed: bool, train: Array, new: Array) -> Drawing:
    """`train` are the training vertices, ascending, and `new` their numbers in the cut graph, which may be `typed`."""
    setup = parts.member.setup
    helpers = setup.layout.samplers_of(setup.task.rank)
    sampler: Any
    if helpers:
        book = parts.partition.book
        counts = {name: book.count(name) for name in book.node_types}
        names = {name: parts.partition.original(name) for name in book.node_types}
        channels = [parts.member.post.channel(task, "batches", 0) for task in helpers]
        sampler = RemoteSampler(channels, SAMPLER, counts, names)
    else:
        sampler = job_sampler(parts, job)

    def sample(seeds: Mapping[str, Array], planned: Planned, **more: Any) -> Batch:
        (given,) = seeds.values()
        numbers = new[np.searchsorted(train, given)]
        batch: Batch = sampler.sample({node_type: numbers} if typed else numbers, planned.key, **more)
        # Labels are found by the numbers that the task knows.
        batch.seeds = {node_type: given} if typed else given
        return batch

    return Drawing(sample, train, job.batch_size)
