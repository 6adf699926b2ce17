"""From a job, a cluster file and a profile to a plan."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from penstock.cluster.profiling import profile_job, set_up
from penstock.cluster.scaled import fit_profile
from penstock.cost.profile import Profile, read_profile
from penstock.errors import PenstockError, nearest
from penstock.graph.blocks import default_threads
from penstock.hardware.cluster import LOOPBACK, ClusterDocument
from penstock.hardware.devices import chosen_for_plan
from penstock.hardware.machines import machines_of
from penstock.plan.bottleneck import bottleneck_of
from penstock.plan.comparison import Comparison, Trial
from penstock.plan.document import CARRIED_OUT, Effort, Plan, PlannedTask, Predicted
from penstock.plan.placement import PLACEMENTS, Budget
from penstock.plan.training_workload import TrainingShape
from penstock.plan.upgrades import changes_of
from penstock.progress import Progress
from penstock.simulate.rates import policy_named
from penstock.train.job import Job
from penstock.train.run import found_anywhere

_PROFILED = 50
"""Iterations measured where there is no profile."""
_TASKS_HERE = 16
"""Stores and workers that are started on this host to be measured, at most."""
_FEWER = 5
"""What a search for a change is given: so many times fewer steps than the plan's own."""


def plan_run(
    job: Job,
    cluster: ClusterDocument,
    profile_path: Path | None,
    placement: str | None,
    flows: str | None,
    budget: Budget,
    seed: int,
    progress: Progress,
) -> Plan:
    """The best of what was looked at: all placements and all flow policies that a run can carry out, or those named."""
    if placement is not None and placement not in PLACEMENTS:
        raise PenstockError(
            f"No placement is called {placement!r}{nearest(placement, PLACEMENTS)}", code="unknown-name"
        )
    if flows is not None:
        policy_named(flows)
    # A run takes what its plan was made for: the threads that were measured, and a graph found from anywhere.
    device, gpus = chosen_for_plan(job.device, cluster)
    fixed = {"threads": job.threads or 1, "device": device, **found_anywhere(job)}
    job = job.model_copy(update=fixed)
    profile = _profile(job, cluster, profile_path, progress)
    began = perf_counter()
    run = comparison_of(job, cluster, profile, seed, gpus)
    machines = run.machines
    if budget.simulations is None:
        budget = replace(budget, simulations=run.simulations)
    threads = default_threads()
    if job.device == "cuda":
        progress.note("Steps were measured on processors: on GPUs they take less, and so may an iteration.")
    if flows is not None and flows not in CARRIED_OUT:
        progress.note(
            f"Flow policy {flows} can be simulated but not carried out: `penstock train --plan` will refuse it."
        )
    trials = run.try_all(
        list(PLACEMENTS) if placement is None else [placement],
        [each for each in CARRIED_OUT if each != "oes"] if flows is None else [flows],
        budget,
        progress,
        threads,
    )
    best = min(trials, key=lambda trial: trial.iteration_s)
    fewer = Budget(max(1, (budget.steps or 10_000) // _FEWER), budget.seconds, (budget.simulations or 0) // _FEWER)
    changes = changes_of(run, best, fewer, seed, progress, threads)
    where = _tasks(run, best)
    _note_cores(cluster, where, progress)
    return Plan(
        job=job.model_dump(mode="json"),
        cluster=cluster.model_dump(mode="json"),
        placement=best.placed.policy,
        flows=best.flows,
        tasks=where,
        predicted=_predicted(run, best, where),
        bottleneck=bottleneck_of(best.timeline, [machines.names[number] for number in best.placed.machine_of]),
        compared=[trial.row(profile.batches) for trial in trials],
        changes=changes,
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
        profile=run.profile.model_dump(mode="json"),
        seed=seed,
        scaled_from=None if profile.scaled_from is None else profile.scaled_from.model_dump(),
        notes=list(progress.notes),
    )


def comparison_of(job: Job, cluster: ClusterDocument, profile: Profile, seed: int, gpus: float) -> Comparison:
    """The run of a job on a cluster, ready to be simulated in many ways; `gpus` is what a worker needs of them."""
    return Comparison(profile, shape_of(cluster, job), machines_of(cluster, profile.rate), gpus, seed)


def shape_of(cluster: ClusterDocument, job: Job) -> TrainingShape:
    """How a run on a cluster is set up."""
    return TrainingShape(
        stores=[f"store-{machine.name}" for machine in cluster.machines],
        samplers=cluster.samplers,
        servers=cluster.servers if cluster.reduce == "servers" else 0,
        sample_depth=max(job.sample_depth, cluster.samplers + 1),
        gather_depth=job.gather_depth,
        transfer_depth=job.transfer_depth,
        sample_threads=job.sample_threads,
        gather_threads=job.gather_threads,
    )


def _profile(job: Job, cluster: ClusterDocument, path: Path | None, progress: Progress) -> Profile:
    if path is None:
        small = _small(cluster)
        where = "" if small is cluster else f" with {len(small.machines)} parts and {small.workers} workers"
        progress.note(
            f"No profile is given: {_PROFILED} iterations are measured now{where} (keep one: penstock profile)."
        )
        return fit_profile(profile_job(job, small, _PROFILED, progress), job, cluster, progress)
    profile = read_profile(path)
    profile.check_job(job.model_dump(mode="json"), str(path))
    for name, value in set_up(cluster).items():
        if profile.cluster.get(name) != value:
            raise PenstockError(
                f"{path} was measured with {name} {profile.cluster.get(name)!r} and the cluster has {value!r}: measure"
                " again with `penstock profile JOB --cluster` for this cluster.",
                code="mismatched-inputs",
            )
    return fit_profile(profile, job, cluster, progress)


def _note_cores(cluster: ClusterDocument, tasks: list[PlannedTask], progress: Progress) -> None:
    """Say so where the plan gives machines that are all this host more cores than it has."""
    here = {each.name for each in cluster.machines if each.cores is None and each.address in LOOPBACK}
    if cluster.launcher != "local" or not here:
        return
    planned, host = sum(task.cores for task in tasks if task.machine in here), default_threads()
    if planned > host:
        which = f"{len(here)} machines of this plan are" if len(here) > 1 else f"Machine {min(here)} of this plan is"
        progress.note(
            f"{which} this host, which has {host} cores, and the tasks there are planned with {planned:g}: they will"
            " share cores and take longer than predicted. Say each machine's `cores` in a cluster file."
        )


def _small(cluster: ClusterDocument) -> ClusterDocument:
    """The cluster, or two machines of it with a worker each where this host could hardly run all of its tasks."""
    if len(cluster.machines) + cluster.workers <= _TASKS_HERE:
        return cluster
    machines = [machine.model_copy(update={"workers": 1}) for machine in cluster.machines[:2]]
    return cluster.model_copy(update={"machines": machines, "partition": None})


def _tasks(run: Comparison, best: Trial) -> list[PlannedTask]:
    load, names = run.load, run.machines.names
    found = []
    for task, name in enumerate(load.task_names):
        if load.beside[task] == task:
            held = {resource: float(amounts[task]) for resource, amounts in load.resources.items()}
            machine = names[best.placed.machine_of[task]]
            found.append(PlannedTask(id=name, kind=load.task_kinds[task], machine=machine, **held))  # type: ignore[arg-type]
    return found


def _predicted(run: Comparison, best: Trial, tasks: list[PlannedTask]) -> Predicted:
    timeline, memory = best.timeline, defaultdict[str, float](float)
    for task in tasks:
        memory[task.machine] += task.memory_gb
    links = timeline.network.link_names
    count = timeline.iterations * run.shape.unrolled
    return Predicted(
        iteration_s=best.iteration_s,
        epoch_s=best.iteration_s * run.profile.batches,
        lower_bound_s=min(run.lower_bound(), best.lower_bound_s),
        placement_bound_s=best.lower_bound_s,
        link_bytes={name: float(size) / count for name, size in zip(links, timeline.link_bytes, strict=True)},
        link_utilisation={name: float(use) for name, use in zip(links, timeline.link_use, strict=True)},
        memory_gb=dict(memory),
    )
