"""The room for a job's batches on a device, concluded from its first ones."""

from penstock.graph.graph import Graph
from penstock.pipeline.schedule import BatchPlan
from penstock.sampling import NeighbourSampler
from penstock.sampling.device.room import Room, largest_room, room_for
from penstock.train.job import Job

_PRESAMPLED = 16
"""Batches from which the room of all others is concluded."""


def presampled_room(job: Job, graph: Graph, schedule: BatchPlan) -> Room:
    """The room for a job's batches, from its first ones; the same whenever and wherever the run goes on."""
    fanouts = [fanout for fanout in job.fanouts if isinstance(fanout, int)]
    sampler = NeighbourSampler(graph, fanouts, job.replace)
    sizes: list[list[int]] = []
    for planned, _ in zip(schedule.from_position(), range(_PRESAMPLED), strict=False):
        if len(planned.seeds) == schedule.batch_size or not sizes:
            batch = sampler.sample(planned.seeds, planned.key)
            sizes.append([size for block in batch.blocks[::-1] for size in (block.num_edges, block.num_src)])
    return room_for(sizes, schedule.batch_size, largest_room(schedule.batch_size, fanouts, graph.num_nodes))
