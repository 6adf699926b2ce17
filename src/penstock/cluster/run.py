"""A run on several machines, from a job and a cluster to a run folder."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.controller import Controller, MachineAway, RunOutcome
from penstock.cluster.gpus import chosen_for_all
from penstock.cluster.launch import Launcher, make_launcher, take_part
from penstock.cluster.layout import Layout, Setup, chosen_reduction, lay_out, without_machine, worker_hosts
from penstock.cluster.worker.collectives import REDUCTIONS
from penstock.cluster.worker.cut_graph import check_parts
from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.documents import StrictDocument, first_problem, validated
from penstock.graph.files import read_document, write_whole
from penstock.graph.folder import Graph
from penstock.graph.object_folders import is_remote, local_copy
from penstock.hardware.cluster import LAUNCHER_FACTS, UNCUT, ClusterDocument
from penstock.partition import Cut, Partition, cut, open_partition, uncut
from penstock.plan.document import Plan, PlannedTask, egress_flows, plan_text
from penstock.plan.workloads import workload_of
from penstock.processes import default_threads, polite_interrupt
from penstock.progress import SILENT, Progress
from penstock.train.assembly import data_notes
from penstock.train.auto_values import with_order_costs
from penstock.train.dataset.labels import check_uncut
from penstock.train.dataset.prepared_graph import choose_task, open_data, prepared
from penstock.train.job import Job, stored_job, write_job
from penstock.train.run import Decisions, change_epochs, facts_of_start, plan_of, read_start, with_more_epochs
from penstock.train.run_files.checkpoints import START, take_newest, write_state
from penstock.train.run_files.records import add_workers
from penstock.train.run_files.run_folder import CLUSTER, EVENTS, PARTS, PLAN, RunFolder, check_code, found_anywhere
from penstock.train.whole.memory import WHOLE_STEPS
from penstock.wire.coflows import BATCH, EXPLANATIONS, PREPARATION
from penstock.wire.options import FORMER

# The bytes of a run's batches by use, from the figures of its coflows.

_MOST_FLOWS, _OTHERS = 2_000, "all others"
_OF_BATCHES = {"rows": "features", "lists": "lists", "blocks": "batches"}
"""The uses of bytes, and the labels of the channels that carry them."""


def batch_bytes(coflows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes of requests and answers between tasks, by use.

    `rows` and `lists` are what batches read of features and neighbour lists, `blocks` batches that sampler tasks have
    drawn, `preparation` what samplers read before the first batch, `explanations` what explanations read and sent.
    """
    by_kind = {str(each["kind"]): each for each in coflows}
    flows = by_kind.get(BATCH, {}).get("flows", {})
    found = {use: int(flows.get(label, 0)) for use, label in _OF_BATCHES.items()}
    return found | {kind: int(by_kind.get(kind, {}).get("bytes", 0)) for kind in (PREPARATION, EXPLANATIONS)}


# What an attacker on the network could read or alter in a run; reported when the run starts.


def exposures(cluster: ClusterDocument, layout: Layout) -> list[str]:
    """One sentence for everything that is sent unprotected; none where everything is encrypted or stays on a host."""
    if cluster.wire.security == "token":
        return [
            "security: token encrypts nothing: whoever can listen on the network reads features, labels and gradients,"
            " and whoever can alter its packets can alter them; use tls unless all is on one trusted host."
        ]
    hosts = worker_hosts(cluster, layout)
    by_workers = cluster.reduce == "all-reduce" and not REDUCTIONS[chosen_reduction(cluster, layout)].on_the_wire
    if by_workers and hosts > 1:
        return [
            f"Gradients travel in the clear between {hosts} hosts, whatever the wire's security is: torch's"
            " collectives encrypt nothing. Set reduction: wire, or leave it out, unless the network is your own."
        ]
    return []


def start_cluster_run(
    job: Job,
    cluster: str | ClusterDocument,
    force: bool = False,
    progress: Progress = SILENT,
    graph: Graph | None = None,
) -> RunFolder:
    """Train a job on a cluster from its beginning. Processes of a torchrun or srun job that do not control it end here.

    `cluster` is a document, or what `read_cluster` makes one of. `graph`, if given, is used instead of the job's own
    and need not be on disk: its parts will be, in the run folder.
    """
    document = read_cluster(cluster) if isinstance(cluster, str) else cluster
    return _start(job, document, force, progress, None, graph)


def start_planned_run(plan: Plan, job: Job, force: bool = False, progress: Progress = SILENT) -> RunFolder:
    """Train as a plan says; `job` is its job (`planned_job`)."""
    cluster = validated(ClusterDocument, plan.cluster, "The plan's cluster is not valid")
    if plan.profile:
        # The cluster of a run's own plan has the run's egress.
        cluster.wire = cluster.wire.model_copy(update={"egress": plan.egress})
    return _start(job, cluster, force, progress, plan)


def _start(
    job: Job,
    cluster: ClusterDocument,
    force: bool,
    progress: Progress,
    plan: Plan | None,
    given: Graph | None = None,
) -> RunFolder:
    if job.run is not None and is_remote(job.run) and not LAUNCHER_FACTS[cluster.launcher].one_host:
        raise PenstockError(
            f"The tasks of several machines write the run's folder together, and {job.run} is an address: name a folder"
            " that all of them see. Graph and parts may have addresses.",
            code="unsupported-combination",
        )
    _take_part(cluster)
    if plan is None:
        # Impossible settings are refused before the graph is partitioned.
        chosen_for_all(job.device, cluster)
    given_threads = job.threads
    threads = given_threads or max(1, default_threads() // max(machine.workers for machine in cluster.machines))
    job = with_order_costs(job.model_copy(update={"threads": threads, **found_anywhere(job)}))
    if cluster.partition is not None:
        if not is_remote(cluster.partition):
            cluster.partition = str(Path(cluster.partition).resolve())
        partition = open_partition(cluster.partition, job.unchecked)
        _check_parts(partition, given, cluster, job)
        _check_planned_cut(partition, plan)
    graph, asked = None, cluster.model_copy(deep=True)
    if cluster.partition is None:
        graph = open_data(job) if given is None else prepared(given, job)
        for note in data_notes(graph, job, choose_task(graph, job)):
            progress.note(note)
    name = Path(cluster.partition).name if graph is None else graph.name  # type: ignore[arg-type]
    documents = {CLUSTER: cluster_text(cluster)} | ({} if plan is None else {PLAN: plan_text(plan)})
    name = f"{name}-{job.model_name}".replace("/", "-")
    decided = {} if given_threads else {"threads": threads}
    start = None if job.from_run is None else read_start(Path(job.from_run), progress)
    facts = {"model": job.model_name, "decided": decided, **facts_of_start(start)}
    folder = RunFolder.create(job, name, force, facts, documents)
    try:
        if start is not None:
            write_state(folder.checkpoints / START, start)
        if graph is not None:
            _cut_and_note(graph, job, cluster, folder, progress)
            assert cluster.partition is not None
            _check_planned_cut(open_partition(cluster.partition), plan)
    except BaseException:
        folder.discard()
        raise
    try:
        objects = ["graph"] if given is not None and given.path is None else []
        return _run(job, cluster, folder, progress, _AsGiven(asked, objects))
    finally:
        folder.close()


def _cut_and_note(graph: Graph, job: Job, cluster: ClusterDocument, folder: RunFolder, progress: Progress) -> None:
    """Partition a graph into the run folder, and record that in cluster.json."""
    if graph.path is None:
        progress.note(f"{graph.name} is only in memory: its parts are written to {folder.path / PARTS}.")
    _cut(graph, job, cluster, folder, progress)
    write_whole(folder.path / CLUSTER, cluster_text(cluster))


def _check_parts(partition: Partition, given: Graph | None, cluster: ClusterDocument, job: Job) -> None:
    """Check that the parts that a cluster names are those of the given graph; those on this host are validated."""
    counts = {} if given is None else {name: nodes.count for name, nodes in given.nodes.items()}
    if counts and counts != {name: partition.book.count(name) for name in partition.book.node_types}:
        raise PenstockError(
            f"{partition.path} is a partition of another graph than the one given: leave it out of the cluster file to"
            " have the graph cut for the run.",
            code="mismatched-inputs",
        )
    check_uncut(job, str(partition.path))
    if LAUNCHER_FACTS[cluster.launcher].one_host:
        # Other machines validate their own parts when their tasks start.
        check_parts(partition, job.features)


def _take_part(cluster: ClusterDocument) -> None:
    """Of the processes of a torchrun or srun job one controls the run; the others exit here when their part is over."""
    if not take_part(cluster):
        raise SystemExit(0)


def cut_for(job: Job, cluster: ClusterDocument, folder: RunFolder, progress: Progress) -> str:
    """The cluster's partition: its own, or the job's graph partitioned for it in the run folder."""
    if cluster.partition is None:
        _cut(open_data(job), job, cluster, folder, progress)
    assert cluster.partition is not None
    return cluster.partition


def _cut(graph: Graph, job: Job, cluster: ClusterDocument, folder: RunFolder, progress: Progress) -> None:
    """One part for each machine, and in it a range of numbers for each worker.

    On a single machine with GPUs, workers have the whole graph there if it fits: ranges of least cut, which take METIS
    minutes to find in a large graph, would save them nothing. One part without ranges is the graph's folder itself.
    """
    parts = len(cluster.machines)
    first = cluster.machines[0]
    on_gpus = first.gpus > 0 and (job.device == "cuda" or (job.device == "auto" and first.workers <= first.gpus))
    undivided = parts == 1 and (on_gpus or cluster.method == UNCUT)
    trainers = 1 if undivided else max(machine.workers for machine in cluster.machines)
    if parts == trainers == 1 and graph.is_as_stored():
        uncut(graph, folder.path / PARTS)
    else:
        how = Cut(parts, trainers, cluster.method if parts > 1 else "chunk")
        cut(graph, how, folder.path / PARTS, progress=progress)
    cluster.partition = str((folder.path / PARTS).resolve())


def resume_cluster_run(
    path: Path,
    epochs: int | str | None = None,
    progress: Progress = SILENT,
    trust_module: bool = False,
    named: str | None = None,
) -> RunFolder:
    """Continue from a run's newest checkpoint, on the cluster it was trained on; for the last two see `resume_run`."""
    path = local_copy(path)
    cluster = cluster_of(path)
    _take_part(cluster)
    folder = RunFolder.open(path, writing=True)
    try:
        job = folder.job()
        check_code(job, path, trust_module, named)
        if cluster.partition is None:
            _finish_cutting(job, cluster, folder, progress)
        if epochs is not None:
            job = with_more_epochs(job, epochs)
            _train_longer(folder, job.epochs, progress)
            write_job(job, path)
        elif folder.facts["state"] in ("finished", "stopped-early"):
            progress.note("The run has ended already: there is nothing left to train.")
            return folder
        folder.write_facts(state="running", message="")
        return _run(job, cluster, folder, progress)
    finally:
        folder.close()


def _finish_cutting(job: Job, cluster: ClusterDocument, folder: RunFolder, progress: Progress) -> None:
    """Partition the graph again if the run was killed meanwhile, unless only the record in cluster.json is missing."""
    if (folder.path / PARTS).exists():
        cluster.partition = str((folder.path / PARTS).resolve())
        write_whole(folder.path / CLUSTER, cluster_text(cluster))
        return
    progress.note("The run was stopped while its graph was being cut: it is cut again.")
    _cut_and_note(open_data(job), job, cluster, folder, progress)


def _train_longer(folder: RunFolder, epochs: int, progress: Progress) -> None:
    """Let a run that had ended continue from its last checkpoint."""
    checkpoint = take_newest(folder.checkpoints, progress)
    change_epochs(checkpoint.train_state, epochs)
    write_state(checkpoint.file, {**checkpoint.state, "standing": asdict(checkpoint.train_state)})


def cluster_text(cluster: ClusterDocument) -> str:
    """The content of cluster.json in a run folder, from which the run can be resumed."""
    return cluster.model_dump_json(indent=1) + "\n"


def cluster_of(path: Path) -> ClusterDocument:
    """The cluster of a run. Encryption options that no longer exist, in runs of earlier releases, become TLS."""
    try:
        document = json.loads(read_document(path / CLUSTER))
        wire = document.get("wire") if isinstance(document, dict) else None
        if isinstance(wire, dict) and wire.get("security") in FORMER:
            wire["security"] = "tls"
        return ClusterDocument.model_validate(document)
    except (OSError, ValueError) as error:
        what = first_problem(error) if isinstance(error, ValidationError) else error
        raise PenstockError(
            f"{path / CLUSTER} cannot be read ({what}): start the run again.", code="damaged-file"
        ) from None


class _AsGiven(NamedTuple):
    """What a run that begins was asked for."""

    cluster: ClusterDocument
    """The cluster before its graph was cut."""
    objects: list[str]
    """The names of what it was given as objects of Python, which no plan can hold."""


def _run(
    job: Job, cluster: ClusterDocument, folder: RunFolder, progress: Progress, given: _AsGiven | None = None
) -> RunFolder:
    """Carry out a run; without the machines that stay away, if that is allowed. `given` is for one that begins:
    it writes a plan if it has none.
    """
    while True:
        try:
            return _carry_out(job, cluster, folder, progress, given)
        except MachineAway as error:
            rest = [machine for machine in cluster.machines if machine.name != error.machine]
            if not cluster.failure.elastic or not any(machine.workers for machine in rest):
                raise
            progress.note(f"The run continues without {error.machine}. {error}")
            if plan_of(folder) is not None:
                progress.note("The plan was made for all machines: the others continue without it.")
                (folder.path / PLAN).unlink()
            assert cluster.partition is not None
            cluster = without_machine(cluster, error.machine, open_partition(cluster.partition).parts)
            write_whole(folder.path / CLUSTER, cluster_text(cluster))
            folder.write_facts(state="running", message="")
            given = None


def _carry_out(
    job: Job, cluster: ClusterDocument, folder: RunFolder, progress: Progress, given: _AsGiven | None
) -> RunFolder:
    known: dict[str, Any] = {}
    done: dict[str, Any] = {}

    def started(facts: dict[str, Any]) -> None:
        known.update(facts)
        decided = {**(folder.facts.get("decided") or {}), **(facts.get("decided") or {})}
        folder.write_facts(**{**facts, "decided": decided})
        if facts.get("decided"):
            write_job(stored_job({**job.model_dump(), **facts["decided"]}, "The run's job"), folder.path)

    def decided(found: list[Decisions]) -> None:
        execution, reasons = decisions_of_run(job, cluster, template.layout, found)
        done.update(execution)
        if given is not None and plan_of(folder) is None:
            own = folder.job().model_copy(update={**found[0].fields, "run": None})
            folder.write(PLAN, plan_text(decided_plan(own, given, template.layout, execution, reasons)))

    launcher: Launcher | None = None
    try:
        launcher = make_launcher(cluster, folder.path)
        with polite_interrupt() as stop:
            template = template_of(job, cluster, folder)
            note = chosen_for_all(job.device, cluster, template.layout)[1]
            for each in [*([] if note is None else [note]), *exposures(cluster, template.layout)]:
                progress.note(each)
            outcome = Controller(template, launcher, progress).run(stop, started, decided)
        add_workers(folder.path / EVENTS, outcome.spans)
        plan = plan_of(folder)
        beside = {} if plan is None else plan.beside(done)
        folder.write_facts(state=outcome.state, message="", result={**result_of(outcome), **beside})
    except BaseException as error:
        _fail(folder, error, given is not None and not known)
        raise
    finally:
        if launcher is not None:
            launcher.close()
    return folder


def template_of(job: Job, cluster: ClusterDocument, folder: RunFolder, measured: int = 0) -> Setup:
    """The part of a setup that all tasks share; each task's name and keys are added later."""
    assert cluster.partition is not None
    plan = plan_of(folder)
    parts = open_partition(cluster.partition).parts
    layout, steps = lay_out(cluster, parts), list[Any]()
    if plan is not None:
        layout = lay_out(cluster, parts, plan.machine_of(), _planned(plan, "shares", list[float]))
        steps = _planned(plan, WHOLE_STEPS, list[Any]) or []
    return Setup(
        task=layout.tasks[0],
        incarnation=0,
        credentials="",
        controller="",
        run=str(folder.path.resolve()),
        partition=cluster.partition,
        job={**job.model_dump(mode="json"), "device": chosen_for_all(job.device, cluster, layout)[0]},
        cluster=cluster,
        layout=layout,
        addresses={},
        decided=[{WHOLE_STEPS: each} for each in steps],
        measured=measured,
    )


# The plan that a run without one writes: what it has decided by itself, with the reasons.

_AS_USUAL = "It is the usual value, and the cluster file leaves it open."


def decisions_of_run(
    job: Job, cluster: ClusterDocument, layout: Layout, found: list[Decisions]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What a run does, by the names that plans have for it, and why. `found` is what its workers have decided, by rank:
    they agree on all but the steps on the whole graph, of which each has its own.
    """
    execution, reasons = dict(found[0].execution), dict(found[0].reasons)
    if WHOLE_STEPS in execution:
        execution[WHOLE_STEPS] = [each.execution[WHOLE_STEPS] for each in found]
        execution["bins"] = max(max(step["bins"]) for steps in execution[WHOLE_STEPS] for step in steps)
        reasons["bins"] = reasons[WHOLE_STEPS]
    if job.device == "auto":
        short = chosen_for_all(job.device, cluster, layout)[1]
        has = "Every worker has" if execution["device"] == "cuda" else "No machine of the cluster file has"
        reasons["device"] = f"{has} a GPU." if short is None else short
    if cluster.samplers:
        execution["sampled_by"] = "sampler tasks"
        reasons["sampled_by"] = f"The cluster file has {counted(cluster.samplers, 'sampler tasks')} for each worker."
    assert cluster.partition is not None
    cut = open_partition(cluster.partition)
    execution["partition"], reasons["partition"] = _planned_cut(cut), cut.document.chosen or _why_so(cluster, "method")
    execution |= {"tasks": {task.id: task.machine for task in layout.tasks}, "stores": layout.owners}
    reasons |= dict.fromkeys(("tasks", "stores"), "Tasks are beside the parts of their machines in the cluster file.")
    execution["shares"] = layout.shares
    reasons["shares"] = "Workers share each batch by the `speed` of their machines in the cluster file."
    execution["flows"], reasons["flows"] = egress_flows(cluster.wire.egress), _why_so(cluster.wire, "egress")
    on_servers = cluster.reduce == "servers"
    execution["servers"] = cluster.servers if on_servers else 0
    execution["reduction"] = "servers" if on_servers else chosen_reduction(cluster, layout)
    open_to_us = not on_servers and cluster.reduction == "auto"
    hosts = f"The workers are on {counted(worker_hosts(cluster, layout), 'hosts')}."
    reasons["reduction"] = reasons["servers"] = hosts if open_to_us else "The cluster file asks for it."
    for name in ("samplers", "replicas", "feature_paths", "remote_cache_mb", "wire_type"):
        execution[name], reasons[name] = cluster.model_dump(mode="json")[name], _why_so(cluster, name)
    return execution, reasons


def _why_so(document: StrictDocument, name: str) -> str:
    """Why a field of the cluster file has its value."""
    if getattr(document, name) == type(document).model_fields[name].default:
        return _AS_USUAL
    return f"The cluster file has {document.model_dump(mode='json')[name]!r}."


def decided_plan(
    job: Job, given: _AsGiven, layout: Layout, execution: Mapping[str, Any], reasons: dict[str, str]
) -> Plan:
    """The plan of a run that has decided by itself, with which another run does the same; it predicts nothing."""
    threads = float(job.threads or 1)
    own = {name: value for name, value in execution.items() if name not in ("tasks", "flows")}
    return Plan(
        job=job.model_dump(mode="json"),
        cluster=given.cluster.model_dump(mode="json"),
        execution={"mode": workload_of(job.sampler).mode, **own},
        reasons=reasons,
        given=given.objects,
        placement="cluster file",
        flows=execution["flows"],
        tasks=[
            PlannedTask(
                id=task.id,
                kind=task.kind,
                machine=task.machine,
                cores=threads if task.kind == "worker" else 0.0,
                gpus=float(task.gpu is not None and execution["device"] == "cuda"),
            )
            for task in layout.tasks
        ],
        notes=["The seconds of the run are not predicted: that takes a profile (penstock plan --cluster)."],
    )


def _planned_cut(partition: Partition) -> dict[str, Any]:
    """What a plan holds of the parts that its run has used."""
    document = partition.document
    sizes = {name: [part[-1] - part[0] for part in info.ranges] for name, info in document.node_types.items()}
    return {"method": document.method, "vertices": sizes, "edge_cut": document.metrics.get("edge_cut", 0)}


def _check_planned_cut(partition: Partition, plan: Plan | None) -> None:
    """Refuse a graph that is not cut as it was for the run that wrote a plan."""
    planned = None if plan is None else _planned(plan, "partition", dict[str, Any])
    if planned is not None and planned != (found := _planned_cut(partition)):
        raise PenstockError(
            f"The plan was made for {_in_words(planned)}, and here are {_in_words(found)}: the graph, its partition or"
            " the cluster is another one, so plan again; or name the parts of the run that wrote the plan as"
            " `cluster.partition` in it.",
            code="mismatched-inputs",
        )


def _planned(plan: Plan, name: str, form: Any) -> Any:
    """What a plan has decided by a name, validated; None where it has not."""
    try:
        return TypeAdapter(form | None).validate_python(plan.execution.get(name))
    except ValidationError as error:
        raise PenstockError(
            f"The plan's execution.{name} is not valid: {first_problem(error)}.", code="invalid-document"
        ) from None


def _in_words(cut: Mapping[str, Any]) -> str:
    sizes = [f"{name} {', '.join(map(str, counts))}" for name, counts in dict(cut.get("vertices") or {}).items()]
    return f"parts by {cut.get('method')} of {'; '.join(sizes)} vertices with {cut.get('edge_cut', 0)} edges cut"


def largest_flows(flows: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Bytes sent and received by flow: of more than a run folder holds with ease, the largest, and what is left as one.

    A thousand workers that read from a thousand stores have a million flows.
    """
    if len(flows) <= _MOST_FLOWS:
        return dict(flows)
    ordered = sorted(flows.items(), key=lambda item: (-sum(item[1]), item[0]))
    rest = [sizes for _, sizes in ordered[_MOST_FLOWS:]]
    return dict(ordered[:_MOST_FLOWS]) | {_OTHERS: [sum(sent) for sent in zip(*rest, strict=True)]}


def result_of(outcome: RunOutcome) -> dict[str, Any]:
    """The figures of a run's result, as run.json keeps them."""
    exposed = [task["exposed_communication_s"] for task in outcome.tasks if "exposed_communication_s" in task]
    return {
        **outcome.result,
        **({"largest_exposed_communication_s": max(exposed)} if exposed else {}),
        "tasks": outcome.tasks,
        "bytes_received": outcome.bytes_received,
        "bytes_minimum": outcome.bytes_minimum,
        "batch_bytes": batch_bytes(outcome.coflows),
        "flows": largest_flows(outcome.flows),
        "coflows": outcome.coflows,
        "recoveries": outcome.recoveries,
    }


def _fail(folder: RunFolder, error: BaseException, nothing_happened: bool) -> None:
    """Record a failure; a run that was refused before its first step is removed, unless a task died and its log is
    needed.
    """
    if nothing_happened and isinstance(error, PenstockError) and not isinstance(error, MachineAway):
        folder.discard()
        return
    interrupted = isinstance(error, KeyboardInterrupt | MachineAway)
    message = " ".join(str(error).split()) or type(error).__name__
    folder.record_failure("interrupted" if interrupted else "failed", message, error)
