"""The session of a job on one of several workers."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from penstock.cluster.gpus import chosen_for_all
from penstock.cluster.server import check_served
from penstock.cluster.worker.batch_source import (
    SeedSplit,
    make_joint_batches,
    make_parted_batches,
    make_timed_batches,
    read_counts,
    whole_batches,
)
from penstock.cluster.worker.cut_graph import CutGraph, Parts, open_cut_graph
from penstock.cluster.worker.edge_tasks import (
    check_parted_times,
    learn_held_out_names,
    make_parted_edge_task,
    make_parted_triple_task,
)
from penstock.cluster.worker.inputs import PartedInputs
from penstock.cluster.worker.worker_group import ClusterWorkerGroup
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import TASK_FACTS, is_about
from penstock.hardware.cluster import Replica
from penstock.pipeline.batch_rows import RowReader, RowReading
from penstock.sampling.block import MiniBatch
from penstock.sampling.sampler_table import SAMPLERS
from penstock.sampling.temporal import OF_NODES
from penstock.store.parts import PartedRowSource
from penstock.store.parts.replicas import ReplicaCopy, ReplicaReader, RowPaths
from penstock.store.source import RowSource
from penstock.train.assembly import assembled, check_job, try_out
from penstock.train.batch_source import check_sampler_supports, clock_for
from penstock.train.dataset.inputs import with_edge_fields
from penstock.train.dataset.labels import labelled_vertices
from penstock.train.dataset.prepared_graph import choose_task
from penstock.train.execution_modes import choose_execution, needs_placement, reads_rows_again
from penstock.train.job import Job
from penstock.train.run import has_validation
from penstock.train.run_context import seeded
from penstock.train.session import Session
from penstock.train.tasks import NodeTask, Task
from penstock.train.user_functions import UserFunctions, functions_of
from penstock.wire.message import Message

# A worker's paths to feature rows: the owners of parts, and the replicas that the cluster file places.

_LOOK = 0.05
"""Seconds before a replica that is still being copied is asked again."""


def use_replicas(parts: Parts, features: str, types: Iterable[str]) -> None:
    """Have the worker's store fetch rows of these node types' features along all paths that the cluster file allows."""
    setup = parts.member.setup
    allowed = ("owner", "replica") if setup.cluster.feature_paths == "auto" else setup.cluster.feature_paths
    if not setup.cluster.replicas or "replica" not in allowed:
        return
    by_part: dict[int, list[Replica]] = {}
    for replica in setup.cluster.replicas:
        by_part.setdefault(replica.part, []).append(replica)
    copies = {
        f"{name}/{features}": {
            part: [_copy(parts, name, features, each) for each in replicas] for part, replicas in by_part.items()
        }
        for name in types
    }
    stores = {part: [f"store-{each.machine}" for each in replicas] for part, replicas in by_part.items()}
    paths = RowPaths(setup.layout.owners, stores, with_owner="owner" in allowed)
    endpoint = parts.member.endpoint
    parts.store.replicas = ReplicaReader(copies, paths, lambda store: endpoint.channel(store, "features", 2))


def _copy(parts: Parts, name: str, features: str, replica: Replica) -> ReplicaCopy:
    """What a replica holds, once it is ready; with its rows, if this worker can map them."""
    member, store = parts.member, f"store-{replica.machine}"
    request = {"part": replica.part, "field": f"{name}/{features}"}
    channel = member.endpoint.channel(store, "features", 2)
    while not (said := channel.call(Message("replica-rows", dict(request)))).body.get("ready"):
        if member.stopped.wait(_LOOK):
            raise PenstockError("The controller ended the run.", code="closed")
    numbers: Array | None = None if said.body.get("all") else np.asarray(said.arrays[0], np.int64)
    mine = replica.machine == member.setup.task.machine and parts.partition.has_part(replica.part)
    table = parts.partition.part(replica.part).nodes[name].fields[features] if mine else None
    return ReplicaCopy(store, numbers, table)


# Batches whose remote rows are rounded at random, anew in every epoch.


class RowsOfEpoch:
    """A `RowReader` over another one: a batch reads rows as that one does, rounded as its own epoch prescribes."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader

    def reading(self, batch: MiniBatch, node_type: str, source: RowSource) -> RowReading:
        if batch.key is not None and isinstance(source, PartedRowSource):
            source = source.in_epoch(batch.key.epoch)
        return self._reader.reading(batch, node_type, source)


def make_parted_session(parts: Parts, job: Job) -> tuple[Session, ClusterWorkerGroup]:
    """The session of a job over a partitioned graph; and the workers that share it."""
    setup = parts.member.setup
    device = torch.device(chosen_for_all(job.device, setup.cluster, setup.layout)[0])
    _check(job, setup.cluster.reduce)
    times = None if job.time is None else job.seed_time or job.time.removeprefix(OF_NODES)
    graph = open_cut_graph(parts, job, times)
    job = with_edge_fields(job, {kind: edges.fields for kind, edges in graph.edges.items()})
    with seeded(job.weight_seed, device):
        inputs = PartedInputs(graph, parts, job, device)
        use_replicas(parts, job.features, inputs.fields)
        functions = functions_of(job)
        task, graph, split = _task(parts, graph, job, functions)
        # Before a batch is tried: a sampler's own error would explain it less well.
        check_job(job, task, has_validation(task))
        session = assembled(job, graph, inputs, task, functions=functions)
        if parts.rounding is not None:
            inputs.read_by(RowsOfEpoch(inputs.reader))
    group = ClusterWorkerGroup(parts.member, parts, split)
    fresh = not any((Path(setup.run) / "checkpoints").glob("step-*.ckpt"))
    placed = None
    if inputs.on_gpu and needs_placement(job.sampler):
        # Triton is imported where there is a device for it.
        from penstock.cluster.worker.device_placement import check_for_gpus, is_far, place_on_worker

        served, cut = setup.cluster.reduce == "servers", not parts.partition.is_uncut
        check_for_gpus(job, served, bool(inputs.tables), is_far(parts), cut)
        placed = place_on_worker(session, parts, group.share, split.part, fresh)
        inputs.shared_bytes = placed.shared_bytes
    session.execution = choose_execution(session, placed, group)
    if setup.cluster.remote_cache_mb:
        _cache_remote_rows(session, parts, group, int(setup.cluster.remote_cache_mb * (1 << 20)))
    if fresh:
        # Once a run has begun, its embeddings are past the first step, and the model has been tried.
        try_out(session, with_loss=True)
    return session, group


def _cache_remote_rows(session: Session, parts: Parts, group: ClusterWorkerGroup, room: int) -> None:
    """Have the store cache the remote rows that this worker's batches read most."""
    if not reads_rows_again(session.job.sampler):
        raise PenstockError(
            f"remote_cache_mb keeps rows for later batches, and sampler {session.job.sampler} reads each remote row"
            " once: leave it out of the cluster file.",
            code="unsupported-combination",
        )
    reads = read_counts(session, group.share)
    fields = session.inputs.fields
    parts.store.cache_remote_rows({f"{name}/{fields[name]}": read for name, read in reads.items()}, room)


def _task(parts: Parts, graph: CutGraph, job: Job, functions: UserFunctions) -> tuple[Task, CutGraph, SeedSplit]:
    """The job's task, the graph it trains on, and how its batches are split."""
    name = choose_task(graph, job)
    if not is_about(name, "vertices"):
        # Whether relations have held-out edges decides between tasks on one relation and on all.
        learn_held_out_names(parts, graph)
        name = choose_task(graph, job)
    facts = TASK_FACTS[name]
    if not facts.on_clusters:
        raise PenstockError(
            f"Task {name} is not made of cut graphs: train it on one machine.", code="unsupported-combination"
        )
    if facts.about == "triples":
        return make_parted_triple_task(parts, graph, job, functions)
    if facts.about == "edges":
        return make_parted_edge_task(parts, graph, job, name, functions)
    layout, rank = parts.member.setup.layout, parts.member.setup.task.rank
    data = labelled_vertices(graph, job, name)
    train = np.asarray(data.splits["train"])
    new = parts.partition.new_ids(train, data.node_type)
    split = SeedSplit(train, new, layout.shares, rank)
    check_sampler_supports(job, graph)
    check_parted_times(job, graph)
    if job.time is not None:
        clock = clock_for(job, graph)
        assert clock is not None
        timed = make_timed_batches(parts, job, data.node_type, clock.of(data.node_type), graph, train, split)
        return NodeTask(data, timed, job, functions), graph, whole_batches(train)
    if SAMPLERS[job.sampler].joint:
        joint = make_joint_batches(parts, job, train, new)
        return NodeTask(data, joint, job, functions), graph, whole_batches(joint.items)
    batches = make_parted_batches(parts, job, data.node_type, graph, train, new)
    return NodeTask(data, batches, job, functions), graph, split


def _check(job: Job, reduce: str) -> None:
    """Refuse what is not supported on several machines, before anything starts."""
    if reduce == "servers":
        check_served(job)
