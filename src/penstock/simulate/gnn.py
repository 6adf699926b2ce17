"""GNN training as a workload: stores, samplers, workers, and parameter servers or a ring.

Kinds of tasks: `store`, `sampler`, `worker`, `server`, `ring`. Kinds of flows: `pull` (store to sampler), `batch`
(sampler to worker), `gradient` (worker to server), `parameters` (server to worker, needed in the next iteration) and
`ring` (worker to its right neighbour).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.simulate.workload import Workload, WorkloadBuilder


@dataclass(frozen=True)
class GnnJob:
    """Counts, mean seconds and mean bytes of one iteration; resources are per task of a kind."""

    stores: int
    workers: int
    samplers_per_worker: int
    servers: int = 1  # 0: gradients are reduced around a ring
    store_seconds: float = 0.0
    sampler_seconds: float = 0.0
    worker_seconds: float = 0.0
    server_seconds: float = 0.0
    pull_bytes: float = 0.0  # what one sampler pulls an iteration, from all stores together
    batch_bytes: float = 0.0  # from one sampler to its worker
    model_bytes: float = 0.0  # gradients of one worker; as many bytes of parameters come back
    near_stores: Sequence[Sequence[float]] | Array | None = None  # [samplers, stores] shares of the pull; else equal
    prefetch: int | None = None  # pulls and samplers are at most so many iterations ahead of the worker; None: no limit
    resources: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # kind of task -> resource -> amount

    def __post_init__(self) -> None:
        for name, least in (("stores", 1), ("workers", 1), ("samplers_per_worker", 1), ("servers", 0)):
            if getattr(self, name) < least:
                raise PenstockError(
                    f"A GNN job has {getattr(self, name)} {name}: give at least {least}.", code="value-out-of-range"
                )
        if self.prefetch is not None and self.prefetch < 1:
            raise PenstockError(
                f"A prefetch of {self.prefetch} iterations would block the job: give 1 or more.",
                code="value-out-of-range",
            )
        unknown = set(self.resources) - {"store", "sampler", "worker", "server", "ring"}
        if unknown:
            raise PenstockError(
                f"A GNN job has no task of kind {min(unknown)!r}: use store, sampler, worker or server.",
                code="unknown-name",
            )


def gnn_workload(job: GnnJob, name: str = "job") -> Workload:
    """The template of one iteration: task (j, n + 1) follows (j, n), and so does every flow."""
    building = WorkloadBuilder(name)
    stores = _add_alike(building, job, "store", [f"store{k}" for k in range(job.stores)], job.store_seconds)
    workers, samplers = _add_workers(building, job)
    _add_pulls(building, job, stores, workers, samplers)
    if job.servers:
        _add_servers(building, job, workers)
    elif job.workers > 1:
        _add_ring(building, job, workers)
    return building.build()


def _add_alike(building: WorkloadBuilder, job: GnnJob, kind: str, names: list[str], seconds: float) -> Array:
    """Add tasks of one kind; their numbers."""
    held = [job.resources.get(kind, {})] * len(names)
    return building.add_tasks(names, [kind] * len(names), np.full(len(names), seconds), held)


def _add_workers(building: WorkloadBuilder, job: GnnJob) -> tuple[Array, Array]:
    """Every worker followed by its samplers; the numbers of workers, and of samplers [workers, samplers of each]."""
    kinds = ["worker", *["sampler"] * job.samplers_per_worker] * job.workers
    names = []
    for w in range(job.workers):
        names += [f"worker{w}", *(f"sampler{w}.{s}" for s in range(job.samplers_per_worker))]
    seconds = np.tile([job.worker_seconds] + [job.sampler_seconds] * job.samplers_per_worker, job.workers)
    held = {kind: job.resources.get(kind, {}) for kind in ("worker", "sampler")}
    numbers = building.add_tasks(names, kinds, seconds, [held[kind] for kind in kinds])
    numbers = numbers.reshape(job.workers, -1)
    return numbers[:, 0], numbers[:, 1:]


def _add_pulls(building: WorkloadBuilder, job: GnnJob, stores: Array, workers: Array, samplers: Array) -> None:
    """What every sampler pulls from the stores, and its batch to its worker."""
    sampler, worker = samplers.reshape(-1), np.repeat(workers, samplers.shape[1])
    shares = _pull_shares(job)
    # A row for each sampler: its pulls, then its batch.
    sources = np.concatenate([np.broadcast_to(stores, shares.shape), sampler[:, None]], axis=1)
    targets = np.concatenate([np.broadcast_to(sampler[:, None], shares.shape), worker[:, None]], axis=1)
    sizes = np.concatenate([job.pull_bytes * shares, np.full((len(sampler), 1), job.batch_bytes)], axis=1)
    wanted = np.concatenate([shares > 0, np.ones((len(sampler), 1), bool)], axis=1)
    is_pull = np.broadcast_to(np.arange(sources.shape[1]) < len(stores), wanted.shape)[wanted]
    kinds = ["pull" if each else "batch" for each in is_pull.tolist()]
    flows = building.add_flows(sources[wanted], targets[wanted], sizes[wanted], kinds)
    if job.prefetch is not None:
        of_worker = np.broadcast_to(worker[:, None], wanted.shape)[wanted]
        lags = np.full(int(is_pull.sum()), job.prefetch)
        building.add_waits(of_worker[is_pull], flows[is_pull], lags, after_are_flows=True)


def _add_servers(building: WorkloadBuilder, job: GnnJob, workers: Array) -> None:
    """Each server holds an equal shard of the model."""
    servers = _add_alike(building, job, "server", [f"server{k}" for k in range(job.servers)], job.server_seconds)
    each_server, each_worker = np.repeat(servers, len(workers)), np.tile(workers, len(servers))
    # For every server and worker: gradients there, then parameters back.
    sources = np.stack([each_worker, each_server], axis=1).reshape(-1)
    targets = np.stack([each_server, each_worker], axis=1).reshape(-1)
    count = len(each_server)
    building.add_flows(
        sources,
        targets,
        np.full(2 * count, job.model_bytes / job.servers),
        ["gradient", "parameters"] * count,
        arrival_lags=np.tile([0, 1], count),
    )


def _add_ring(building: WorkloadBuilder, job: GnnJob, workers: Array) -> None:
    """2(n - 1) steps in which every worker sends one n-th of the model to its right neighbour.

    A step is a task without duration beside its worker. Step k of worker w waits for what its left
    neighbour sent in step k - 1; the first step waits for all workers, the next iteration of a worker for its last.
    """
    size = len(workers)
    steps = 2 * (size - 1)
    names = [f"ring{w}.{k}" for w in range(size) for k in range(steps)]
    held = [job.resources.get("ring", {})] * len(names)
    rings = building.add_tasks(names, ["ring"] * len(names), np.zeros(len(names)), held, np.repeat(workers, steps))
    rings = rings.reshape(size, steps)
    building.add_waits(np.tile(workers, size), np.repeat(rings[:, 0], size), np.zeros(size * size, np.int64))
    right = np.roll(np.concatenate([rings[:, 1:], workers[:, None]], axis=1), -1, axis=0)
    building.add_flows(
        rings.reshape(-1),
        right.reshape(-1),
        np.full(len(names), job.model_bytes / size),
        ["ring"] * len(names),
        names=[f"{name}->" for name in names],
        coflows=([f"ring {k}" for k in range(steps)], np.tile(np.arange(steps), size)),
        arrival_lags=np.tile(np.arange(steps) == steps - 1, size).astype(np.int64),
    )
    building.add_waits(rings[:, :-1].reshape(-1), rings[:, 1:].reshape(-1), np.zeros(size * (steps - 1), np.int64))


def _pull_shares(job: GnnJob) -> Array:
    """What part of its pull each sampler takes from each store, rows adding up to 1."""
    samplers = job.workers * job.samplers_per_worker
    if job.near_stores is None:
        return np.full((samplers, job.stores), 1.0 / job.stores)
    shares = np.asarray(job.near_stores, np.float64)
    if shares.shape != (samplers, job.stores) or not (np.isfinite(shares).all() and (shares >= 0).all()):
        raise PenstockError(
            f"near_stores has shape {shares.shape}: give {samplers} x {job.stores} shares of 0 or more.",
            code="shape-mismatch",
        )
    totals = shares.sum(axis=1, keepdims=True)
    if (totals == 0).any():
        raise PenstockError(
            f"Sampler {int(np.flatnonzero(totals == 0)[0])} of near_stores has no share of any store: give it one.",
            code="value-out-of-range",
        )
    return np.asarray(shares / totals)
