"""`ps.explain`: what a prediction rests on."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from penstock.api.arguments import opened
from penstock.api.run_handle import Run
from penstock.errors import PenstockError
from penstock.explain.explainer import Explanation
from penstock.graph.folder import Graph
from penstock.nn import ModelOptions
from penstock.report import write_explanation_page
from penstock.train.build import make_session
from penstock.train.dataset.prepared_graph import IN_MEMORY
from penstock.train.explain_run import ExplainOptions, explain_session
from penstock.train.internals import Internals
from penstock.train.job import make_job
from penstock.train.run_context import generators_kept
from penstock.train.session import Session


@dataclass(frozen=True)
class VertexExplanation(Explanation):
    """What a prediction rests on: `edges` and `columns`, largest masks first, and a page that shows them."""

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write an HTML page with the neighbourhood drawn, and say where it is."""
        write_explanation_page(self, Path(path))
        return Path(path)


def explain(
    run: Run | str | os.PathLike[str] | torch.nn.Module,
    graph: Any = None,
    vertex: int | str | None = None,
    *,
    node_type: str | None = None,
    hops: int | None = None,
    steps: int = ExplainOptions().steps,
    lr: float = ExplainOptions().lr,
    seed: int = 0,
    max_edges: int = ExplainOptions().max_edges,
    module: torch.nn.Module | None = None,
    trust_module: bool = False,
    **fields: Any,
) -> VertexExplanation:
    """Which edges and columns a prediction for a vertex rests on.

    `run` is a finished run or its folder, whose best weights are used, or a trained model; `fields` are then those of
    the job that it was trained with, such as its `fanouts` or `layers`. `graph` is anything `ps.load` recognises; None
    is the run's own. `vertex` is the id in your tables. `hops` restricts the edges that may be named.
    """
    if vertex is None:
        raise PenstockError(
            "There is no vertex to explain: give `vertex`, an id of your tables.", code="option-missing"
        )
    given = None if graph is None else opened(graph)
    options = ExplainOptions(hops, steps, lr, 0.0, seed, max_edges)
    if isinstance(run, torch.nn.Module):
        session = _session_of_model(run, given, fields)
    elif fields:
        raise PenstockError(
            f"A run keeps its job: leave out {', '.join(fields)}, or give a model instead of a run.",
            code="conflicting-options",
        )
    else:
        held = run if isinstance(run, Run) else Run.open(run)
        session = held.session(given, module, trust_module)
    return VertexExplanation(**vars(explain_session(session, vertex, node_type, options)))


def _session_of_model(model: torch.nn.Module, graph: Graph | None, fields: dict[str, Any]) -> Session:
    if graph is None:
        raise PenstockError("A model is explained on a graph: give the graph too.", code="option-missing")
    options = getattr(model, "options", None)
    known = dict(options) if isinstance(options, ModelOptions) else {}
    if "layers" in known and not {"fanouts", "layers"} & set(fields):
        known["fanouts"] = [-1] * known["layers"]
    # Nothing is trained: the model is used as it is, on the CPU.
    decided = {name: known.pop(name) for name in list(known) if name in Internals.model_fields}
    given = {"graph": f"{graph.name}{IN_MEMORY}", "device": "cpu", **known, **fields}
    job = make_job(given, internals=decided)
    with generators_kept():
        return make_session(job, graph, model)
