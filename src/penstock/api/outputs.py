"""`ps.infer`: the outputs of a model for the vertices of a graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.api.batches import loader
from penstock.api.opened_graph import opened
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.train.data import prepared
from penstock.train.inputs import Inputs
from penstock.train.job import Job, make_job
from penstock.train.layerwise.engine import evaluating
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.inference import Inference
from penstock.train.layerwise.reach import Reach, followed_relations
from penstock.train.processor import chosen_device


def infer(
    graph: Any,
    model: torch.nn.Module,
    *,
    node_type: str | None = None,
    fanouts: Sequence[int | dict[str, int]] | None = None,
    batch_size: int = 1024,
    features: str = "x",
    device: str = "auto",
    memory_mb: int = 512,
) -> torch.Tensor:
    """[vertices, width] outputs of a model in evaluation mode for all vertices of a graph, or of one node type.

    Without `fanouts` outputs are exact: a model of `ps.nn` is computed one layer after the other in `memory_mb` of
    working memory, and any other module is called once with the whole graph. With `fanouts` the model is called on
    batches of sampled neighbourhoods, which is for modules whose activations for the whole graph do not fit.
    """
    given = opened(graph)
    name = _chosen(given, node_type)
    if fanouts is not None:
        return _sampled(given, model, name, fanouts, batch_size, features, device)
    job = make_job({"features": features, "inference_mb": memory_mb}, "ps.infer")
    ready = prepared(given, job)
    inputs = Inputs(ready, job, chosen_device(device), learnable=False)
    if missing := [each for each in ready.nodes if each not in inputs.fields]:
        raise PenstockError(
            f"Vertices of type {missing[0]!r} have no features {features!r} to infer from: add the rows that were"
            " learned for them to the graph.",
            code="field-missing",
        )
    rows = np.arange(ready.nodes[name].count)
    if getattr(model, "layerwise", False):
        return _by_layers(ready, model.to(inputs.device), inputs, job, {name: rows})[name].cpu()
    return _at_once(ready, model.to(inputs.device), inputs)[name].cpu()


def _chosen(graph: Graph, node_type: str | None) -> str:
    name = node_type or (graph.node_types[0] if len(graph.nodes) == 1 else "")
    if name not in graph.nodes:
        raise PenstockError(f"Name the vertices with node_type: {', '.join(graph.nodes)}.", code="option-missing")
    return name


def _by_layers(graph: Graph, model: Any, inputs: Inputs, job: Job, wanted: dict[str, Array]) -> dict[str, torch.Tensor]:
    followed = followed_relations(graph, [-1] * model.num_layers, model.num_layers)
    plan = HostPlan(model, inputs, Reach(graph, followed), job.inference_mb, None)
    return Inference(model, inputs, graph, plan).outputs(wanted)


def _at_once(graph: Graph, module: Any, inputs: Inputs) -> dict[str, torch.Tensor]:
    """One call with the whole graph, as PyG's modules take it."""
    x = {name: inputs.pull(name, np.arange(nodes.count)) for name, nodes in graph.nodes.items()}
    edges = {
        kind: torch.from_numpy(lists.edge_index().astype(np.int64)).to(inputs.device)
        for kind, lists in graph.edges.items()
    }
    with torch.no_grad(), evaluating(module):
        if not graph.is_homogeneous:
            found: dict[str, torch.Tensor] = module(x, edges)
            return found
        ((name, rows),) = x.items()
        return {name: module(rows, next(iter(edges.values())))}


def _sampled(
    graph: Graph, model: Any, name: str, fanouts: Sequence[Any], batch_size: int, features: str, device: str
) -> torch.Tensor:
    options: dict[str, Any] = {"fanouts": fanouts, "batch_size": batch_size, "features": features}
    batches = loader(graph, None, node_type=name, device=device, **options)
    model, typed, found = model.to(batches.device), not graph.is_homogeneous, []
    with torch.no_grad(), evaluating(model):
        for batch in batches:
            x: Any = batch.x_dict if typed else batch.x
            if getattr(model, "layerwise", False):
                out = model(batch.blocks, x)
            else:
                out = model(x, batch.edge_index_dict if typed else batch.edge_index)
            found.append((out[name] if typed else out)[: len(batch)].cpu())
    return torch.cat(found)
