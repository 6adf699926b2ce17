"""What `penstock plan` does besides one plan: its timeline, and plans for other values of some fields."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.cli.sweep import computed_rows
from penstock.cluster.planning import plan_run
from penstock.cluster.profiling import profile_job
from penstock.cost.model import KnownMachine
from penstock.cost.profile import DECIDING, write_profile
from penstock.graph.document_sweep import (
    Part,
    Point,
    fields_of,
    parse_sweeps,
    points_of,
    said,
    validated_at,
    with_point,
)
from penstock.hardware.cluster import ClusterDocument
from penstock.plan.document import Plan
from penstock.plan.planner import PlanChoices, replay
from penstock.progress import Progress
from penstock.report.gantt import Shown, write_timeline
from penstock.simulate import lower_bound
from penstock.train.job import Job, JobFields, stored_job

DRAWN = 10
"""Iterations of a plan's timeline, at most."""
_PROFILED = 50
"""Iterations measured for a sweep without a profile."""


def draw_plan(plan: Plan, title: str, path: Path) -> None:
    """Write the first iterations of a plan's run as a page or a trace."""
    judged = plan.search.judged_iterations or DRAWN
    run = replay(plan, plan.flows, min(DRAWN, judged))
    found = run.scenario.simulate(plan.flows, segments=True)
    bound = lower_bound(found.case)
    write_timeline(Shown(title, plan.flows, found, run.scenario.placement, bound, pace=run.pace), path)


def plan_sweep(
    job: Job,
    cluster: ClusterDocument,
    profile: Path | None,
    sweeps: Sequence[str],
    choices: PlanChoices,
    progress: Progress,
    machine: KnownMachine | None = None,
) -> list[dict[str, Any]]:
    """A plan for every combination of the swept values; nothing is written.

    Without a profile one is measured for all of them, unless a value changes what an iteration costs: then each has its
    own.
    """
    points = points_of(parse_sweeps(sweeps))
    changed = [_changed(job, cluster, point) for point in points]
    with TemporaryDirectory(prefix="penstock-sweep-") as folder:
        if profile is None and all(_costs_alike(each, (job, cluster)) for each in changed):
            profile = Path(folder) / "profile.json"
            write_profile(profile_job(job, cluster, _PROFILED, progress), profile)
        work = [partial(_row, *each, profile, choices, progress, machine) for each in changed]
        return computed_rows(zip(points, work, strict=True))


def _changed(job: Job, cluster: ClusterDocument, point: Point) -> tuple[Job, ClusterDocument]:
    """The job and the cluster with a combination's values, validated."""
    raw = {"job": job.model_dump(mode="json"), "cluster": cluster.model_dump(mode="json")}
    known = [*fields_of(JobFields, (Part("job"),)), *fields_of(ClusterDocument, (Part("cluster"),))]
    found = with_point(raw, point, known)
    changed = stored_job(found["job"], f"The job with {said(point)}")
    return changed, validated_at(ClusterDocument, found["cluster"], point, "the cluster")


def _costs_alike(one: tuple[Job, ClusterDocument], other: tuple[Job, ClusterDocument]) -> bool:
    """Whether one profile is valid for both: the same batches, parts and workers, transferred the same way."""
    jobs = [each.model_dump(mode="json", include=set(DECIDING)) for each, _ in (one, other)]
    sizes = [(len(each.machines), each.workers, each.partition, each.method, *_moved(each)) for _, each in (one, other)]
    return jobs[0] == jobs[1] and sizes[0] == sizes[1]


def _moved(cluster: ClusterDocument) -> tuple[str | float, ...]:
    """The fields of a cluster that decide how rows and gradients are transferred."""
    return cluster.wire_type, cluster.remote_cache_mb, cluster.reduce, cluster.servers


def _row(*planned: Any) -> dict[str, Any]:
    """The result of one combination of a sweep, for the arguments of `plan_run`."""
    plan = plan_run(*planned)
    chosen = next(each for each in plan.compared if (each.placement, each.flows) == (plan.placement, plan.flows))
    return {
        "placement": plan.placement,
        "flows": plan.flows,
        **plan.predicted_seconds,
        "gap": chosen.gap,
        "slowest_link": chosen.slowest_link,
        "slowest_link_bytes": chosen.slowest_link_bytes,
        "bottleneck": plan.bottleneck,
    }
