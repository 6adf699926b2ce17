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
from penstock.simulate.building import Item, WorkloadBuilder
from penstock.simulate.workload import Workload


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
                raise PenstockError(f"A GNN job has {getattr(self, name)} {name}: give at least {least}.")
        if self.prefetch is not None and self.prefetch < 1:
            raise PenstockError(f"A prefetch of {self.prefetch} iterations would stop the job: give 1 or more.")
        unknown = set(self.resources) - {"store", "sampler", "worker", "server", "ring"}
        if unknown:
            raise PenstockError(f"No task of a GNN job is a {min(unknown)!r}: use store, sampler, worker or server.")


def gnn_workload(job: GnnJob, name: str = "job") -> Workload:
    """The template of one iteration: task (j, n + 1) follows (j, n), and so does every flow."""
    building = WorkloadBuilder(name)
    held = job.resources
    stores = [building.task(f"store{k}", "store", job.store_seconds, held.get("store")) for k in range(job.stores)]
    shares = _pull_shares(job)
    workers = []
    for w in range(job.workers):
        worker = building.task(f"worker{w}", "worker", job.worker_seconds, held.get("worker"))
        workers.append(worker)
        for s in range(job.samplers_per_worker):
            sampler = building.task(f"sampler{w}.{s}", "sampler", job.sampler_seconds, held.get("sampler"))
            for store, share in zip(stores, shares[w * job.samplers_per_worker + s], strict=True):
                if share > 0:
                    pull = building.flow(store, sampler, job.pull_bytes * share, "pull")
                    if job.prefetch is not None:
                        building.wait(worker, pull, job.prefetch)
            building.flow(sampler, worker, job.batch_bytes, "batch")
    if job.servers:
        _add_servers(building, job, workers)
    elif job.workers > 1:
        _add_ring(building, job, workers)
    return building.build()


def _add_servers(building: WorkloadBuilder, job: GnnJob, workers: list[Item]) -> None:
    """Each server holds an equal shard of the model."""
    shard = job.model_bytes / job.servers
    for k in range(job.servers):
        server = building.task(f"server{k}", "server", job.server_seconds, job.resources.get("server"))
        for worker in workers:
            building.flow(worker, server, shard, "gradient")
            building.flow(server, worker, shard, "parameters", arrival_lag=1)


def _add_ring(building: WorkloadBuilder, job: GnnJob, workers: list[Item]) -> None:
    """2(n - 1) steps in which every worker sends one n-th of the model to its right neighbour.

    A step is a task without duration beside its worker. Step k of worker w waits for what its left
    neighbour sent in step k - 1; the first step waits for all workers, the next iteration of a worker for its last.
    """
    size = len(workers)
    steps = 2 * (size - 1)
    rings = [
        [building.task(f"ring{w}.{k}", "ring", 0.0, job.resources.get("ring"), beside=worker) for k in range(steps)]
        for w, worker in enumerate(workers)
    ]
    for w in range(size):
        for each in workers:
            building.wait(each, rings[w][0])
        right = (w + 1) % size
        for k in range(steps):
            target = rings[right][k + 1] if k + 1 < steps else workers[right]
            building.flow(
                rings[w][k],
                target,
                job.model_bytes / size,
                "ring",
                name=f"ring{w}.{k}->",
                coflow=f"ring {k}",
                arrival_lag=0 if k + 1 < steps else 1,
            )
            if k:
                building.wait(rings[w][k - 1], rings[w][k])


def _pull_shares(job: GnnJob) -> Array:
    """What part of its pull each sampler takes from each store, rows adding up to 1."""
    samplers = job.workers * job.samplers_per_worker
    if job.near_stores is None:
        return np.full((samplers, job.stores), 1.0 / job.stores)
    shares = np.asarray(job.near_stores, np.float64)
    if shares.shape != (samplers, job.stores) or not (np.isfinite(shares).all() and (shares >= 0).all()):
        raise PenstockError(
            f"near_stores has shape {shares.shape}: give {samplers} samplers' shares of {job.stores} stores, 0 or more."
        )
    totals = shares.sum(axis=1, keepdims=True)
    if (totals == 0).any():
        raise PenstockError(
            f"Sampler {int(np.flatnonzero(totals == 0)[0])} of near_stores pulls from no store: give it a share."
        )
    return np.asarray(shares / totals)
