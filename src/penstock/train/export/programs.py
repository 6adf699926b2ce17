"""A plain module as a program: of torch.export, or for ONNX. Numbers of vertices and edges stay free."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.train.session import Session

PROGRAM, ONNX = "model.pt2", "model.onnx"
_VERTICES, _EDGES = 5, 11
"""Of the small graph that the module is traced with: neither 0 nor 1, which torch takes for constants."""


def write_program(model: Any, session: Session, folder: Path) -> Path:
    """Write what torch.export makes of the module."""
    given, free = _example(session)
    with _explained("a program of torch.export"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (), given, dynamic_shapes=free)
        torch.export.save(program, folder / PROGRAM)
    return folder / PROGRAM


def write_onnx(model: Any, session: Session, folder: Path) -> Path:
    """Write the module for ONNX, whose inputs have the names of its arguments."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise PenstockError("ONNX is not installed: `pip install penstock[onnx]`.", code="not-installed") from None
    given, free = _example(session)
    names = ["out"] if session.graph.is_homogeneous else None
    with _explained("ONNX"), warnings.catch_warnings(), _without_remarks():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (), folder / ONNX, kwargs=given, dynamic_shapes=free, output_names=names, dynamo=True, verbose=False,
            external_data=False,
        )  # fmt: skip
    return folder / ONNX


@contextmanager
def _without_remarks() -> Iterator[None]:
    """torch's exporter logs what it could also export if other packages were installed."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class _explained:  # noqa: N801
    """What fails in it is the exporter: a sentence says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            said = " ".join(str(error).split())[:200]
            raise PenstockError(
                f"This model cannot be made {self._what} ({type(error).__name__}: {said}): export it to torch.",
                code="unsupported-combination",
            ) from error


def _example(session: Session) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the module for a small graph, and which of their sizes are free."""
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
    if graph.is_homogeneous:
        given = {name: next(iter(each.values()), None) for name, each in given.items()}
        free = {name: next(iter(each.values()), None) for name, each in free.items()}
    return given, free


def _indices(graph: Graph, counts: dict[str, int]) -> dict[Any, torch.Tensor]:
    return {
        kind: torch.stack([torch.randint(counts[end], (_EDGES + place,)) for end in (kind[0], kind[2])])
        for place, kind in enumerate(graph.edges)
    }
