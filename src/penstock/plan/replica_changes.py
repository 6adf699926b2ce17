"""What a replica of a part's features on another machine would bring to a plan, and what a plan's replicas bring."""

from dataclasses import replace

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.cluster import MOST_REPLICAS, ClusterDocument, Machine, Replica
from penstock.hardware.machines import machines_of
from penstock.plan.comparison import Comparison, Trial
from penstock.plan.document import Change
from penstock.plan.workloads import PlannedRun, workload_entry

_MOST = 4
"""Machines that are tried for a replica: those with the fastest links."""


def replica_changes(planned: PlannedRun, best: Trial, seed: int) -> list[Change]:
    """The busiest part's features on each of some other machines too; and the plan without the replicas that it has.

    Tasks stay where the plan has them.
    """
    entry, cluster = workload_entry(planned.profile.mode), planned.cluster
    if not entry.uses_replicas or len(cluster.machines) < 2:
        return []
    changes = []
    if cluster.replicas:
        without = cluster.model_copy(update={"replicas": []})
        changes.append(change_by("without its replicas", planned, replace(planned, cluster=without), best, seed))
    part = _busiest_part(planned, best)
    taken = {each.machine for each in cluster.replicas if each.part == part} | {cluster.machines[part].name}
    if len(taken) <= MOST_REPLICAS:
        others = [machine.name for machine in _fastest(cluster, planned.profile.rate) if machine.name not in taken]
        for name in others[:_MOST]:
            more = cluster.model_copy(update={"replicas": [*cluster.replicas, Replica(part=part, machine=name)]})
            what = f"a replica of part {part}'s features on {name}"
            changes.append(change_by(what, planned, replace(planned, cluster=more), best, seed))
    return sorted(changes, key=lambda change: -change.gain)


def _fastest(cluster: ClusterDocument, rate: float) -> list[Machine]:
    rates = machines_of(cluster, rate).rates
    order = sorted(range(len(rates)), key=lambda number: -rates[number])
    return [cluster.machines[number] for number in order]


def _busiest_part(planned: PlannedRun, best: Trial) -> int:
    """The part whose machine's link is busiest with what leaves it."""
    use = dict(zip(best.timeline.network.link_names, best.timeline.link_use.tolist(), strict=True))
    return int(np.argmax([use.get(f"{machine.name} out", 0.0) for machine in planned.cluster.machines]))


def change_by(what: str, planned: PlannedRun, other: PlannedRun, best: Trial, seed: int) -> Change:
    """What another run in the place of the planned one takes, its tasks where the best trial has them."""
    seated = with_seats(other, best)
    entry = workload_entry(planned.profile.mode)
    workload = entry.build(seated.profile, entry.set_up(seated))
    run = Comparison(workload, machines_of(other.cluster, planned.profile.rate), seed)
    seconds = tried_again(run, best).iteration_s
    gain = 1 - seconds / best.iteration_s if best.iteration_s else 0.0
    return Change(what=what, iteration_s=seconds, gain=gain)


def with_seats(planned: PlannedRun, best: Trial) -> PlannedRun:
    """The run with its workers where a trial has them: what comes from replicas depends on who is beside them."""
    where = dict(zip(best.timeline.load.task_names, best.placed.machine_of.tolist(), strict=True))
    return replace(planned, seats=tuple(where[f"worker-{rank}"] for rank in range(planned.profile.workers)))


def tried_again(run: Comparison, best: Trial) -> Trial:
    """The workload with every task on the machine where a trial places it."""
    return run.trial(replace(best.placed, machine_of=_as_placed(run, best)), best.flows)


def _as_placed(run: Comparison, best: Trial) -> Array:
    """Every task where the best trial has it; what is beside a task follows it."""
    before, load = best.timeline.load, run.load
    where = dict(zip(before.task_names, best.placed.machine_of.tolist(), strict=True))
    return np.array([where[load.task_names[beside]] for beside in load.beside], best.placed.machine_of.dtype)
