"""From a job, a cluster and a profile to a plan: placements and flow policies are searched, simulated and compared."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from penstock.cost.profile import Profile
from penstock.errors import PenstockError, nearest
from penstock.formatting import counted
from penstock.graph.documents import validated
from penstock.hardware.cluster import LAUNCHER_FACTS, LOOPBACK, ClusterDocument
from penstock.hardware.machines import machines_of, with_estimated_tenants
from penstock.plan.changes import (
    bottleneck_of,
    changes_of,
    planned_seconds,
    replica_changes,
    transport_advice,
    transport_changes,
    tried_again,
    with_seats,
)
from penstock.plan.comparison import Comparison, Trial
from penstock.plan.document import CARRIED_OUT, Effort, Plan, PlannedFlows, PlannedTask, Predicted
from penstock.plan.placement import PLACEMENTS, Budget, PlacedUnits
from penstock.plan.stragglers import SlowMachine, check_slow, epoch_p95, network_changes, slow_changes
from penstock.plan.workloads import WORKLOADS, PlannedRun
from penstock.plan.workloads.entry import memory_over_time
from penstock.processes import default_threads
from penstock.progress import Progress
from penstock.simulate.levels import Pace
from penstock.simulate.rates import POLICIES
from penstock.simulate.scenario import Scenario
from penstock.simulate.workload import Amounts

_FEWER = 5
"""A search for a change gets this many times fewer steps than the plan's own."""


@dataclass(frozen=True)
class PlanChoices:
    """The choices of a plan, and the budget of its search."""

    placement: str | None
    """One placement policy; None: the best of all."""
    flows: str | None
    """One flow policy; None: the best of those that a run can carry out."""
    budget: Budget
    seed: int = 0
    slow: tuple[SlowMachine, ...] = ()
    """Slow machines, for each of which the plan says what it would take."""

    def __post_init__(self) -> None:
        if self.placement is not None:
            PLACEMENTS[self.placement]
        if self.flows is not None:
            POLICIES[self.flows]


def make_plan(planned: PlannedRun, choices: PlanChoices, progress: Progress) -> Plan:
    """The best plan of those that were compared."""
    began = perf_counter()
    cluster, tenants = with_estimated_tenants(planned.cluster, planned.profile.links)
    planned = replace(planned, cluster=cluster)
    job, profile = planned.job, planned.profile
    for note in tenants:
        progress.note(note)
    check_slow(choices.slow, [machine.name for machine in cluster.machines])
    entry = WORKLOADS[profile.mode]
    execution = entry.set_up(planned)
    job = job.model_copy(update=entry.decides(execution))
    section = {"mode": profile.mode, **execution.model_dump(mode="json")}
    run = comparison_of(cluster, profile, section, choices.seed)
    budget = choices.budget
    if budget.simulations is None:
        budget = replace(budget, simulations=run.simulations)
    threads = default_threads()
    for note in run.work.notes:
        progress.note(note)
    trials = _trials(run, choices, budget, progress, threads)
    best = min(trials, key=lambda trial: trial.iteration_s)
    if cluster.replicas and entry.uses_replicas:
        # The shares of replicas so far assumed the workers of the cluster file's layout.
        section = {"mode": profile.mode, **entry.set_up(with_seats(planned, best)).model_dump(mode="json")}
        run = comparison_of(cluster, profile, section, choices.seed)
        again = tried_again(run, best)
        trials, best = [again if trial is best else trial for trial in trials], again
    fewer = Budget(max(1, (budget.steps or 10_000) // _FEWER), budget.seconds, (budget.simulations or 0) // _FEWER)
    changes = changes_of(run, best, fewer, choices.seed, progress, threads)
    sending = transport_changes(planned, best, choices.seed)
    planned_for = partial(planned_seconds, run, best, fewer, choices.seed)
    slow = slow_changes(run, best, choices.slow, choices.seed, planned_for, threads)
    changes = [*changes, *replica_changes(planned, best, choices.seed), *sending]
    tasks = _tasks(run, best)
    _note_cores(cluster, tasks, progress)
    where = [run.machines.names[number] for number in best.placed.machine_of]
    return Plan(
        job=job.model_dump(mode="json"),
        cluster=cluster.model_dump(mode="json"),
        execution=section,
        reasons=_reasons(trials, entry.decides(execution)),
        placement=best.placed.policy,
        flows=best.flows,
        tasks=tasks,
        traffic=_traffic(run, best),
        predicted=_predicted(run, best, tasks, profile.batches),
        bottleneck=bottleneck_of(best.timeline, where, run.work.words),
        compared=[trial.row(profile.batches) for trial in trials],
        changes=changes,
        advice=transport_advice(sending),
        slow=slow,
        network=network_changes(run, best, threads),
        search=Effort(
            steps=sum(trial.placed.steps for trial in trials),
            seconds=round(perf_counter() - began, 3),
            simulated=sum(trial.placed.simulated for trial in trials),
            simulations=budget.simulations or 0,
            searched_iterations=run.iterations.period,
            judged_iterations=len(run.iterations.judged.seconds),
            reads_in_turns=run.iterations.turns,
            threads=threads,
        ),
        profile=profile.model_dump(mode="json"),
        seed=choices.seed,
        scaled_from=None if profile.scaled_from is None else profile.scaled_from.model_dump(),
        notes=list(progress.notes),
    )


def comparison_of(cluster: ClusterDocument, profile: Profile, section: dict[str, Any], seed: int) -> Comparison:
    """A run on a cluster, ready to be simulated in many ways; `section` is the plan's `execution`."""
    fields = dict(section)
    entry = WORKLOADS[str(fields.pop("mode", ""))]
    execution = validated(entry.section, fields, "The plan's execution is not valid")
    return Comparison(entry.build(profile, execution), machines_of(cluster, profile.rate), seed)


def _trials(run: Comparison, choices: PlanChoices, budget: Budget, progress: Progress, threads: int) -> list[Trial]:
    flows = choices.flows
    if flows is not None and flows not in CARRIED_OUT:
        progress.note(
            f"Flow policy {flows} can be simulated, but no run can use it: `penstock train --plan` refuses it."
        )
    return run.try_all(
        list(PLACEMENTS) if choices.placement is None else [choices.placement],
        [each for each in CARRIED_OUT if each != "oes"] if flows is None else [flows],
        budget,
        progress,
        threads,
    )


def _reasons(trials: list[Trial], decided: Mapping[str, Any]) -> dict[str, str]:
    """By name, why a plan decides so; `decided` are job fields that were left open."""
    fastest = f"It is the fastest of {counted(len(trials), 'pairs')} of placement and flow policy that were simulated."
    simulated = "Of the numbers that were simulated it is the fastest that saves enough, or the job asks for it."
    return {**dict.fromkeys(("tasks", "flows"), fastest), **dict.fromkeys(decided, simulated)}


def _tasks(run: Comparison, best: Trial) -> list[PlannedTask]:
    load, names = run.load, run.machines.names
    found = []
    for task, name in enumerate(load.task_names):
        if load.beside[task] == task:
            held = {resource: float(amounts[task]) for resource, amounts in load.resources.items()}
            machine = names[best.placed.machine_of[task]]
            found.append(PlannedTask(id=name, kind=load.task_kinds[task], machine=machine, **held))
    return found


def _traffic(run: Comparison, best: Trial) -> list[PlannedFlows]:
    """The traffic of one iteration of the run, by kind, in the workload's order."""
    load, where = run.load, best.placed.machine_of
    count, sent, crossing = Counter[str](), defaultdict[str, float](float), defaultdict[str, float](float)
    ends = zip(load.flow_kinds, load.flow_bytes, where[load.sources], where[load.targets], strict=True)
    for kind, size, source, target in ends:
        count[kind] += 1
        sent[kind] += float(size) / run.work.unrolled
        crossing[kind] += float(size) / run.work.unrolled if source != target else 0.0
    return [
        PlannedFlows(kind=kind, count=count[kind] // run.work.unrolled, bytes=sent[kind], link_bytes=crossing[kind])
        for kind in count
    ]


def _predicted(run: Comparison, best: Trial, tasks: list[PlannedTask], batches: int) -> Predicted:
    timeline, memory = best.timeline, defaultdict[str, float](float)
    on_devices = defaultdict[str, dict[str, float]](dict)
    for task in tasks:
        memory[task.machine] += task.memory_gb
    for (machine, device), curve in memory_over_time(timeline, best.placed.machine_of, run.work.memory).items():
        if device == "cpu":
            memory[machine] += curve.peak
        else:
            on_devices[device][machine] = curve.peak
    links = timeline.network.link_names
    count = timeline.iterations * run.work.unrolled
    return Predicted(
        iteration_s=best.iteration_s,
        epoch_s=best.iteration_s * batches,
        epoch_p95_s=epoch_p95(
            timeline,
            run.work.ahead,
            run.iterations.period,
            best.iteration_s * run.work.unrolled,
            batches / run.work.unrolled,
        ),
        lower_bound_s=min(run.lower_bound(), best.lower_bound_s),
        placement_bound_s=best.lower_bound_s,
        link_bytes={name: float(size) / count for name, size in zip(links, timeline.link_bytes, strict=True)},
        link_utilisation={name: float(use) for name, use in zip(links, timeline.link_use, strict=True)},
        memory_gb=dict(memory),
        device_memory_gb=dict(on_devices),
    )


def _note_cores(cluster: ClusterDocument, tasks: list[PlannedTask], progress: Progress) -> None:
    """Note where the plan gives machines that are all this host more cores than it has."""
    here = {each.name for each in cluster.machines if each.cores is None and each.address in LOOPBACK}
    if not LAUNCHER_FACTS[cluster.launcher].one_host or not here:
        return
    planned, host = sum(task.cores for task in tasks if task.machine in here), default_threads()
    if planned > host:
        which = f"{len(here)} machines of this plan are" if len(here) > 1 else f"Machine {min(here)} of this plan is"
        progress.note(
            f"{which} this host, which has {host} cores, and the tasks there are planned with {planned:g}: they will"
            " share cores and take longer than predicted. Say each machine's `cores` in a cluster file."
        )


# A plan simulated again: the workload, network, placement and amounts of its prediction.


@dataclass(frozen=True, eq=False)
class Replay:
    """A plan's run in the simulator."""

    scenario: Scenario
    pace: Pace
    """The predicted pace of the run under the policy that was asked for."""


def replay(plan: Plan, policy: str, iterations: int | None = None) -> Replay:
    """The plan's run under a flow policy; only the first `iterations` of those that a plan is measured over."""
    POLICIES[policy]
    wrong = "The plan's profile or cluster is not valid"
    profile, cluster = validated(Profile, plan.profile, wrong), validated(ClusterDocument, plan.cluster, wrong)
    run = comparison_of(cluster, profile, plan.execution, plan.seed)
    placed = _placed(plan, run)
    trial = run.trial(placed, policy)
    amounts = trial.timeline.case.amounts
    count = len(amounts.seconds)
    if iterations is not None and iterations > count:
        raise PenstockError(
            f"A plan is judged by {count} iterations: ask for at most {count} with --iterations.",
            code="value-out-of-range",
        )
    some = Amounts(amounts.seconds[:iterations], amounts.sizes[:iterations])
    speeds = np.array(run.machines.speeds)
    scenario = Scenario(run.load, run.problem.network, placed.machine_of, some, speeds)
    return Replay(scenario, Pace(trial.iteration_s, trial.lower_bound_s))


def _placed(plan: Plan, run: Comparison) -> PlacedUnits:
    """The plan's placement, checked against the tasks and machines of its run."""
    numbers = {name: number for number, name in enumerate(run.machines.names)}
    planned = plan.machine_of()
    load = run.load
    places = np.zeros(load.tasks, np.int32)
    for task in range(load.tasks):
        own = load.task_names[load.beside[task]]
        if own not in planned:
            raise PenstockError(f"The plan does not say where {own} runs: plan again.", code="invalid-document")
        if planned[own] not in numbers:
            raise PenstockError(
                f"The plan places {own} on {planned[own]!r}{nearest(planned[own], numbers)}", code="unknown-name"
            )
        places[task] = numbers[planned[own]]
    return PlacedUnits(plan.placement, places, 0.0, 0, 0, 0.0)
