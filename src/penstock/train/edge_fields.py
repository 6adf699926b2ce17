"""Which fields of the edges a job's model reads: named, found where the job says auto, and checked."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from penstock.errors import PenstockError, nearest
from penstock.graph.schema import EdgeType, edge_key
from penstock.nn.layer_table import LAYERS, layer_entry
from penstock.nn.options import ModelOptions, model_options
from penstock.pipeline.edge_rows import EdgeFields, EdgeRows
from penstock.store.source import RowSource
from penstock.train.job import Job

AnyJob = TypeVar("AnyJob", bound=Job)
AUTO = "auto"
_USUAL = {"edge_weight": ("edge_weight", "weight"), "edge_features": ("edge_attr",)}
"""Names that other libraries give the field, which is meant where there are several."""


def is_own_module(job: Job, module: torch.nn.Module | None) -> bool:
    """Whether the model is a module of the user's, which gets what edges carry by name."""
    return job.module is not None if module is None else not getattr(module, "layerwise", False)


def sampled_job(job: Job, module: torch.nn.Module | None) -> Job:
    """The job as samplers see it: it says that the model is a module of the user's, also where that is an object."""
    if module is None or job.edge_weight is None:
        return job
    return job.model_copy(update={"module": type(module).__name__ if is_own_module(job, module) else None})


def with_edge_fields(job: AnyJob, relations: Mapping[EdgeType, Iterable[str]]) -> AnyJob:
    """The job with the names of the edge fields that it leaves open; `relations` have these fields."""
    if job.edge_weight is None and not job.edge_features:
        return job
    if job.weight is not None and job.edge_weight is not None:
        raise PenstockError(
            "weight draws neighbours by a field, which weighs messages already, and edge_weight weighs them after a"
            " uniform draw: set one of both.",
            code="conflicting-options",
        )
    taken = {job.label, job.time, job.weight}
    known = list(dict.fromkeys(name for fields in relations.values() for name in fields if name not in taken))
    weight = job.edge_weight
    if weight == AUTO:
        weight = _found("edge_weight", [name for name in known if name not in job.edge_features])
    features = job.edge_features
    if features == [AUTO]:
        features = [_found("edge_features", [name for name in known if name != weight])]
    for option, name in [("edge_weight", weight), *(("edge_features", name) for name in features)]:
        if name is not None and not any(name in fields for fields in relations.values()):
            hint = nearest(name, known) if known else ": the graph's edges carry nothing."
            raise PenstockError(f"{option} names {name!r}, which no edges have{hint}", code="field-missing")
    return job.model_copy(update={"edge_weight": weight, "edge_features": features})


def edge_rows(
    job: Job, relations: Mapping[EdgeType, Iterable[str]], source: Callable[[str], RowSource], own_module: bool
) -> EdgeRows:
    """The rows that are read of a batch's edges; `source` gives those of `relation/field`.

    Weights are rows for a module of the user's. Models of the zoo have them in the estimators of their lists.
    """
    found = {}
    for kind, fields in relations.items():
        names = [name for name in job.edge_features if name in fields]
        weight = job.edge_weight if own_module and job.edge_weight in set(fields) else None
        rows = EdgeFields(
            tuple(_numbers(source(f"{edge_key(kind)}/{name}"), kind, name) for name in names),
            None if weight is None else _numbers(source(f"{edge_key(kind)}/{weight}"), kind, weight, single=True),
        )
        found[kind] = rows
    return EdgeRows(found)


def check_model(options: ModelOptions, job: Job, rows: EdgeRows) -> None:
    """Refuse edge fields that a model of the zoo would not read, and a model that lacks the ones it reads."""
    entry = layer_entry(options.model)
    if job.edge_weight is not None and not entry.weighs_messages(options):
        able = ", ".join(name for name in LAYERS if layer_entry(name).weighs_messages(model_options(model=name)))
        raise PenstockError(
            f"Model {options.model} with aggregate {options.aggregate} does not weigh messages by edge_weight: leave it"
            f" out, or use one of {able}.",
            code="unsupported-combination",
        )
    if not rows:
        return
    if entry.edge_features == "none":
        able = ", ".join(name for name in LAYERS if layer_entry(name).edge_features != "none")
        raise PenstockError(
            f"Model {options.model} reads no edge_features: leave them out, or use one of {able}, or a module of your"
            " own.",
            code="unsupported-combination",
        )
    if len(rows.fields) > 1 or job.reverse_edges:
        raise PenstockError(
            "Models of the zoo read edge_features of graphs with one relation: use a module of your own.",
            code="unsupported-combination",
        )
    (fields,) = rows.fields.values()
    if options.edge_width not in (0, fields.width):
        raise PenstockError(
            f"edge_width is {options.edge_width}, and edge_features have {fields.width} numbers for each edge: leave it"
            " out.",
            code="shape-mismatch",
        )


def check_module(module: torch.nn.Module, job: Job, typed: bool) -> None:
    """Refuse a module of the user's whose forward does not take what the job gives it, or takes what it does not."""
    parameters = inspect.signature(module.forward).parameters
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    given: dict[str, Any] = {"edge_weight": job.edge_weight, "edge_attr": job.edge_features or None}
    for name, value in given.items():
        option = "edge_features" if name == "edge_attr" else name
        names = (f"{name}_dict", name) if typed else (name,)
        taken = [parameters[each] for each in names if each in parameters]
        if value is not None and not taken and not anything:
            raise PenstockError(
                f"The job names {option}, and the module's forward takes no {names[0]}: add it, or leave out {option}.",
                code="unsupported-combination",
            )
        if value is None and any(each.default is inspect.Parameter.empty for each in taken):
            raise PenstockError(
                f"The module's forward takes {taken[0].name}, and the job does not say which field of the edges that"
                f" is: set {option}, to auto if there is only one.",
                code="option-missing",
            )


def _found(option: str, names: list[str]) -> str:
    usual = [name for name in _USUAL[option] if name in names]
    if usual or len(names) == 1:
        return (usual or names)[0]
    has = ", ".join(names) if names else "none"
    raise PenstockError(
        f"{option}: auto is for graphs whose edges have one field that can be meant, and these have {has}: name it.",
        code="option-missing",
    )


def _numbers(source: RowSource, kind: EdgeType, name: str, single: bool = False) -> RowSource:
    shape = source.row_shape()
    if source.dtype.kind not in "biuf" or len(shape) > 1 or (single and shape):
        needed = "one number" if single else "one row of numbers"
        raise PenstockError(
            f"Edge field {name!r} of {edge_key(kind)} is {source.dtype} {shape} for each edge: give {needed}.",
            code="wrong-type",
        )
    return source
