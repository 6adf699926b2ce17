"""A run from start to end: its folder, the loop, the test of the best model, and the record of how it ended."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.cost.profile import DECIDING, MeasuredMachine, this_machine
from penstock.errors import PenstockError
from penstock.graph.documents import validated
from penstock.graph.folder import Graph
from penstock.graph.object_folders import address_of, local_copy, shown
from penstock.graph.schema import edge_key
from penstock.memory import HOST_PEAK
from penstock.nn.layer_table import ModelOptions
from penstock.nn.user_module import user_module_location
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.schedule import Schedule
from penstock.pipeline.stages import StageError, StageTime, limiting
from penstock.plan.document import Plan, Predicted, one_machine_plan, plan_text, read_plan
from penstock.plan.execution.choice import ExecutionChoice
from penstock.processes import default_threads, polite_interrupt
from penstock.progress import SILENT, Progress
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.assembly import check_job, data_notes, few_steps_note
from penstock.train.auto_values import with_order_costs
from penstock.train.build import make_session
from penstock.train.dataset.labels import learned_labels
from penstock.train.finalists import settle
from penstock.train.job import JOB, Job, changed_job, read_job, stored_job, write_job
from penstock.train.loop import Loop
from penstock.train.optimisers import keep_ways, load_optimiser, rates_on_device
from penstock.train.run_context import STEPS, device_memory, run_context
from penstock.train.run_files.checkpoints import TrainState, checked_train_state, read_best, take_newest
from penstock.train.run_files.run_folder import FUNCTIONS, PLAN, RunFolder, check_code, found_anywhere
from penstock.train.session import Session, device_facts, run_facts
from penstock.train.tasks import Task
from penstock.train.user_functions import NOTHING_GIVEN, GivenFunctions, check_given_again
from penstock.train.whole.memory import WHOLE_STEPS


def start_run(
    job: Job,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    force: bool = False,
    progress: Progress = SILENT,
    given: GivenFunctions = NOTHING_GIVEN,
    plan: Plan | None = None,
) -> RunFolder:
    """Train a job from its beginning. Everything is built and tried before the run folder is made.

    `given` are functions beside those that the job names. `plan`, of which the job is, is kept in the run folder.
    """
    # How sums are rounded depends on the number of threads, so a run that is resumed elsewhere keeps its number.
    fixed = {"threads": job.threads or default_threads(), **found_anywhere(job)}
    left_open = [] if job.threads else ["threads"]
    job = job.model_copy(update={**fixed, **_options_of(module)})
    job = with_order_costs(job, built=module is not None)
    start = None if job.from_run is None else read_start(Path(job.from_run), progress)
    with run_context(job):
        session = make_session(job, graph, module, progress=progress, given=given)
        if start is not None:
            begin_with(session, start)
        session.decided.update({name: fixed[name] for name in left_open})
        check_job(job, session.task, has_validation(session.task))
        for note in [*data_notes(session.graph, job, session.task.name), session.inputs.note]:
            if note:
                progress.note(note)
        settle(session, progress)
        # Fields that the job left open are decided now; the run folder and resumed runs have the values.
        job = session.job
        model = type(module).__name__ if module is not None and not _options_of(module) else job.model_name
        name = f"{session.graph.name}-{model}".replace("/", "-")
        facts = {"model": model, **run_facts(session), "given": given.names(), **facts_of_start(start)}
        folder = RunFolder.create(job, name, force, facts, {} if plan is None else {PLAN: plan_text(plan)})
        session.folder = folder.path
        if plan is not None:
            session.execution.follow(plan.execution)
            return _run(session, folder, TrainState(), progress)
        objects = {"graph": graph is not None and graph.path is None, "model": module is not None, **given.names()}
        return _run(session, folder, TrainState(), progress, [name for name, there in objects.items() if there])


# A run that begins with the weights and embeddings of an earlier one. Its optimiser and its schedule begin anew, and
# once its first checkpoint is written it needs the earlier run no more.


def continued_job(run: Path, changes: Mapping[str, Any], trust_module: bool) -> Job:
    """The job of a run that begins where `run` ended, where no job is named: that of `run`, with a user's changes.

    If it names code, that needs `trust_module`, unless the changes name the model's again.
    """
    named, run = address_of(run), local_copy(run)
    RunFolder.open(run)
    job = read_job(run / JOB, {"run": None, **changes, "from_run": named})
    check_code(job, run, trust_module, changes.get("module"))
    return job


def read_start(run: Path, progress: Progress = SILENT) -> dict[str, Any]:
    """The best weights and embeddings of an earlier run, and what of its record tells whether they fit."""
    run = local_copy(run)
    folder = RunFolder.open(run)
    state = read_best(folder.checkpoints, progress)
    learned, tables = state.get("learned"), state.get("tables")
    if not isinstance(learned, dict) or not isinstance(tables, dict):
        raise PenstockError(f"The checkpoints of {run} hold no weights: name another run.", code="unsupported-version")
    rows = {name: table.get("rows") for name, table in tables.items() if isinstance(table, dict)}
    graph = folder.facts.get("graph", {})
    known = {"labels": folder.facts.get("labels"), "features": graph.get("features")}
    return {"run": str(run), "learned": learned, "rows": rows, **known}


def begin_with(session: Session, start: Mapping[str, Any]) -> None:
    """Load what `read_start` found into a session that has made no step, or say why it does not fit."""
    problem = _misfit(session, start)
    if problem is not None:
        raise PenstockError(
            f"The run cannot begin with the weights of {start['run']}: {problem}.", code="mismatched-inputs"
        )
    session.learned.load_state_dict(start["learned"])
    session.inputs.begin_with(start["rows"])


def facts_of_start(start: Mapping[str, Any] | None) -> dict[str, Any]:
    """What run.json says of the beginning of a run that starts from an earlier one."""
    if start is None:
        return {}
    embeddings = {name: len(rows) for name, rows in start["rows"].items()}
    return {"from": {"run": start["run"], "embeddings": embeddings}}


def _misfit(session: Session, start: Mapping[str, Any]) -> str | None:
    """Why a session cannot begin with weights of an earlier run, as a clause with what to do; None where it can."""
    learned, own = learned_labels(start["labels"], start["run"]), session.task.learned
    for what in ("task", "type", "classes", "words"):
        if learned is not None and (there := getattr(learned, what)) != (here := getattr(own, what)):
            return f"its labels have {what} {_shortly(there)}, and the job's {_shortly(here)}; train anew"
    for name, there in (start["features"] or {}).items():
        here = session.inputs.widths.get(name)
        if here != there and name not in start["rows"]:
            return (
                f"it read {there} numbers of each vertex {name!r}, and the job reads {here or 'none'}; give a graph"
                " with the same columns"
            )
    theirs, ours = start["learned"], session.learned.state_dict()
    for name in [*ours, *(each for each in theirs if each not in ours)]:
        there, here = (_shape(weights.get(name)) for weights in (theirs, ours))
        if there != here:
            return f"its weights {name!r} are {there}, and the job's {here}; give the model's fields as that run had"
    if start["rows"].keys() != session.inputs.tables.keys():
        there, here = (sorted(each) or "nothing" for each in (start["rows"], session.inputs.tables))
        return f"it learned embeddings of {there}, and the job of {here}; give features to the same node types"
    for name, rows in start["rows"].items():
        width, count = session.inputs.widths[name], session.graph.nodes[name].count
        if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != width:
            return f"its embeddings of {name!r} do not have rows of {width} numbers; set `embedding` as that run had"
        if len(rows) > count:
            return (
                f"it learned embeddings of {len(rows):,} vertices {name!r}, and the graph has {count:,}; give a graph"
                " that only gained vertices"
            )
    return None


def _shape(weights: Any) -> str:
    return "x".join(map(str, weights.shape)) or "one number" if isinstance(weights, torch.Tensor) else "missing"


def _shortly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


_LONG = 80


def carry_out_plan(plan: Plan, job: Job, force: bool = False, progress: Progress = SILENT) -> RunFolder:
    """Train on one machine as a plan says; `job` is its job (`planned_job`)."""
    made_for, here = validated(MeasuredMachine, plan.profile, "The plan's machine is not valid"), this_machine()
    if (made_for.processor, made_for.cores, made_for.gpu) != (here.processor, here.cores, here.gpu):
        progress.note(
            f"The plan is carried out as it is, but its seconds are predicted for {made_for.words}, and this machine"
            f" is {here.words}."
        )
    return start_run(job, force=force, progress=progress, plan=plan)


PLANNED = (
    *("threads", "device", "sample_on", "placement", "first_layer", "bins", "keep", "keep_type"),
    *PipelineOptions.model_fields,
)
"""Job fields that a plan decides or relies on, beside those that decide what an iteration costs."""


def planned_job(plan: Plan, path: Path, changes: Mapping[str, Any], trust_module: bool) -> Job:
    """The job of a plan's file with a user's changes, which may not touch what the plan was made for.

    A plan that names the model's code needs `trust_module`, or that name again among the changes.
    """
    named = changes.get("module")
    if named is not None:
        changes = {**changes, "module": user_module_location(named)}
    if plan.given:
        raise PenstockError(
            f"The run that wrote {path} was given objects of Python ({', '.join(plan.given)}), which the plan does not"
            " have: train on them again.",
            code="unsupported-combination",
        )
    planned, job = (stored_job(plan.job, "The plan's job", each) for each in ({}, changes))
    check_code(planned, path, trust_module, named)
    former, fields = (each.model_dump(mode="json") for each in (planned, job))
    for name in (*DECIDING, *PLANNED):
        before, after = former[name], fields[name]
        if before != after:
            raise PenstockError(
                f"The plan was made for {name} {before!r}, not {after!r}: plan again for that.",
                code="mismatched-inputs",
            )
    return job


def plan_of(folder: RunFolder) -> Plan | None:
    """The plan that a run carries out; None for a run without one."""
    path = folder.path / PLAN
    return read_plan(path) if path.exists() else None


def _beside_plan(session: Session, folder: RunFolder, schedule: Schedule) -> dict[str, Any]:
    """What a run's plan predicted and decided, beside what was done; empty for a run of an earlier release."""
    plan = plan_of(folder)
    if plan is None:
        return {}
    return plan.beside(decisions_of(session, schedule).execution)


# The plan that a run without one writes: what it has decided by itself, and what it predicts of that.

_COUNTED = 100
"""A run is predicted if it has at least so many batches: some are drawn for that, which would slow a short run."""


class Decisions(NamedTuple):
    """What a session that is about to train has decided, by itself or as its plan says."""

    execution: dict[str, Any]
    """By name, as a plan's `execution` has it."""
    reasons: dict[str, str]
    fields: dict[str, Any]
    """The job fields that decide the same again."""


def decisions_of(session: Session, schedule: Schedule) -> Decisions:
    """What a session decides for a schedule, whose steps are made ready for that."""
    execution = {**session.executed(), **session.execution.prepare(schedule)}
    fields = {name: execution[name] for name in ("device", "groups", "sample_threads")}
    fields |= {**_placed_fields(session), "gather_threads": session.job.reading_threads}
    return Decisions(execution, _reasons(session, execution), fields)


def decided_plan(session: Session, schedule: Schedule, given: list[str]) -> Plan:
    """What a session that is about to train has decided, as a plan that decides the same again. `given` are the names
    of what it was given as objects.
    """
    execution, reasons, fields = decisions_of(session, schedule)
    job = session.job.model_copy(update={**fields, "run": None})
    names = [each.name for each in dataclasses.fields(ExecutionChoice) if each.name in execution]
    choice = ExecutionChoice(**{name: execution[name] for name in names})
    predicted = _predicted(session, schedule)
    return one_machine_plan(
        {**job.model_dump(mode="json"), "timed_choices": []},
        execution,
        reasons,
        choice.words,
        ("this", this_machine()),
        given=given,
        **(
            {"notes": [f"The seconds of the run are not predicted: {predicted}."]}
            if isinstance(predicted, str)
            else {"predicted": predicted}
        ),
    )


def _placed_fields(session: Session) -> dict[str, Any]:
    """The job fields that place a graph on a GPU as it was placed, and do steps as they are done; on a CPU none, unless
    features are read from the disk.
    """
    from_disk = {"features": "disk"} if session.inputs.disk_note else {}
    if session.placed is None:
        return {"placement": from_disk} if from_disk and session.job.placement == "auto" else {}
    residence, job = session.placed.decision.residence, session.job
    places = {"topology": residence.topology, "features": residence.features, "cache_rows": residence.cache_rows}
    open_places = {name: value for name, value in places.items() if name != "cache_rows" or value}
    if open_places["features"] == "host":
        open_places |= from_disk
    drawn = job.sample_on == "auto" and session.executed()["sampled_by"] == "cuda"
    return {
        "placement": {**(job.placement if isinstance(job.placement, dict) else {}), **open_places},
        "capture": session.placed.is_captured and job.capture,
        **({"sample_on": "device"} if drawn else {}),
    }


_ON_HOST = "The host computes, so it draws the batches and reads the features where they are."
_USUAL = {
    "first_layer": "Every batch reads rows or aggregates of them, whichever takes fewer bytes.",
    "order": "Every block has the cheaper order, by the costs of this machine (order_costs in decided.yaml).",
    "groups": "Each batch is drawn while others are trained.",
    "sample_threads": "One thread draws, unless the job asks for more.",
}
"""Why a field has its value where the job leaves it open and nothing was timed or predicted."""


def _reasons(session: Session, execution: Mapping[str, Any]) -> dict[str, str]:
    """By name, why a session decided so: the job's own value, what was timed or predicted, or a rule."""
    job = session.job
    why = _ON_HOST if session.placed is None else " ".join(session.placed.decision.why)
    found = {name: _USUAL.get(name, why) for name in execution}
    if session.inputs.disk_note and execution["features"] == "host":
        found["features"] = session.inputs.disk_note
    found["device"] = "It is the GPU of this host." if job.device == "auto" else "The job asks for it."
    if job.device == "auto" and execution["device"] == "cpu":
        found["device"] = "There is no GPU."
    if WHOLE_STEPS in execution:
        found[WHOLE_STEPS] = "Bins and places as the job asks; where it leaves them open, what fits the free memory."
    found |= {name: f"The job has {getattr(job, name)!r}." for name in _USUAL if getattr(job, name) != _default(name)}
    found |= {name: f"Decided by {by}." for name, by in session.decided_by.items() if name in found}
    for name in found.keys() & session.settled.keys():
        settled = session.settled[name]
        times = [each for each in settled["finalists"] if each["timed_s"] is not None]
        timed = ", ".join(f"{each['value']} {1e3 * each['timed_s']:.3g} ms" for each in times)
        found[name] = settled["reason"] or f"Of batches that were timed it was the fastest: {timed}."
    return found


def _default(name: str) -> Any:
    return Job.model_fields[name].default


def _predicted(session: Session, schedule: Schedule) -> Predicted | str:
    """The predicted seconds of a run that is about to begin, or why there are none."""
    if session.inputs.device.type != "cpu":
        return "batches would have to be drawn on the host to be counted"
    if SAMPLERS[session.job.sampler].makes_batches and schedule.batches * session.job.epochs < _COUNTED:
        return "the run is short, and batches would have to be drawn to be counted"
    # Short runs do without it, and what it imports takes them longer than the rest of the plan.
    from penstock.train.memory.forecast import predict_run

    run = predict_run(session, "cpu")
    if isinstance(run, str):
        return run
    return Predicted(iteration_s=run.step_s, epoch_s=run.step_s * schedule.batches, run_s=run.total)


def resume_run(
    path: Path,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    epochs: int | str | None = None,
    progress: Progress = SILENT,
    trust_module: bool = False,
    named: str | None = None,
    given: GivenFunctions = NOTHING_GIVEN,
) -> RunFolder:
    """Continue from a run's newest checkpoint; the weights at its end are those of a run that was never interrupted.

    A run that names code needs `trust_module`; its model's may be named again (`named`), or given as `module`. A run
    that was started with functions as objects needs them again (`given`).
    """
    path = local_copy(path)
    folder = RunFolder.open(path, writing=True)
    try:
        job = folder.job()
        check_code(job, path, trust_module, named, FUNCTIONS if module is not None else None)
        check_given_again(folder.facts.get("given"), given, str(path))
        if epochs is not None:
            job = with_more_epochs(job, epochs)
            epochs = job.epochs
        with run_context(job):
            session = make_session(job, graph, module, progress=progress, given=given)
            session.folder = folder.path
            _check_same_graph(session, folder)
            check_job(job, session.task, has_validation(session.task))
            checkpoint = take_newest(folder.checkpoints, progress, partial(take_state, session))
            train_state = checkpoint.train_state
            if epochs is not None:
                change_epochs(train_state, job.epochs)
                write_job(job, folder.path)
            if epochs is None and train_state.done and folder.facts["state"] in ("finished", "stopped-early"):
                progress.note("The run has ended already: there is nothing left to train.")
                return folder
            folder.forget_metrics_after(train_state.step)
            where = {"epoch": train_state.epoch, "step": train_state.step, "time": train_state.elapsed}
            folder.append_metrics({"kind": "resumed", **where})
            folder.write_facts(state="running", message="")
            progress.note(
                f"Resuming from {checkpoint.file.name}: epoch {train_state.epoch + 1}, batch {train_state.batch + 1}."
            )
            return _run(session, folder, train_state, progress)
    finally:
        folder.close()


def _run(
    session: Session, folder: RunFolder, train_state: TrainState, progress: Progress, objects: list[str] | None = None
) -> RunFolder:
    """Train from a position to the end. A run that begins without a plan gives `objects`, the names of what it was
    given as objects: it writes a plan.
    """
    trained = _trained(session, folder, train_state, progress, objects)
    session.callbacks.end(trained.facts["result"])
    return trained


def _trained(
    session: Session, folder: RunFolder, train_state: TrainState, progress: Progress, objects: list[str] | None
) -> RunFolder:
    session.peak = HOST_PEAK.measure()
    loop = Loop(session, folder, train_state, progress)
    try:
        if objects is not None:
            with device_memory(lambda: "when the steps were prepared", STEPS):
                plan = decided_plan(session, loop.schedule, objects)
            folder.write(PLAN, plan_text(plan))
        with polite_interrupt() as asked:
            times = loop.run(asked)
            if not train_state.done:
                loop.save()
                result = {**result_of(loop, times), **_beside_plan(session, folder, loop.schedule)}
                folder.write_facts(state="interrupted", message=_where(train_state), result=result)
                return folder
            loop.save()
            read = partial(read_best, folder.checkpoints, progress) if train_state.best_epoch >= 0 else None
            result = {**finish(loop, times, read, progress), **_beside_plan(session, folder, loop.schedule)}
            early = train_state.epoch < session.job.epochs
            folder.write_facts(state="stopped-early" if early else "finished", result=result)
            return folder
    except BaseException as error:
        session.callbacks.fail()
        cause = error.__cause__ if isinstance(error, StageError) and error.__cause__ else error
        _record_failure(folder, cause, error)
        raise _as_sentence(cause, error, folder) from error
    finally:
        folder.close()


def finish(
    loop: Loop,
    times: dict[str, StageTime],
    best_weights: Callable[[], dict[str, Any] | None] | None,
    progress: Progress,
) -> dict[str, Any]:
    """The run's result, with metrics of the best model, whose weights `best_weights` reads if there are any. They are
    not kept while it is evaluated.
    """
    session = loop.session
    note = few_steps_note(session.job, loop.train_state, loop.schedule.batches)
    if note is not None:
        progress.note(note)
    if best_weights is not None and (best := best_weights()) is not None:
        session.restore_weights(best, str(loop.folder.checkpoints))
        del best
    scores = {}
    if session.job.evaluate_every >= 0:
        scores = session.evaluate(["val", "test"], progress)
    notes = [] if note is None else [note]
    return {**result_of(loop, times), "val": scores.get("val", {}), "test": scores.get("test", {}), "notes": notes}


def result_of(loop: Loop, times: dict[str, StageTime]) -> dict[str, Any]:
    """The run's result so far."""
    train_state = loop.train_state
    stages = {
        name: {"busy_s": round(t.busy, 3), "wait_s": round(t.wait, 3), "threads": t.threads, "depth": t.depth}
        for name, t in times.items()
    }
    return {
        "run": shown(loop.folder.path),
        "epochs": train_state.epoch,
        "steps": train_state.step,
        "seconds": round(train_state.elapsed, 3),
        "epoch_seconds": train_state.epoch_seconds,
        "seeds_per_second": round(train_state.rate, 1),
        "train_loss": train_state.train_loss if math.isfinite(train_state.train_loss) else None,
        "batches": loop.schedule.batches,
        "steps_planned": loop.schedule.batches * loop.session.job.epochs,
        "loss_so_far": train_state.loss_sum / train_state.examples if train_state.examples else None,
        "best_value": train_state.best_value,
        "val": {},
        "test": {},
        "best_epoch": train_state.best_epoch,
        "staleness": loop.session.job.staleness,
        "shuffled_from": None if loop.shuffled_from is None else loop.shuffled_from + 1,
        "limiting_stage": limiting(times),
        "stages": stages,
        "settled": loop.folder.facts.get("settled", {}),
        "peak_rss_mb": round(loop.session.peak.read(), 1),
        **device_facts(loop.session, train_state),
    }


def take_state(session: Session, state: dict[str, Any], file: Path) -> TrainState:
    """Load a checkpoint's state into the session; `file` names it in errors."""
    if not {"standing", "optimiser", "schedule", "learned", "tables"} <= set(state):
        raise PenstockError(
            f"{file} is not a checkpoint of this release: start the run again.", code="unsupported-version"
        )
    train_state = checked_train_state(state["standing"], file)
    if (draws := state.get("draws", 1)) != session.job.draws:
        raise PenstockError(
            f"{file} is of a run whose draws are of version {draws}, and the job's are of version {session.job.draws}:"
            " use the run's own job.",
            code="mismatched-inputs",
        )
    try:
        session.restore_weights(state, str(file))
        session.execution.restore(state.get("room"))
        keep_ways(session.optimiser, state["optimiser"])
        load_optimiser(session.optimiser, state["optimiser"])
        rates_on_device(session.optimiser, session.inputs.device)
        if session.schedule is not None:
            session.schedule.load_state_dict(state["schedule"])
    except torch.OutOfMemoryError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        short = " ".join(str(error).split())[:200]
        raise PenstockError(
            f"{file} does not fit the job's model and optimiser ({short}): use the run's own job.",
            code="mismatched-inputs",
        ) from None
    return train_state


def has_validation(task: Task) -> bool:
    """Whether the task has validation items."""
    try:
        return len(task.items_of("val")) > 0
    except PenstockError:
        return False


def _check_same_graph(session: Session, folder: RunFolder) -> None:
    graph, known = session.graph, folder.facts.get("graph")
    nodes = {name: nodes.count for name, nodes in graph.nodes.items()}
    edges = {edge_key(kind): edges.count for kind, edges in graph.edges.items()}
    same = isinstance(known, dict) and known.get("nodes") == nodes and known.get("edges") == edges
    if not same or folder.facts.get("labels") != session.task.learned.facts():
        raise PenstockError(
            f"The graph is not the one that {folder.path} was trained on: give that one.", code="mismatched-inputs"
        )


def with_more_epochs(job: Job, epochs: int | str) -> Job:
    """A run's job with another number of epochs, given as a flag or a field."""
    job = changed_job(job, {"epochs": epochs}, "The command")
    if not job.epochs:
        raise PenstockError(
            "A resumed run needs a number of epochs: give --epochs a number, not auto.",
            code="invalid-value",
        )
    return job


def change_epochs(train_state: TrainState, epochs: int) -> None:
    """Continue a run that had ended, if more epochs are asked for."""
    begun = train_state.epoch + (train_state.batch > 0)
    if epochs < begun:
        raise PenstockError(
            f"The run is in epoch {begun} already: give --epochs {begun} or more.", code="value-out-of-range"
        )
    train_state.done = train_state.epoch == epochs


def _options_of(module: torch.nn.Module | None) -> dict[str, Any]:
    """The job fields that describe a ready-made zoo model, so that its run can be opened without the object."""
    options = getattr(module, "options", None)
    return options.model_dump() if isinstance(options, ModelOptions) else {}


def _where(train_state: TrainState) -> str:
    return f"Interrupted at epoch {train_state.epoch + 1}, batch {train_state.batch + 1}."


def _record_failure(folder: RunFolder, cause: BaseException, error: BaseException) -> None:
    interrupted = isinstance(cause, KeyboardInterrupt)
    message = "Interrupted." if interrupted else " ".join(str(cause).split()) or type(cause).__name__
    folder.record_failure("interrupted" if interrupted else "failed", message, error)


def _as_sentence(cause: BaseException, error: BaseException, folder: RunFolder) -> BaseException:
    if isinstance(cause, KeyboardInterrupt):
        return KeyboardInterrupt(f"Interrupted: resume with `penstock train --resume {shown(folder.path)}`.")
    if isinstance(cause, (PenstockError, MemoryError)):
        return cause
    stage = f" in stage {error.stage!r}" if isinstance(error, StageError) else ""
    what = " ".join(str(cause).split())[:300]
    return PenstockError(
        f"Training failed{stage} ({type(cause).__name__}: {what}): see the traceback in {folder.path / 'log.txt'}.",
        code="unexpected-failure",
    )
