"""A plan for a job: its profile is read or measured here and fitted to the cluster; `plan.planner` does the rest."""

from pathlib import Path

from penstock.cluster.profiling import profile_job
from penstock.cluster.scaled import fit_profile
from penstock.cost.profile import Profile, read_profile
from penstock.errors import PenstockError
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.devices import chosen_for_plan
from penstock.plan.document import Plan
from penstock.plan.placement import Budget
from penstock.plan.planner import PlanChoices, make_plan
from penstock.plan.workloads import workload_entry
from penstock.progress import Progress
from penstock.train.job import Job
from penstock.train.run import found_anywhere

_PROFILED = 50
"""Iterations measured where there is no profile."""
_TASKS_HERE = 16
"""Stores and workers that are started on this host to be measured, at most."""


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
    choices = PlanChoices(placement, flows, budget, seed)
    # A run takes what its plan was made for: the threads that were measured, and a graph found from anywhere.
    device = chosen_for_plan(job.device, cluster)
    fixed = {"threads": job.threads or 1, "device": device[0], **found_anywhere(job)}
    job = job.model_copy(update=fixed)
    profile = _profile(job, cluster, profile_path, progress)
    return make_plan(job, cluster, profile, device, choices, progress)


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
    for name, value in workload_entry(profile.mode).conditions(cluster).items():
        if profile.cluster.get(name) != value:
            raise PenstockError(
                f"{path} was measured with {name} {profile.cluster.get(name)!r} and the cluster has {value!r}: measure"
                " again with `penstock profile JOB --cluster` for this cluster.",
                code="mismatched-inputs",
            )
    return fit_profile(profile, job, cluster, progress)


def _small(cluster: ClusterDocument) -> ClusterDocument:
    """The cluster, or two machines of it with a worker each where this host could hardly run all of its tasks."""
    if len(cluster.machines) + cluster.workers <= _TASKS_HERE:
        return cluster
    machines = [machine.model_copy(update={"workers": 1}) for machine in cluster.machines[:2]]
    return cluster.model_copy(update={"machines": machines, "partition": None})
