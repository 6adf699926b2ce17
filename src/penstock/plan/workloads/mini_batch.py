"""Mini-batch training on a cluster: stores serve parts, workers draw, gather and step, gradients are summed."""

from collections.abc import Mapping
from typing import Any

from penstock.cost.profile import Profile
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.machines import Machines
from penstock.plan.memory import HeldMemory
from penstock.plan.workloads.entry import ExecutionWorkload, PlannedRun, WorkloadEntry
from penstock.plan.workloads.mini_batch_template import MiniBatchExecution, mini_batch_template
from penstock.plan.workloads.replica_shares import replica_shares
from penstock.sampling.registry import sampler_entry
from penstock.simulate.amounts import Quantiles, Spread

_SERVING = 2
"""Threads with which a store answers."""
_VARYING = {"draw": "sample", "gather": "gather", "step": "step"}
"""Kinds of tasks whose seconds vary as those of an operator do."""
_WORDS = {
    "draw": "drawing batches",
    "serve": "answering requests",
    "gather": "putting rows in place",
    "step": "computing",
    "sum": "summing gradients",
}


def _set_up(run: PlannedRun) -> MiniBatchExecution:
    cluster, job = run.cluster, run.job
    return MiniBatchExecution(
        stores=[f"store-{machine.name}" for machine in cluster.machines],
        samplers=cluster.samplers,
        servers=cluster.servers if cluster.reduce == "servers" else 0,
        sample_depth=max(job.sample_depth, cluster.samplers + 1),
        gather_depth=job.gather_depth,
        transfer_depth=job.transfer_depth,
        sample_threads=job.drawing_threads,
        gather_threads=job.gather_threads,
        device=run.device,
        gpus=run.gpus,
        replicas=replica_shares(cluster, run.profile, run.open_graph, run.seats),
        seats=_seats(cluster) if _knows_home(run.profile) else [],
    )


def _knows_home(profile: Profile) -> bool:
    """Whether workers were measured beside their parts, because their sampler asks what is near."""
    return sampler_entry(str(profile.job.get("sampler", "neighbour"))).local


def _seats(cluster: ClusterDocument) -> list[int]:
    """The machine of every worker, as the cluster file has it."""
    return [number for number, machine in enumerate(cluster.machines) for _ in range(machine.workers)]


def _build(profile: Profile, execution: MiniBatchExecution) -> ExecutionWorkload:
    load = mini_batch_template(profile, execution)
    serving = profile.operator("serve").seconds.mean

    def slowest_store(machines: Machines) -> float:
        """What the slowest store needs for all workers' requests: the simulator gives each request its own thread."""
        return profile.workers * serving / _SERVING / min(machines.speeds[: len(execution.stores)])

    notes = []
    if execution.device != "cpu" and profile.operator("step", execution.device).device == "cpu":
        notes.append("Steps were measured on processors: on GPUs they take less, and so may an iteration.")
    return ExecutionWorkload(
        load,
        memory=_device_memory(profile, execution.device),
        spreads=_spreads(profile, execution),
        pinned={name: number for number, name in enumerate(execution.stores)}
        | {f"worker-{rank}": seat for rank, seat in enumerate(execution.seats)},
        owners="store",
        unrolled=execution.unrolled,
        ahead=execution.ahead,
        floor_s=slowest_store,
        words=_WORDS,
        notes=tuple(notes),
    )


def _device_memory(profile: Profile, device: str) -> tuple[HeldMemory, ...]:
    """What each worker holds on its GPU, as far as it was measured."""
    gb = profile.memory_gb("worker", device) if device != "cpu" else 0.0
    return tuple(HeldMemory(f"worker-{rank}", gb, device) for rank in range(profile.workers)) if gb else ()


def _spreads(profile: Profile, execution: MiniBatchExecution) -> dict[str, Spread]:
    """How amounts vary, by kind of task or flow."""
    spreads: dict[str, Spread] = {}
    for kind, operator in _VARYING.items():
        elsewhere = kind == "draw" and execution.samplers
        shape = profile.operator(operator, "cpu" if elsewhere else execution.device).seconds.shape
        if len(shape) > 1:
            spreads[kind] = Quantiles(shape)
    for kind in ("lists", "features", "blocks"):
        transfer = profile.transfer(kind)
        if transfer is not None and len(transfer.shape) > 1:
            spreads[kind] = Quantiles(transfer.shape)
    return spreads


def conditions(cluster: ClusterDocument) -> Mapping[str, Any]:
    """What of a cluster decides how many bytes travel, and who computes."""
    servers = cluster.servers if cluster.reduce == "servers" else 0
    cached = {"remote_cache_mb": cluster.remote_cache_mb} if cluster.remote_cache_mb else {}
    return {"wire_type": cluster.wire_type, "reduce": cluster.reduce, "servers": servers, **cached}


MINI_BATCH = WorkloadEntry("mini-batch", MiniBatchExecution, _set_up, _build, conditions, uses_replicas=True)
