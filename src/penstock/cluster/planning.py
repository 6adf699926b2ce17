"""A plan for a job: its profile is read or measured here and fitted to the cluster; `plan.planner` does the rest.

A profile is fitted to a cluster of another size without training: the graph is partitioned and some batches are drawn.
"""

from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from penstock.cluster.profiling import profile_job
from penstock.cost.model import CostModel, KnownMachine, machine_model
from penstock.cost.profile import CostSpread, OperatorCost, Profile, read_profile
from penstock.cost.scaled_profile import TaskWork, count_work, scaled_profile
from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.machines import chosen_for_plan
from penstock.partition.assignment import cut_into, parts_of
from penstock.pipeline.schedule import Planned, Schedule
from penstock.plan.document import Plan
from penstock.plan.execution import BatchKind, ExecutionChoice
from penstock.plan.execution.first_layer import batch_operators, rows_gathered
from penstock.plan.execution.search import cheapest_orders
from penstock.plan.planner import PlanChoices, make_plan
from penstock.plan.workloads import WORKLOADS, PlannedRun
from penstock.progress import Progress
from penstock.sampling import MiniBatch
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.assembly import session_of
from penstock.train.batch_source import make_batch_source
from penstock.train.dataset.prepared_graph import choose_task, open_data
from penstock.train.internals import up_to_date
from penstock.train.job import Job
from penstock.train.job_batches import kind_of_batches
from penstock.train.run_context import run_context
from penstock.train.run_files.run_folder import found_anywhere

_PROFILED = 50
"""Iterations measured where there is no profile."""
_TASKS_HERE = 16
"""The most stores and workers that are started on this host for measuring."""


def plan_run(
    job: Job,
    cluster: ClusterDocument,
    profile_path: Path | None,
    choices: PlanChoices,
    progress: Progress,
    machine: KnownMachine | None = None,
) -> Plan:
    """The best plan among all placements and flow policies that a run can carry out, or those chosen.

    With a `machine`, the cluster's machines are like that one: the profile's operators are predicted for it.
    """
    # A run uses what its plan was made for: the threads that were measured, and a graph by absolute path.
    device = chosen_for_plan(job.device, cluster)
    fixed = {"threads": job.threads or 1, "device": device[0], **found_anywhere(job)}
    job = job.model_copy(update=fixed)
    profile = _profile(job, cluster, profile_path, progress)
    if machine is not None:
        _check_machine(machine, profile, device[0])
        profile = on_machine(profile, job, cluster.workers, machine, progress)
    run = PlannedRun(cluster, job, profile, *device, open_graph=partial(open_data, job))
    return make_plan(run, choices, progress)


def _profile(job: Job, cluster: ClusterDocument, path: Path | None, progress: Progress) -> Profile:
    if path is None:
        small = _small(cluster)
        where = "" if small is cluster else f" with {len(small.machines)} parts and {small.workers} workers"
        progress.note(
            f"No profile is given: {_PROFILED} iterations are measured now{where} (keep one: penstock profile)."
        )
        return fit_profile(profile_job(job, small, _PROFILED, progress), job, cluster, progress)
    profile = read_profile(path)
    profile = profile.model_copy(update={"job": up_to_date(profile.job)})
    profile.check_job(job.model_dump(mode="json"), str(path))
    wanted = WORKLOADS[profile.mode].conditions(cluster)
    for name in dict.fromkeys([*wanted, *profile.cluster]):
        measured, value = profile.cluster.get(name), wanted.get(name)
        if measured != value:
            raise PenstockError(
                f"{path} was measured with {name} {measured!r} and the cluster has {value!r}: measure"
                " again with `penstock profile JOB --cluster` for this cluster.",
                code="mismatched-inputs",
            )
    return fit_profile(profile, job, cluster, progress)


def _check_machine(machine: KnownMachine, profile: Profile, device: str) -> None:
    """Refuse machines whose steps cannot be predicted for workers of a cluster."""
    if not machine.model.knows("dense", "cuda"):
        why = "it has no GPU, so leave out --machine and give machines of the cluster file a `speed` beside this one"
    elif device != "cuda":
        why = "its GPU is not used, so set `gpus` of the cluster file's machines, or leave out --machine"
    elif profile.mode != "mini-batch":
        why = "the job trains on the whole graph, so measure it there with `penstock profile`"
    else:
        return
    raise PenstockError(
        f"A cluster of machines like {machine.name} cannot be planned for: {why}.", code="unsupported-combination"
    )


def on_machine(profile: Profile, job: Job, workers: int, machine: KnownMachine, progress: Progress) -> Profile:
    """A profile that was measured here, converted to another machine: bytes stay, and seconds change.

    CPU work is scaled by the predicted ratio of drawing and gathering a worker's share of a batch; the step is
    predicted for the machine's GPU.
    """
    here, there = machine_model(), machine.model
    share = job.model_copy(update={"batch_size": max(1, job.batch_size // workers), "device": "cpu"})
    with run_context(share):
        kind = kind_of_batches(session_of(share, torch.device("cpu")))
    choice = ExecutionChoice("cuda", "cpu", "host", "gather", cheapest_orders(there, kind, "cuda"), launched=True)
    made = batch_operators(there, kind, choice, rows_gathered)
    step, count = [*made.transfer, *made.compute], sum(map(len, made.stages))
    seconds = there.batch_seconds(sum(each.seconds for each in step), count, "cuda", launched=True)
    ratio = _host_seconds(there, kind) / _host_seconds(here, kind)
    progress.note(
        f"Machines are like {machine.name} ({machine.basis}): a step takes {seconds * 1e3:.3g} ms there, and what"
        f" processors do {ratio:.2g} times what was measured here."
    )
    operators = [_scaled(each, ratio) for each in profile.operators if each.device == "cpu" and each.name != "step"]
    measured = profile.operator("step")
    operators.append(measured.model_copy(update={"device": "cuda", "seconds": CostSpread(mean=seconds), "cores": 1.0}))
    return profile.model_copy(update={"operators": operators})


def _host_seconds(model: CostModel, kind: BatchKind) -> float:
    """Predicted seconds of drawing a batch and gathering its rows, with one thread each."""
    rows = {"rows": kind.rows, "width": kind.width, "table_rows": kind.table_rows}
    return model.seconds("sample", kind.sample) + model.seconds("gather", rows)


def _scaled(cost: OperatorCost, ratio: float) -> OperatorCost:
    seconds = cost.seconds.model_copy(update={"mean": cost.seconds.mean * ratio})
    return cost.model_copy(update={"seconds": seconds})


def _small(cluster: ClusterDocument) -> ClusterDocument:
    """The cluster, or two machines of it with a worker each if this host could hardly run all of its tasks."""
    if len(cluster.machines) + cluster.workers <= _TASKS_HERE:
        return cluster
    machines = [machine.model_copy(update={"workers": 1}) for machine in cluster.machines[:2]]
    return cluster.model_copy(update={"machines": machines, "partition": None, "replicas": []})


_BATCHES = 10
"""Batches that are drawn to count what they read."""


def fit_profile(profile: Profile, job: Job, cluster: ClusterDocument, progress: Progress) -> Profile:
    """The profile for a cluster's machines and workers: unchanged, or predicted from it, with a note."""
    parts, workers = len(cluster.machines), cluster.workers
    if WORKLOADS[profile.mode].any_size or (profile.parts, profile.workers) == (parts, workers):
        return profile
    with progress.step("counting what batches read"):
        graph = open_data(job)
        _check_scalable(job, graph)
        part_of = cut_into(graph, profile.parts, cluster.method)
        measured = _work(job, graph, part_of, profile.parts, profile.workers)
        smaller = None
        if profile.smaller_batch is not None:
            small = job.model_copy(update={"batch_size": profile.smaller_batch})
            smaller = _work(small, graph, part_of, profile.parts, profile.workers)
        there = parts_of(graph, cluster.partition, parts, cluster.method)
        wanted = _work(job, graph, there, parts, workers)
    progress.note(
        f"The profile was measured with {counted(profile.parts, 'parts')} and {counted(profile.workers, 'workers')}:"
        f" it is scaled to {counted(parts, 'parts')} and {counted(workers, 'workers')}, by what batches of this graph"
        " read. Measure at this size to be sure."
    )
    return scaled_profile(profile, measured, wanted, smaller, graph.nbytes)


def _check_scalable(job: Job, graph: Graph) -> None:
    why = None
    if SAMPLERS[job.sampler].local:
        why = f"batches of sampler {job.sampler} depend on which machine has which parts"
    elif not SAMPLERS[job.sampler].scales:
        why = f"batches of sampler {job.sampler} are drawn as a whole"
    elif job.time is not None:
        why = "its batches are drawn by time"
    elif not graph.is_homogeneous:
        why = "its graph has several node types or relations"
    elif not TASK_FACTS[task := choose_task(graph, job)].predictable:
        why = f"its task is {task}"
    if why is not None:
        raise PenstockError(
            f"The profile cannot be scaled to another number of parts or workers, as {why}: measure with"
            " `penstock profile JOB --cluster` for this cluster.",
            code="mismatched-inputs",
        )


def _work(job: Job, graph: Graph, part_of: Array, parts: int, workers: int) -> TaskWork:
    (nodes,) = graph.nodes.values()
    source = make_batch_source(job, graph, np.asarray(nodes.splits["train"]))
    (name,) = graph.node_types

    def draw(seeds: Array, planned: Planned) -> MiniBatch:
        return source.sample({name: seeds}, planned)

    batches = Schedule(source.items, source.batch_size, job.draw_seed, epochs=_BATCHES).from_position()
    return count_work(draw, islice(batches, _BATCHES), part_of, parts, workers)
