"""`ps.train`: a job trained, here or on a cluster, with progress in a notebook or a terminal; `ps.memory`: what it
would take.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import torch

from penstock.api.arguments import Functions, checked_model, opened_or_named, split_functions, with_job_fields
from penstock.api.arguments import opened as opened_graph
from penstock.api.run_handle import Run
from penstock.errors import PenstockError
from penstock.formatting import parsed_bytes
from penstock.graph.folder import Graph
from penstock.graph.object_folders import local_copy, shown
from penstock.plan.document import read_plan
from penstock.progress import SILENT, Progress
from penstock.report import write_report_or_note
from penstock.store.device.shards import GpuGroup, shared_by_gpus
from penstock.terminal_progress import shown_progress
from penstock.train.dataset.prepared_graph import IN_MEMORY
from penstock.train.internals import Internals
from penstock.train.job import Job, changed_job
from penstock.train.memory.forecast import MemoryForecast, fitting_forecast, forecast
from penstock.train.run import carry_out_plan, continued_job, planned_job, resume_run, start_run
from penstock.train.run_files.run_folder import CLUSTER, RunFolder
from penstock.train.user_functions import NOTHING_GIVEN, GivenFunctions

# Progress in a notebook: one line for the work under way, which is replaced as it goes on.

_SECONDS = 0.25
"""The least seconds between two updates of a line."""


def shown_in_notebooks() -> Progress:
    """Progress that a notebook shows; silent everywhere else."""
    shell = sys.modules.get("IPython")
    kernel = None if shell is None else shell.get_ipython()
    return NotebookProgress() if type(kernel).__name__ == "ZMQInteractiveShell" else SILENT


class NotebookProgress(Progress):
    """Shows each piece of work as a line with a bar."""

    def __init__(self) -> None:
        super().__init__()
        from IPython.display import HTML, display

        self._html: Any = HTML
        self._display: Any = display
        self._handle: Any = None
        self.start("", 0, "")

    def start(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit, self._done, self._shown = what, total, unit, 0, 0.0

    def advance(self, amount: int) -> None:
        self._done += amount
        self._show()

    def status(self, line: str) -> None:
        self._what = line
        self._show()

    def finish(self) -> None:
        self._show(now=True)

    def note(self, sentence: str) -> None:
        self._display(self._html(f"<div>{escape(sentence)}</div>"))
        # Further lines are shown below the note.
        self._handle = None

    def _show(self, now: bool = False) -> None:
        moment = time.monotonic()
        if not now and moment - self._shown < _SECONDS:
            return
        self._shown = moment
        bar = f"<progress value='{self._done}' max='{self._total}'></progress> " if self._total else ""
        page = self._html(f"<div>{bar}{escape(self._what)} ({self._done:,} {escape(self._unit)})</div>")
        if self._handle is None:
            self._handle = self._display(page, display_id=True)
        else:
            self._handle.update(page)


# The progress that a call from Python shows: as its argument says, and by default a line in notebooks.


@contextmanager
def chosen_progress(progress: Any) -> Iterator[Progress]:
    """The progress for an argument: None shows it in notebooks, False nowhere, True also as commands show it."""
    if progress is None:
        yield shown_in_notebooks()
    elif progress is False:
        yield SILENT
    elif isinstance(progress, Progress):
        yield progress
    elif progress is not True:
        raise PenstockError(
            f"progress is True, False or an object of penstock.progress.Progress, not {type(progress).__name__}.",
            code="invalid-value",
        )
    elif (shown := shown_in_notebooks()) is not SILENT:
        yield shown
    else:
        with shown_progress(quiet=False) as shown:
            yield shown


# `ps.train`: a job trained, here or on a cluster.

_RESUMED = {"epochs", "module"}
"""Fields that may be given with `resume`: more epochs, and the run's own module by its name."""


@with_job_fields
def train(
    graph: Any = None,
    model: torch.nn.Module | str | None = None,
    *,
    resume: str | os.PathLike[str] | None = None,
    cluster: str | os.PathLike[str] | None = None,
    gpus: int | None = None,
    plan: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: bool | Progress | None = None,
    job: Job | None = None,
    trust_module: bool = False,
    loss: str | Callable[..., Any] | None = None,
    metrics: Functions = None,
    callbacks: Functions = None,
    early_stop: int | Mapping[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """Train a model on a graph; further arguments are the fields of a job (docs/job.md).

    `graph` is anything `ps.load` recognises, `model` a name, a model of `ps.nn`, or any module with
    `forward(x, edge_index)` or `forward(x_dict, edge_index_dict)`. `resume` names a run folder to go on from.
    `cluster` names a cluster file (docs/cluster.md), or says 2x2 for two machines of two workers, all on this host; a
    graph that is only in memory is cut into the run folder then. `gpus` trains on so many GPUs of this host, with a
    process for each.
    `from_run` names an earlier run, with whose weights and embeddings this one begins; what the arguments leave open is
    as in that run's job.
    `plan` names a plan (docs/planning.md), which holds its job and its cluster; `fields` may change what it does not
    depend on.
    A run folder or a plan may name code, such as its `module`: it is run with `trust_module`, or if `module` names it
    again.
    `loss(outputs, labels)` replaces the task's loss. Each of `metrics` is called with outputs and labels as NumPy
    arrays (with ranks, on links) and gives a number; `metric` may name one of them. Each of `callbacks` is called with
    every epoch's result, and ends the run where it returns True. All of them may be functions, or FILE.py:NAME, which
    a cluster needs (docs/python.md). `early_stop` is the job's `patience`, or {"patience": 5, "min_delta": 0.001}.
    `progress`: True shows bars on a terminal and a line every few seconds elsewhere, False nothing; without it, a
    notebook shows a line and a script nothing.
    """
    module = checked_model(model)
    given, named = split_functions(loss, metrics, callbacks)
    stopping = _stopping(early_stop)
    fields = {**fields, **named, **stopping}
    if isinstance(fields.get("device"), torch.device):
        fields["device"] = str(fields["device"])
    with chosen_progress(progress) as shown:
        if resume is not None:
            return _resumed(local_copy(resume), graph, module, [job, cluster, gpus], fields, given, shown, trust_module)
        if plan is not None:
            _refuse_objects(given, "A plan's run")
            return _planned(Path(plan), [graph, model, cluster, gpus, job], fields, force, shown, trust_module)
        if isinstance(model, str):
            fields["model"] = model
        internals = {name: fields.pop(name) for name in stopping if name in Internals.model_fields}
        return _started(graph, module, cluster, gpus, job, fields, internals, given, force, shown, trust_module)


def _resumed(
    run: Path,
    graph: Any,
    module: torch.nn.Module | None,
    others: list[Any],
    fields: dict[str, Any],
    given: GivenFunctions,
    progress: Progress,
    trust_module: bool,
) -> Run:
    """Resume a run, on one machine or on its cluster. `others` are arguments that a resumed run does not accept."""
    said = fields.get("epochs"), progress, trust_module, fields.get("module")
    changed = set(fields) - _RESUMED or any(each is not None for each in others)
    if (run / CLUSTER).exists():
        from penstock.cluster.run import resume_cluster_run

        _refuse_objects(given, "A resumed cluster run")
        if changed or graph is not None:
            raise PenstockError(
                "A resumed run keeps its job, its graph and its cluster: only epochs may be changed.",
                code="conflicting-options",
            )
        return _reported(resume_cluster_run(run, *said), progress)
    if changed:
        raise PenstockError("A resumed run keeps its job: only epochs may be changed.", code="conflicting-options")
    opened = None if graph is None else opened_graph(graph)
    return _reported(resume_run(run, opened, module, *said, given), progress, opened, module, given)


def _started(
    graph: Any,
    module: torch.nn.Module | None,
    cluster: str | os.PathLike[str] | None,
    gpus: int | None,
    job: Job | None,
    fields: dict[str, Any],
    internals: dict[str, Any],
    given: GivenFunctions,
    force: bool,
    progress: Progress,
    trust_module: bool,
) -> Run:
    """A new run, on one machine or on a cluster."""
    opened = opened_or_named(graph, fields)
    if opened is not None:
        fields["graph"] = f"{opened.name}{IN_MEMORY}" if opened.path is None else shown(opened.path)
    if job is None and (earlier := fields.get("from_run")) is not None:
        job, fields = continued_job(Path(earlier), fields, trust_module), {}
    chosen = changed_job(job, fields, internals=internals)
    if cluster is None and gpus is None:
        return _reported(start_run(chosen, opened, module, force, progress, given), progress, opened, module, given)
    if cluster is not None and gpus is not None:
        raise PenstockError(
            "A cluster says how many GPUs each machine has: give cluster or gpus.", code="conflicting-options"
        )
    # Imported here, so that training on one machine does not load the wire.
    from penstock.cluster.cluster_file import gpus_of_this_host
    from penstock.cluster.run import start_cluster_run

    _refuse_objects(given, "A cluster run")
    if module is not None:
        raise PenstockError(
            "A cluster run cannot use a module object, because processes exchange no pickles: put the code that"
            ' builds it in a file and pass module="FILE.py:NAME", or name a model of ps.nn.',
            code="unsupported-combination",
        )
    where = os.fsdecode(cluster) if cluster is not None else gpus_of_this_host(gpus or 0, chosen.device)
    return _reported(start_cluster_run(chosen, where, force, progress, opened), progress, opened)


def _stopping(early_stop: int | Mapping[str, Any] | None) -> dict[str, Any]:
    """The field and the internal setting of a job that `early_stop` stands for."""
    if early_stop is None:
        return {}
    found: Any = {"patience": early_stop} if isinstance(early_stop, int) else early_stop
    if not isinstance(found, Mapping) or not found.keys() <= {"patience", "min_delta"}:
        raise PenstockError(
            "early_stop is a number of validations, or a mapping with patience and min_delta: correct it.",
            code="invalid-value",
        )
    return dict(found)


def _refuse_objects(given: GivenFunctions, what: str) -> None:
    for argument, names in given.names().items():
        raise PenstockError(
            f"{what} cannot use the object {names[0]}, because processes exchange no pickles: put it in a file and pass"
            f' {argument}="FILE.py:NAME".',
            code="unsupported-combination",
        )


def _planned(
    plan: Path, others: list[Any], fields: dict[str, Any], force: bool, progress: Progress, trust_module: bool
) -> Run:
    if any(each is not None for each in others):
        raise PenstockError(
            "A plan holds its graph, its model and its cluster: give the plan alone.", code="conflicting-options"
        )
    document = read_plan(plan)
    job = planned_job(document, plan, fields, trust_module)
    if not document.cluster:
        return _reported(carry_out_plan(document, job, force, progress), progress)
    from penstock.cluster.run import start_planned_run

    return _reported(start_planned_run(document, job, force, progress), progress)


def _reported(
    folder: RunFolder,
    progress: Progress,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    given: GivenFunctions = NOTHING_GIVEN,
) -> Run:
    """The run, with its page written; where that fails, with a note, so that the trained run is still returned."""
    run = Run(folder, graph, module, given=given)
    write_report_or_note(run.path, run.state, progress)
    return run


# What a run would take of memory.


def memory(
    graph: Any = None,
    model: torch.nn.Module | str | None = None,
    *,
    device_memory: int | str | None = None,
    gpus: int = 1,
    job: Job | None = None,
    **fields: Any,
) -> MemoryForecast:
    """What `train` with the same arguments would take of memory, on the device and on the host; nothing is trained.

    `device="cuda"` needs no GPU here. `device_memory` is what the GPU has, in bytes or as "24GB"; where it is not
    given, a GPU of this machine is asked, and without one everything is taken to fit. A job that is too large is
    refused, with changes that would make it fit. `gpus` is how many GPUs of a host train together: the forecast is of
    one of them.
    """
    module = checked_model(model)
    if isinstance(device_memory, str):
        device_memory = parsed_bytes(device_memory, "device_memory")
    if isinstance(model, str):
        fields["model"] = model
    opened = opened_or_named(graph, fields)
    return memory_of_job(changed_job(job, fields), opened, module, device_memory, gpus)[0]


def memory_of_job(
    job: Job,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    device_memory: int | None = None,
    gpus: int = 1,
) -> tuple[MemoryForecast, int | None]:
    """The forecast of a job for one of so many GPUs, and the memory that it was compared with, where that is known."""
    if device_memory is None and job.device != "cpu" and torch.cuda.is_available():
        device_memory = torch.cuda.mem_get_info()[1]
    with shared_by_gpus(GpuGroup(gpus) if gpus > 1 else None):
        if device_memory is None:
            return forecast(job, graph, module=module), None
        return fitting_forecast(job, graph, device_memory=device_memory, module=module), device_memory
