"""A session's model written as a folder: a plain module, its source, weights, description and programs."""

import ast
import json
import logging
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import nn

from penstock.errors import PenstockError, nearest
from penstock.export.module_specs import Spec, end_spec, join_spec, part_spec, renamed_weights
from penstock.export.plain import loading
from penstock.graph.files import replace_whole, write_whole
from penstock.graph.folder import Graph
from penstock.graph.new_folders import new_folder
from penstock.nn.zoo.model import EmbeddingModel, GraphModel, LayerEnd, layer_widths
from penstock.nn.zoo.typed import TypedModel
from penstock.sampling.block import unwrapping
from penstock.train.session import Session
from penstock.version import __version__

# model.py, the one source file of an exported folder: the files of `plain`, joined.

PACKAGE = "penstock.export.plain"
FILES = (
    *("edge_lists", "layers", "attention", "typed_layers", "layer_ends", "heads", "parts", "models"),
    "loading",
)
"""Each file uses those before it; the docstring of the last becomes that of model.py."""


def joined_source() -> str:
    """The text of model.py: a docstring, the imports of all files, and what follows them in each."""
    modules, names, bodies, docstring = set[str](), dict[str, set[str]](), list[str](), ""
    for name in FILES:
        text = resources.files(PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
        tree, lines, end = ast.parse(text), text.splitlines(), 0
        for node in tree.body:
            if isinstance(node, ast.Import):
                modules |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.setdefault(str(node.module), set()).update(each.name for each in node.names)
            else:
                continue
            end = node.end_lineno or 0
        bodies.append("\n".join(lines[end:]).strip("\n"))
        docstring = "\n".join(lines[: tree.body[0].end_lineno])
    return "\n\n\n".join([f"{docstring}\n\n{_import_lines(modules, names)}", *bodies]) + "\n"


def _import_lines(modules: set[str], names: dict[str, set[str]]) -> str:
    """One import line for each module outside `plain`, torch's last."""
    lines = [f"import {module}" for module in sorted(modules)]
    outside = [module for module in sorted(names) if not module.startswith(PACKAGE)]
    lines += [f"from {module} import {', '.join(sorted(names[module]))}" for module in outside]
    of_torch = [line for line in lines if line.split()[1].startswith("torch")]
    return "\n".join([*(line for line in lines if line not in of_torch), "", *of_torch])


# A plain module as a program of torch.export, or for ONNX, with free numbers of vertices and edges.

PROGRAM, ONNX = "model.pt2", "model.onnx"
_VERTICES, _EDGES = 5, 11
"""Sizes of the small graph that the module is traced with; torch would take 0 and 1 for constants."""


def write_program(model: Any, session: Session, folder: Path) -> Path:
    """Write the module as a torch.export program."""
    given, free = _example(session)
    with _explained("a program of torch.export"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (), given, dynamic_shapes=free)
        torch.export.save(program, folder / PROGRAM)
    return folder / PROGRAM


def write_onnx(model: Any, session: Session, folder: Path) -> Path:
    """Write the module for ONNX; its inputs are named after the module's arguments."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise PenstockError("ONNX is not installed: `pip install penstock[onnx]`.", code="not-installed") from None
    given, free = _example(session)
    names = None if isinstance(given["x"], dict) else ["out"]
    with _explained("ONNX"), warnings.catch_warnings(), _without_remarks():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (), folder / ONNX, kwargs=given, dynamic_shapes=free, output_names=names, dynamo=True, verbose=False,
            external_data=False,
        )  # fmt: skip
    return folder / ONNX


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Silence torch's exporter, which logs what else it could export if other packages were installed."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Reports any failure inside it as a failure of the exporter, in one sentence."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise PenstockError(
            f"This model cannot be made {what} ({type(error).__name__}: {said}): export it to torch.",
            code="unsupported-combination",
        ) from error


def _example(session: Session) -> tuple[dict[str, Any], dict[str, Any]]:
    """Example arguments of the module for a small graph, and which of their sizes are free."""
    graph, inputs = session.graph, session.inputs
    if not session.job.has_layers:
        raise PenstockError(
            "A model without layers has no program, only rows: export it to torch.", code="unsupported-combination"
        )
    weighted, width = session.list_weight is not None, getattr(session.model, "options").edge_width  # noqa: B009
    counts = {
        name: nodes.count if name in inputs.tables else _VERTICES + place
        for place, (name, nodes) in enumerate(graph.nodes.items())
    }
    sizes = {name: torch.export.Dim(f"vertices_{place}") for place, name in enumerate(graph.nodes)}
    edges = {kind: torch.export.Dim(f"edges_{place}") for place, kind in enumerate(graph.edges)}
    x = {name: torch.rand(counts[name], inputs.widths[name]) for name in inputs.fields}
    given: dict[str, Any] = {"x": x, "edge_index": _indices(graph, counts)}
    free: dict[str, Any] = {
        "x": {name: {0: sizes[name]} for name in inputs.fields},
        "edge_index": {kind: {1: size} for kind, size in edges.items()},
    }
    for argument, wanted, shape in (("edge_weight", weighted, ()), ("edge_attr", width, (width,))):
        if wanted:
            given[argument] = {kind: torch.rand(_EDGES + place, *shape) for place, kind in enumerate(graph.edges)}
            free[argument] = {kind: {0: size} for kind, size in edges.items()}
    of_model = unwrapping(graph)
    return {name: of_model(each) for name, each in given.items()}, {name: of_model(each) for name, each in free.items()}


def _indices(graph: Graph, counts: dict[str, int]) -> dict[Any, torch.Tensor]:
    return {
        kind: torch.stack([torch.randint(counts[end], (_EDGES + place,)) for end in (kind[0], kind[2])])
        for place, kind in enumerate(graph.edges)
    }


# Tensors as a .safetensors file: the length of a JSON header, the header, and the tensors' bytes.

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
}
_ALIGNED = 8
"""The tensors' bytes begin at a multiple of this; the header is padded with spaces."""


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, str]) -> None:
    """Write named tensors; `about` is the file's text metadata."""
    header: dict[str, object] = {"__metadata__": dict(about)}
    place = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise PenstockError(
                f"Weight {name} is of type {tensor.dtype}, which is not exported: convert the model.", code="wrong-type"
            )
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)

    def write(file: BinaryIO) -> None:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())

    replace_whole(path, write)


# A session's model written as a folder: a plain module, its weights and its description.

TARGETS: dict[str, Callable[[Any, Session, Path], Path] | None] = {
    "torch": None,
    "program": write_program,
    "onnx": write_onnx,
}
"""What an exported folder can hold beside the plain module."""
MODEL, WEIGHTS, CONFIG = "model.py", "model.safetensors", "config.json"
FORMAT, VERSION = "penstock-export", 1


def export_session(session: Session, folder: Path, to: str = "torch", force: bool = False) -> dict[str, Any]:
    """Write the session's model to a folder, which gets its name when complete; returns what it holds."""
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
    """The contents of config.json: how the module is built, and what it was trained on."""
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
    """The model's names of the types that have embeddings; a model of one type has its own name for it, or none."""
    tables, names = list(session.inputs.tables), list(getattr(model, "node_types", [""]))
    return tables if len(names) > 1 else names * len(tables)


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
