"""An execution mode of a few lines: each machine computes on its own shard and sends its halo to the next one."""

from penstock.cost.profile import Profile
from penstock.graph.documents import StrictDocument
from penstock.plan.workloads import ExecutionWorkload, PlannedRun, WorkloadEntry
from penstock.plan.workloads.entry import HeldMemory
from penstock.simulate.workload import WorkloadBuilder


class RingExecution(StrictDocument):
    """The shards, and what they compute on."""

    shards: list[str]
    device: str


def set_up(run: PlannedRun) -> RingExecution:
    """One shard for each machine."""
    return RingExecution(shards=[f"shard-{machine.name}" for machine in run.cluster.machines], device=run.device)


def build(profile: Profile, execution: RingExecution) -> ExecutionWorkload:
    """A layer on each shard, then its halo to the next shard, which needs it in the next iteration."""
    building = WorkloadBuilder("ring")
    seconds = profile.operator("layer", execution.device).seconds.mean
    held = {"cores": 1.0, "memory_gb": profile.memory_gb("shard")}
    shards = [building.task(name, "shard", seconds, held) for name in execution.shards]
    halo = profile.transfer("halo")
    assert halo is not None
    for number, shard in enumerate(shards):
        building.flow(shard, shards[(number + 1) % len(shards)], halo.total, "halo", arrival_lag=1)
    # Activations are kept until the next layer is computed.
    kept = profile.memory_gb("activations", execution.device)
    return ExecutionWorkload(
        building.build(),
        memory=tuple(HeldMemory(name, kept, execution.device, until=name, lag=1) for name in execution.shards),
        pinned={name: number for number, name in enumerate(execution.shards)},
        words={"shard": "computing layers"},
    )


RING = WorkloadEntry("ring", RingExecution, set_up, build, lambda cluster: {})
