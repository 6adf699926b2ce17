"""A session's model written as a folder: a plain module, its weights and its description."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from penstock.errors import PenstockError, nearest
from penstock.graph.atomic import new_folder, write_whole
from penstock.nn.zoo.embedding import EmbeddingModel
from penstock.nn.zoo.layer_ends import LayerEnd, layer_widths
from penstock.nn.zoo.model import GraphModel
from penstock.nn.zoo.typed import TypedModel
from penstock.train.export.module_specs import Spec, end_spec, join_spec, part_spec, renamed_weights
from penstock.train.export.plain import loading
from penstock.train.export.plain_source import joined_source
from penstock.train.export.programs import write_onnx, write_program
from penstock.train.export.safetensors_file import write_safetensors
from penstock.train.session import Session
from penstock.version import __version__

TARGETS: dict[str, Callable[[Any, Session, Path], Path] | None] = {
    "torch": None,
    "program": write_program,
    "onnx": write_onnx,
}
"""What a folder can have beside the plain module."""
MODEL, WEIGHTS, CONFIG = "model.py", "model.safetensors", "config.json"
FORMAT, VERSION = "penstock-export", 1


def export_session(session: Session, folder: Path, to: str = "torch", force: bool = False) -> dict[str, Any]:
    """Write the session's model to a folder, which appears whole; returns what it holds."""
    if to not in TARGETS:
        raise PenstockError(f"A model cannot be exported to {to!r}{nearest(to, TARGETS)}", code="invalid-value")
    config = {"format": FORMAT, "version": VERSION, "penstock": __version__, **description(session)}
    weights = renamed_weights(session.learned.state_dict())
    for number, table in enumerate(session.inputs.tables.values()):
        weights[f"embeddings.{number}"] = torch.from_numpy(table.rows)
    with new_folder(folder, force) as temporary:
        (temporary / MODEL).write_text(joined_source(), encoding="utf-8")
        write_safetensors(temporary / WEIGHTS, weights, {"format": "pt", "made_by": f"penstock {__version__}"})
        write_whole(temporary / CONFIG, json.dumps(config, indent=1) + "\n")
        more, files = TARGETS[to], [MODEL, WEIGHTS, CONFIG]
        if more is not None:
            files.append(more(loading.load(temporary), session, temporary).name)
    return {"path": str(folder), "files": files, "parameters": session.parameters}


def description(session: Session) -> dict[str, Any]:
    """What config.json says: how the module is built, and what it was trained on."""
    job, task, graph = session.job, session.task, session.graph
    if job.time is not None:
        raise PenstockError(
            "The run draws neighbours by time, so that each vertex has edges of its own, and a plain module has one"
            " list of edges for all: it is not exported.",
            code="unsupported-combination",
        )
    return {
        "model": model_spec(session),
        "trained_on": graph.name,
        "labels": task.learned.facts(),
        "relations": [list(kind) for kind in getattr(task, "relations", graph.edges)],
        "features": {name: session.inputs.widths[name] for name in session.inputs.fields},
        "edge_weight": session.list_weight,
        "edge_features": job.edge_features,
    }


def model_spec(session: Session) -> Spec:
    """The description of the whole model."""
    model = session.model
    shared = {
        "embedded": {
            name: list(table.rows.shape)
            for name, table in zip(_names(model, session), session.inputs.tables.values(), strict=True)
        },
        "head": None if session.task.head is None else part_spec(session.task.head),
        "scaled": session.inputs.scale is not None,
        "weighted": session.list_weight is not None,
    }
    if isinstance(model, EmbeddingModel):
        return {"part": "EmbeddingModel", "types": model.node_types, **shared}
    if isinstance(model, GraphModel):
        return {"part": "PlainModel", **_plain(model, session), **shared}
    if isinstance(model, TypedModel):
        return {"part": "TypedModel", **_typed(model, session), **shared}
    raise PenstockError(
        "The run trained a module of your own, whose code Penstock does not write: save `run.model().state_dict()`.",
        code="unsupported-combination",
    )


def _names(model: Any, session: Session) -> list[str]:
    """What the model calls the types that have embeddings; a graph with one relation has one type, or none."""
    tables = list(session.inputs.tables)
    if not session.graph.is_homogeneous:
        return tables
    return [model.node_types[0] if hasattr(model, "node_types") else ""] * len(tables)


def _plain(model: GraphModel, session: Session) -> dict[str, Any]:
    (width,) = session.inputs.widths.values()
    pairs, ends = layer_widths(model.options, width, session.task.out), cast(Sequence[LayerEnd], model.ends)
    return {
        "layers": [part_spec(each) for each in model.convolutions],
        "ends": [end_spec(end, *pair, model.options.norm) for end, pair in zip(ends, pairs, strict=True)],
        "joined": join_spec(model.joined),
    }


def _typed(model: TypedModel, session: Session) -> dict[str, Any]:
    options, alone = model.options, session.graph.is_homogeneous
    width = options.hidden if model.projections else next(iter(session.inputs.widths.values()))
    pairs, ends = layer_widths(options, width, session.task.out), cast(Sequence[Sequence[LayerEnd]], model.ends)
    reach, layers = session.reach(), len(pairs)
    # A graph with one relation may have another name for it than the model.
    followed = [model.edge_types if alone else reach.of_layer(number, layers) for number in range(layers)]
    return {
        "types": model.node_types,
        "projections": [list(each.weight.shape)[::-1] for each in cast(Sequence[nn.Linear], model.projections)],
        "layers": [part_spec(each) for each in model.convolutions],
        "ends": [[end_spec(end, *pair, options.norm) for end in some] for some, pair in zip(ends, pairs, strict=True)],
        "followed": [[list(kind) for kind in kinds] for kinds in followed],
        "joined": join_spec(model.joined),
        "alone": list(model.edge_types[0]) if alone else None,
    }
