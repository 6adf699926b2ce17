"""The parts of a session put together: graph, task, model, optimiser, epochs; a model tried on a few seeds, and jobs
refused that contradict their data or sampler.
"""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch

from penstock.errors import Code, PenstockError
from penstock.formatting import counted
from penstock.graph.folder import Graph
from penstock.graph.inspect import shared_vertices, unlearned_classes
from penstock.graph.schema import TASK_FACTS, TaskName
from penstock.nn import ModelOptions, adapt, build_model
from penstock.nn.layer_table import LAYERS
from penstock.nn.user_module import build_user_module
from penstock.pipeline.schedule import Schedule
from penstock.sampling.block import unwrapping
from penstock.sampling.sampler_table import SAMPLERS
from penstock.sampling.triples.triple_set import relations_of
from penstock.train.batch_source import layers_of
from penstock.train.callbacks.calls import Callbacks
from penstock.train.dataset.inputs import (
    Inputs,
    check_model,
    check_module,
    is_own_module,
    sampled_job,
    with_edge_fields,
)
from penstock.train.dataset.labels import LearnedLabels, labelled_vertices
from penstock.train.dataset.prepared_graph import choose_task, open_data, prepared, with_empty_relations
from penstock.train.first_layer.ways import first_layer_reader
from penstock.train.job import Job
from penstock.train.job_options import LINK_LOSSES, SHUFFLINGS
from penstock.train.layerwise.inference import evaluating
from penstock.train.losses import NUMBER_LOSSES
from penstock.train.optimisers import make_optimiser, make_schedule
from penstock.train.run_context import STEPS, device_memory, seeded
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.session import Session, model_at_fault
from penstock.train.tasks import Task, make_task
from penstock.train.user_functions import NO_FUNCTIONS, NOTHING_GIVEN, GivenFunctions, UserFunctions, functions_of

# How long a run trains: the epochs that `epochs: auto` stands for, and whether a run took enough steps to learn.

AUTO_EPOCHS = 10
"""The least number of epochs that `auto` stands for."""
AUTO_STEPS = 150
"""Steps that `auto` aims at: with 20 labels for each class the public graphs are learned in 20 to 130 steps of Adam."""
_VISITS = 1_000_000_000
"""Upper bound on the vertices and edges read by all validations of a run with `auto` epochs, each of which reads the
whole graph.
"""
_FEW = 50
"""With fewer steps hardly any model has learned."""


def auto_epochs(batches: int, size: int) -> int:
    """The epochs that `auto` stands for, given the batches of an epoch and a graph of `size` vertices and edges: at
    least 10.

    As many as make 150 steps, fewer where validating after each of them would take long.
    """
    wanted = -(-AUTO_STEPS // max(1, batches))
    return max(AUTO_EPOCHS, min(wanted, _VISITS // max(1, size)))


def with_epochs(job: Job, graph: Graph, task: Task) -> Job:
    """The job with `epochs: auto` replaced by a number. Every worker of a cluster computes the same one."""
    if job.epochs:
        return job
    batches = Schedule(task.items, task.batch_size, job.draw_seed).batches
    counts = [nodes.count for nodes in graph.nodes.values()] + [edges.count for edges in graph.edges.values()]
    return job.model_copy(update={"epochs": auto_epochs(batches, sum(counts))})


def epochs_note(epochs: int, batches: int) -> str | None:
    """A note on the epochs that were chosen; None where they are the usual 10."""
    if epochs <= AUTO_EPOCHS:
        return None
    return (
        f"An epoch has {counted(batches, 'batches')}: training for {epochs} epochs"
        f" ({epochs * batches} steps; epochs: auto)."
    )


def few_steps_note(job: Job, train_state: TrainState, batches: int) -> str | None:
    """A note for a run that ended before 150 steps while its model was still learning; else None.

    A model still learns if its last validation was the best; without validations, if the run had fewer than 50 steps.
    """
    validated = train_state.best_epoch >= 0 and job.evaluate_every > 0
    few = AUTO_STEPS if validated and train_state.best_epoch == train_state.epoch else 0 if validated else _FEW
    if train_state.step >= few or train_state.epoch < job.epochs:
        return None
    steps, epochs = counted(train_state.step, "steps"), counted(train_state.epoch, "epochs")
    why = "its last validation was the best" if validated else "nothing was validated"
    return (
        f"The run ended after {steps} ({epochs} of {counted(batches, 'batches')}), and {why}: it may still learn with"
        f" epochs {-(-AUTO_STEPS // max(1, batches))}."
    )


# The parts of a session put together: graph, task, model and optimiser; and a model tried on a few seeds.

_TRIED = 4
"""Seeds of the batch that a model is tried on."""


def session_of(
    job: Job,
    device: torch.device,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    taught: LearnedLabels | None = None,
    given: GivenFunctions = NOTHING_GIVEN,
) -> Session:
    """Build everything that a job names, on a device; the execution mode is not chosen yet.

    `graph` and `module` stand for the job's own where given. `taught` are the labels of the run that the model comes
    from. `given` are functions beside those that the job names.
    """
    functions = functions_of(job, given, training=taught is None)
    graph = open_data(job) if graph is None else prepared(graph, job)
    if not graph.edges:
        if LAYERS[job.model].reads_neighbours or module is not None or job.module is not None:
            raise PenstockError(
                "The graph has no edges, so there are no neighbours to learn from: use model mlp.", code="missing-data"
            )
        graph = with_empty_relations(graph)
    job = with_edge_fields(job, {kind: edges.fields for kind, edges in graph.edges.items()})
    with seeded(job.weight_seed, device):
        inputs = Inputs(graph, job, device)
        name = taught.task if taught else choose_task(graph, job)
        task, graph = make_task(name, graph, sampled_job(job, module), taught, functions=functions)
        return assembled(job, graph, inputs, task, module, functions)


def assembled(
    job: Job,
    graph: Graph,
    inputs: Inputs,
    task: Task,
    module: torch.nn.Module | None = None,
    functions: UserFunctions = NO_FUNCTIONS,
) -> Session:
    """A session of its parts; `session.job` has what the job left open, such as `epochs: auto`."""
    given, job = job, with_epochs(job, graph, task)
    decided = {} if job is given else {"epochs": job.epochs}
    if task.learned.classes > job.max_classes:
        # The run folder's own number of classes is checked against it when the model is used.
        decided["max_classes"] = task.learned.classes
        job = job.model_copy(update={"max_classes": task.learned.classes})
    inputs.carry_edges(job, graph, task.messages, is_own_module(job, module))
    model = _make_model(job, graph, inputs, task, module)
    inputs.read_by(first_layer_reader(job, model, inputs))
    parts = {"model": model} if task.head is None else {"model": model, "head": task.head}
    learned = torch.nn.ModuleDict({name: _moved(part, inputs.device) for name, part in parts.items()})
    optimiser = make_optimiser(learned.parameters(), job, inputs.device)
    schedule, callbacks = make_schedule(optimiser, job), Callbacks(functions.callbacks)
    return Session(job, graph, inputs, task, model, learned, optimiser, schedule, decided, callbacks=callbacks)


def _moved(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The module on a device; meta tensors, which have shapes and no values, stay as they are."""
    return module if any(weights.is_meta for weights in module.parameters()) else module.to(device)


def _make_model(job: Job, graph: Graph, inputs: Inputs, task: Task, module: torch.nn.Module | None) -> torch.nn.Module:
    if module is None and job.module is not None:
        module = build_user_module(job.module, unwrapping(graph)(dict(inputs.widths)), task.out)
    if module is not None:
        if not module.training:
            # The caller evaluated it last. A module in training mode with parts that are not has those frozen on
            # purpose.
            module.train()
        if getattr(module, "layerwise", False):
            if job.module is not None and job.edge_weight is not None:
                raise PenstockError(
                    "A model of ps.nn that `module` makes gets no edge_weight: name it with `model`.",
                    code="unsupported-combination",
                )
            check_model(cast(Any, module).options, job, inputs.edges)
            return module
        typed = not graph.is_homogeneous
        check_module(module, job, typed)
        if job.weight is not None:
            raise PenstockError(
                "A module of your own takes no edge weights: leave out `weight`, or use a zoo model.",
                code="unsupported-combination",
            )
        carried = {kind: fields.width for kind, fields in inputs.edges.fields.items() if fields.width}
        return adapt(module, typed, layers_of(job), list(graph.edges), carried)
    chosen = {name: getattr(job, name) for name in ModelOptions.model_fields}
    # The job has checked them.
    options = ModelOptions.model_construct(**{**chosen, "layers": layers_of(job)})
    check_model(options, job, inputs.edges)
    if inputs.edges:
        options.edge_width = next(iter(inputs.edges.fields.values())).width
    widths = unwrapping(graph)(inputs.widths)
    return build_model(options, widths, task.out, list(graph.edges), getattr(task, "node_type", None))


def try_out(session: Session, with_loss: bool) -> None:
    """Compute one small batch, and its loss if asked, so that mismatched shapes are reported before anything is
    written.
    """
    if not with_loss and len(session.task.items) == 0:
        return
    schedule = Schedule(session.task.items, min(_TRIED, session.task.batch_size), session.job.draw_seed)
    planned = next(schedule.from_position())
    batch, carrier = session.execution.sample(planned), session.inputs.carrier
    carrier.gather(batch)
    if with_loss:
        session.task.label(batch)
    with device_memory(lambda: "on a first small batch", STEPS):
        carrier.transfer(batch)
        carrier.arrive(batch)
        x = session.inputs.complete(batch)
        with model_at_fault(), torch.no_grad(), evaluating(session.model), session.precision():
            out = session.encode(batch, x)
            if with_loss:
                session.task.loss(out, batch)


_ONE_LABEL = ("accuracy",)
"""Metrics that need exactly one label per vertex."""


def check_job(job: Job, task: Task, has_validation: bool) -> None:
    """Refuse fields of a job about to train that would be ignored, or would fail only after an epoch."""
    for code, sentence in _mistakes(job, task, has_validation):
        raise PenstockError(sentence, code=code)


def _mistakes(job: Job, task: Task, has_validation: bool) -> Iterator[tuple[Code, str]]:
    """What is wrong with a job, the first thing first: the code and the sentence of each error."""
    if getattr(task, "multi_label", False) and task.metric.name in _ONE_LABEL:
        yield (
            "unsupported-combination",
            f"Metric {task.metric.name!r} is for one label per vertex, and these vertices have several: use micro-f1,"
            " macro-f1, roc-auc or average-precision.",
        )
    if (needs := _needs_validation(job)) is not None:
        what, mend = needs
        if job.evaluate_every < 1:
            yield (
                "conflicting-options",
                f"{what} needs validations, and evaluate_every {job.evaluate_every} turns them off: set it, or {mend}.",
            )
        if not has_validation:
            yield (
                "split-missing",
                f"{what} needs validations, and the data has no validation split: give it one, or {mend}.",
            )
    if job.reuse_batches and SHUFFLINGS[job.shuffle].first is not None:
        # Epochs do not have the same batches of seeds then.
        yield (
            "conflicting-options",
            f"reuse_batches needs epochs with the same batches of seeds, and shuffle is {job.shuffle}: set `shuffle` to"
            " never or adaptive, or leave out `reuse_batches`.",
        )
    if job.class_weights is not None and task.facts.learns != "classes":
        yield (
            "unsupported-combination",
            f"class_weights are for classes, and the task is {task.name}: leave them out.",
        )
    if job.class_weights is not None and task.has_own_loss:
        yield (
            "conflicting-options",
            "class_weights weigh the task's own loss, and `loss` replaces it: weigh classes there, or leave out one.",
        )
    if job.loss in NUMBER_LOSSES and task.facts.learns != "numbers":
        yield (
            "unsupported-combination",
            f"Loss {job.loss!r} is for regression, and the task is {task.name}: leave out `loss`, or set `task`.",
        )
    if job.loss in LINK_LOSSES and task.facts.learns != "links":
        yield (
            "unsupported-combination",
            f"Loss {job.loss!r} is for links, and the task is {task.name}: leave out `loss`, or set `task`.",
        )


def _needs_validation(job: Job) -> tuple[str, str] | None:
    """The field of a job that depends on validations, and how to do without it; None where none does."""
    if job.patience:
        return f"patience {job.patience}", "set `patience` to 0"
    if SHUFFLINGS[job.shuffle].waits_for_elbow:
        return f"shuffle {job.shuffle}", "set `shuffle` to always"
    return ("Schedule ReduceLROnPlateau", "choose another schedule") if job.schedule == "ReduceLROnPlateau" else None


# Notes for the user before a job trains: what was chosen for them, and what in the data may mislead.


def data_notes(graph: Graph, job: Job, task: TaskName) -> Iterator[str]:
    """Sentences about the task and the splits that were chosen, and the serious warnings of `penstock data inspect`."""
    facts = TASK_FACTS[task]
    if job.task == "auto" and facts.learns == "links":
        learned = "links" if facts.about == "edges" else "triples of all relations"
        yield (
            f"The graph has no labels {job.label!r}, so {learned} are learned (task: {task}): set `label` or `task` to"
            " learn something else."
        )
    if facts.about == "triples" and len(relations := relations_of(graph.edges)) == 1:
        yield (
            f"The graph has one relation, {relations[0][1]!r}, so all triples are of it: task link-prediction learns"
            " from neighbours and is usually meant."
        )
    if facts.about == "vertices":
        yield from _about_vertices(graph, job, task)
    if not SAMPLERS[job.sampler].makes_batches:
        yield from _about_whole(job)


def _about_vertices(graph: Graph, job: Job, task: TaskName) -> Iterator[str]:
    found = labelled_vertices(graph, job, task)
    nodes = graph.nodes[found.node_type]
    if job.split == "auto" and "train" not in nodes.splits:
        shares = " / ".join(f"{share:.0%}" for share in job.split_ratio)
        yield (
            f"The graph has no splits: {shares} of the labelled vertices were drawn at random for training, validation"
            f" and testing (split_number {job.split_number}); set `split`, `split_ratio` or `split_number` for others."
        )
    yield from shared_vertices(found.node_type, found.splits)
    if TASK_FACTS[task].learns == "classes":
        yield from unlearned_classes(found.node_type, np.asarray(found.labels), found.splits)


def _about_whole(job: Job) -> Iterator[str]:
    """Notes on fields that the user set and that only mini-batch training uses."""
    defaults = type(job).model_fields
    ignored = [name for name in ("fanouts", "batch_size") if getattr(job, name) != defaults[name].default]
    if ignored == ["fanouts"] and not job.layers:
        number = f"{len(job.fanouts)} layers"
        yield f"sampler {job.sampler} reads all neighbours: of fanouts only their number counts ({number})."
    elif ignored:
        used = "is" if len(ignored) == 1 else "are"
        yield f"sampler {job.sampler} trains on all vertices at once: {' and '.join(ignored)} {used} not used."
