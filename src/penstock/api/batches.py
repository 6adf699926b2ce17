"""`ps.loader`, batches for a loop of the user's own, and `ps.infer`, a model's outputs for the vertices of a graph."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from penstock.api.arguments import checked_model, opened
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.nn.user_module import code_at_fault
from penstock.sampling.block import unwrapping
from penstock.train.dataset.inputs import Inputs, with_edge_fields
from penstock.train.dataset.prepared_graph import prepared
from penstock.train.job import Job, make_job
from penstock.train.layerwise.host import HostPlan, Reach, followed_relations
from penstock.train.layerwise.inference import Inference, evaluating
from penstock.train.loading.batch_loader import BatchLoader
from penstock.train.loading.given_graph import EdgeExamples, chosen_examples, given_graph
from penstock.train.loading.options import OF_NEGATIVES, make_loader_job
from penstock.train.loading.seed_source import AUTO, Seeds
from penstock.train.run_context import chosen_device


def loader(
    graph: Any,
    split: Seeds = AUTO,
    *,
    fanouts: Sequence[int | Mapping[Any, int]] | Mapping[Any, Sequence[int]] | None = None,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    edge_label_index: Any = None,
    edge_label: Any = None,
    transform: Callable[[Any], Any] | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
    splits: str = "auto",
    reserve: float = 0.5,
    **fields: Any,
) -> BatchLoader:
    """Batches for a loop of your own, drawn and gathered ahead as `ps.train` does.

    `graph` is anything `ps.load` recognises. `split` is train, val or test; or numbers or a mask of vertices, which
    need no labels, `("paper", mask)` where there are several types; or None for all vertices. Without it, an epoch goes
    through the graph's training split, or through everything where it has none. Iterating gives an epoch of batches,
    and iterating again gives the next one. A batch has PyG's names: `x`, `edge_index`, `y`, `n_id`, `e_id`,
    `batch_size`, masks and all other fields; and `blocks` for models of `ps.nn`. With the same seed and `held_out` the
    batches are those that `ps.train` learns from.

    `edge_label_index` and `edge_label` are pairs to judge and their labels, as a graph of PyG's `RandomLinkSplit`
    brings them. `transform` is called with each batch. `shuffle` is True for the training split and False for others,
    where it is not given. In a loop of several processes `rank` and `world` give each its share: `batch_size` is that
    of one process. On a GPU the share `reserve` of its memory is left for the model. `splits` says where train, val and
    test come from (job field `split`). `fields` are those of a job that concern data, sampling, negatives, the device
    and the pipeline, and `as_pyg`, `drop_last`, `disjoint`, `subgraph_type`, `exclude_edges` (docs/python.md).
    """
    given = given_graph(graph)
    chosen = chosen_examples(given, edge_label_index, edge_label, fields.get("target"))
    if chosen is not None:
        if not isinstance(split, str):
            raise PenstockError(
                "ps.loader was given vertices and edge_label_index: give one of both.", code="conflicting-options"
            )
        kind = chosen.edge_type if isinstance(chosen, EdgeExamples) else chosen
        fields = {"task": "link-prediction", **fields, "target": edge_key(kind)}
        split, given = chosen if isinstance(chosen, EdgeExamples) else split, given._replace(examples={})
    sizes = {"fanouts": fanouts, "batch_size": batch_size}
    said = {name: value for name, value in sizes.items() if value is not None}
    job = make_loader_job({**said, "device": str(device), "seed": seed, **fields}, splits)
    asked = bool(OF_NEGATIVES & set(fields))
    return BatchLoader(given, job, split, shuffle, rank, world, reserve, transform, asked)


def infer(
    graph: Any,
    model: torch.nn.Module,
    *,
    node_type: str | None = None,
    fanouts: Sequence[int | dict[str, int]] | None = None,
    batch_size: int = 1024,
    features: str = "x",
    device: str | torch.device = "auto",
    memory_mb: int = 512,
    edge_features: str | Sequence[str] = (),
    edge_weight: str | None = None,
) -> torch.Tensor:
    """[vertices, width] outputs of a model in evaluation mode for all vertices of a graph, or of one node type.

    Without `fanouts` outputs are exact: a model of `ps.nn` is computed one layer after the other in `memory_mb` of
    working memory, and any other module is called once with the whole graph. With `fanouts` the model is called on
    batches of sampled neighbourhoods, which is for modules whose activations for the whole graph do not fit.
    `edge_features` and `edge_weight` name fields of the edges that the model reads, as for `ps.train`.
    """
    given, module = opened(graph), checked_model(model)
    if module is None:
        raise PenstockError(f"There is no model to infer with: give a module, not {model!r}.", code="wrong-type")
    name = _chosen(given, node_type)
    carried = {"edge_features": edge_features if isinstance(edge_features, str) else list(edge_features)}
    options: dict[str, Any] = {**carried, "edge_weight": edge_weight, "features": features}
    if fanouts is not None:
        return _sampled(given, module, name, {**options, "fanouts": fanouts, "batch_size": batch_size}, str(device))
    job = make_job(options, "ps.infer", {"inference_mb": memory_mb})
    ready, layerwise = prepared(given, job), bool(getattr(model, "layerwise", False))
    job = with_edge_fields(job, {kind: edges.fields for kind, edges in ready.edges.items()})
    inputs = Inputs(ready, job, chosen_device(str(device)), learnable=False)
    inputs.carry_edges(job, ready, None, own_module=not layerwise)
    if missing := [each for each in ready.nodes if each not in inputs.fields]:
        raise PenstockError(
            f"Vertices of type {missing[0]!r} have no features {features!r} to infer from: add the rows that were"
            " learned for them to the graph.",
            code="field-missing",
        )
    rows = np.arange(ready.nodes[name].count)
    if layerwise:
        return _by_layers(ready, model.to(inputs.device), inputs, job, {name: rows})[name].cpu()
    return _at_once(ready, model.to(inputs.device), inputs)[name].cpu()


def _chosen(graph: Graph, node_type: str | None) -> str:
    name = node_type or (graph.node_types[0] if len(graph.nodes) == 1 else "")
    if name not in graph.nodes:
        raise PenstockError(f"Name the vertices with node_type: {', '.join(graph.nodes)}.", code="option-missing")
    return name


def _by_layers(graph: Graph, model: Any, inputs: Inputs, job: Job, wanted: dict[str, Array]) -> dict[str, torch.Tensor]:
    followed = followed_relations(graph, [-1] * model.num_layers, model.num_layers)
    reach = Reach(graph, followed, job.list_weight, edges=bool(inputs.exact_edges))
    plan = HostPlan(model, inputs, reach, job.inference_mb, None)
    return Inference(model, inputs, graph, plan).outputs(wanted)


def _at_once(graph: Graph, module: Any, inputs: Inputs) -> dict[str, torch.Tensor]:
    """The outputs of one call with the whole graph, in the form that PyG's modules take."""
    x = {name: inputs.pull(name, np.arange(nodes.count)) for name, nodes in graph.nodes.items()}
    edges = {
        kind: torch.from_numpy(lists.edge_index().astype(np.int64)).to(inputs.device)
        for kind, lists in graph.edges.items()
    }
    carried = _carried(graph, module, inputs)
    with torch.no_grad(), evaluating(module), code_at_fault(f"Module {type(module).__name__}"):
        found = module(unwrapping(graph)(x), unwrapping(graph)(edges), **carried)
        return {next(iter(x)): found} if graph.is_homogeneous else found


def _carried(graph: Graph, module: Any, inputs: Inputs) -> dict[str, Any]:
    """The edge features and weights of the whole graph in CSR order, under the names of the module's arguments."""
    found: dict[str, dict[EdgeType, torch.Tensor]] = {}
    for kind, fields in inputs.exact_edges.fields.items():
        every = np.arange(graph.edges[kind].count)
        read = [torch.as_tensor(source.read(every)).to(inputs.device, torch.float32) for source in fields.sources]
        if fields.features:
            columns = [rows.reshape(len(every), -1) for rows in read[: len(fields.features)]]
            found.setdefault("edge_attr", {})[kind] = torch.cat(columns, dim=1)
        if fields.weight is not None:
            found.setdefault("edge_weight", {})[kind] = read[-1].reshape(-1)
    return _named(found, module, graph)


def _named(found: dict[str, dict[EdgeType, torch.Tensor]], module: Any, graph: Graph) -> dict[str, Any]:
    """Edge features and weights by the arguments of the module's forward: by relation where there are several types."""
    given = {name: unwrapping(graph)(rows) for name, rows in found.items()}
    taken = inspect.signature(module.forward).parameters
    by_relation = {name for name, rows in given.items() if isinstance(rows, dict) and f"{name}_dict" in taken}
    return {f"{name}_dict" if name in by_relation else name: rows for name, rows in given.items()}


def _sampled(graph: Graph, model: Any, name: str, options: dict[str, Any], device: str) -> torch.Tensor:
    if getattr(model, "layerwise", False) and options["edge_weight"] is not None:
        raise PenstockError(
            "Models of ps.nn weigh messages in exact inference: leave out fanouts.", code="unsupported-combination"
        )
    batches = loader(graph, None, target=name, device=device, **options)
    model, of_model, found = model.to(batches.device), unwrapping(graph), []
    wanted = {"edge_attr": options["edge_features"], "edge_weight": options["edge_weight"]}
    with torch.no_grad(), evaluating(model), code_at_fault(f"Module {type(model).__name__}"):
        for batch in batches:
            x = of_model(batch.x_dict)
            if getattr(model, "layerwise", False):
                out = model(batch.blocks, x)
            else:
                rows = {each: getattr(batch, f"{each}_dict") for each, asked in wanted.items() if asked}
                out = model(x, of_model(batch.edge_index_dict), **_named(rows, model, graph))
            found.append((out[name] if isinstance(out, dict) else out)[: len(batch)].cpu())
    return torch.cat(found)
