"""Explaining a run's prediction for one vertex: its exact neighbourhood, masks over it, and the user's own ids."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import torch

from penstock.errors import PenstockError, nearest
from penstock.explain.explainer import (
    Explanation,
    Neighbourhood,
    explain_output,
    ordered_columns,
    ordered_edge_columns,
    ordered_edges,
)
from penstock.explain.mask_optimiser import MaskOptions, Output
from penstock.formatting import counted
from penstock.graph.arrays import Array
from penstock.graph.data import NodeSet
from penstock.graph.folder import Graph
from penstock.graph.ids import StringIds
from penstock.graph.schema import EdgeType
from penstock.train.layerwise.host import Reach, frontiers
from penstock.train.layerwise.inference import evaluating
from penstock.train.session import Session
from penstock.train.tasks import NodeTask
from penstock.train.use import open_session, original_ids


class ExplainOptions(NamedTuple):
    """How a prediction is explained. `hops`: which edges are masked, None: all; `split`: the vertex's own."""

    hops: int | None = None
    steps: int = 100
    lr: float = 0.1
    explain_loss: float = 0.0
    seed: int = 0
    max_edges: int = 50_000
    split: str | None = None


def explain_run(
    path: Path,
    vertex: int | str,
    node_type: str | None = None,
    graph: Graph | None = None,
    options: ExplainOptions | None = None,
    **opened: Any,
) -> Explanation:
    """Explain the prediction of a run's best model for a vertex, given by the user's id; `opened` as for
    `use.predict_run`.
    """
    return explain_session(open_session(path, graph, **opened), vertex, node_type, options)


def explain_session(
    session: Session, vertex: int | str, node_type: str | None = None, options: ExplainOptions | None = None
) -> Explanation:
    """Explain the prediction of the session's model for a vertex, on the CPU."""
    options, task = options or ExplainOptions(), _node_task(session, node_type)
    row = vertex_number(session.graph.nodes[task.node_type], vertex, task.node_type)
    if options.split is not None and row not in task.items_of(options.split):
        raise PenstockError(
            f"Vertex {str(vertex)!r} is not in split {options.split!r}: choose one that is, or leave out --split.",
            code="mismatched-inputs",
        )
    reach = _model_reach(session)
    hops = _checked_hops(options, len(reach.hops))
    _check_size(reach, task.node_type, row, vertex, options.max_edges)
    seeds = {name: np.full(int(name == task.node_type), row) for name in session.graph.nodes}
    batch = reach.batches(reach.hops)(seeds)
    batch.blocks = session.inputs.exact_edges.attached(batch.blocks)
    around = Neighbourhood(batch, list(session.graph.edges))
    ids = {name: np.asarray(rows) for name, rows in around.batch.vertices.items()}
    x = {name: session.inputs.pull(name, rows).cpu() for name, rows in ids.items()}
    # The model itself may be on a device, and stays there.
    model = copy.deepcopy(session.model).cpu()
    output = _output_of(task)
    masks = MaskOptions(options.steps, options.lr, options.explain_loss, output)
    featured = [name for name in x if name in session.inputs.fields]
    with evaluating(model):
        found = explain_output(model, around, x, featured, masks, options.seed, hops)
    nodes = session.graph.nodes
    users = {name: original_ids(nodes[name], rows).to_pylist() for name, rows in ids.items()}
    whole, masked, rest = (torch.from_numpy(each) for each in (found.whole, found.masked, found.rest))
    return Explanation(
        users[task.node_type][0],
        task.node_type,
        _prediction(task, whole),
        _score(output, whole, whole),
        _score(output, whole, masked),
        _score(output, whole, rest),
        ordered_edges(around, found, users),
        ordered_columns(found, {name: x[name][0] for name in featured if name == task.node_type}),
        ordered_edge_columns(found, _edge_columns(session)),
        hops,
        around.num_vertices,
        around.num_edges,
        found.losses,
        _notes(session, list(x)),
        task.known_label(row),
        0 if output == "numbers" else len(found.whole),
    )


def _edge_columns(session: Session) -> dict[EdgeType, list[tuple[str, int]]]:
    """By relation, for each column that its edges carry: the field's name, and the column's index within the field."""
    found = {}
    for kind, fields in session.inputs.exact_edges.fields.items():
        # A relation has the job's fields in their order, without those that it lacks.
        has = [name for name in session.job.edge_features if name in session.graph.edges[kind].fields]
        widths = [int(np.prod(source.row_shape())) for source in fields.features]
        found[kind] = [(name, place) for name, width in zip(has, widths, strict=True) for place in range(width)]
    return found


def vertex_number(nodes: NodeSet, vertex: int | str, node_type: str) -> int:
    """The number of the vertex with the user's id `vertex`."""
    found = np.zeros(0, np.int64)
    if isinstance(nodes.ids, StringIds):
        found = np.flatnonzero(np.asarray(pa.compute.equal(nodes.ids.to_arrow(), str(vertex))))
    elif str(vertex).lstrip("-").isdecimal():
        wanted = int(vertex)
        if nodes.ids is not None:
            found = np.flatnonzero(np.asarray(nodes.ids) == wanted)
        elif 0 <= wanted < nodes.count:
            found = np.array([wanted])
    if not len(found):
        known = f"ids from {_shown(nodes, 0)} to {_shown(nodes, nodes.count - 1)}" if nodes.count else "no vertices"
        raise PenstockError(
            f"There is no vertex {str(vertex)!r} of type {node_type!r}, which has {known}: name one of these.",
            code="id-out-of-range",
        )
    return int(found[0])


def _shown(nodes: NodeSet, row: int) -> Any:
    return original_ids(nodes, np.array([row])).to_pylist()[0]


def _node_task(session: Session, node_type: str | None) -> NodeTask:
    task = cast(NodeTask, session.task)
    if not task.facts.explainable:
        raise PenstockError(
            "The run predicts edges, and only predictions for vertices can be explained: name a run with labels on"
            " vertices.",
            code="unsupported-combination",
        )
    if node_type is not None and node_type not in session.graph.nodes:
        raise PenstockError(
            f"There is no node type {node_type!r}{nearest(node_type, session.graph.nodes)}", code="unknown-name"
        )
    if node_type not in (None, task.node_type):
        raise PenstockError(
            f"The run predicts vertices of type {task.node_type!r}, not {node_type!r}: leave out --type.",
            code="mismatched-inputs",
        )
    return task


def _model_reach(session: Session) -> Reach:
    """What the model reads, with as many hops as it has layers."""
    reach = session.reach()
    layers = getattr(session.model, "num_layers", None) or len(reach.hops)
    return replace(reach, hops=[reach.of_layer(number, layers) for number in reversed(range(layers))])


def _checked_hops(options: ExplainOptions, layers: int) -> int:
    hops = layers if options.hops is None else options.hops
    if not 1 <= hops <= layers:
        raise PenstockError(
            f"The model reads {counted(layers, 'hops')}, so edges within {hops} cannot be explained: give 1 to"
            f" {layers}.",
            code="value-out-of-range",
        )
    return hops


def _check_size(reach: Reach, node_type: str, row: int, vertex: int | str, most: int) -> None:
    """Refuse a neighbourhood with more edges than allowed, before it is read."""
    levels = frontiers(reach.graph, {node_type: np.array([row])}, reach.hops)[::-1]
    lists: dict[Any, Array] = {kind: levels[hop][kind[2]] for hop, kinds in enumerate(reach.hops) for kind in kinds}
    edges = 0
    for kind, rows in lists.items():
        indptr = reach.graph.edges[kind].indptr
        edges += int((np.asarray(indptr[rows + 1]) - np.asarray(indptr[rows])).sum())
    if edges > most:
        raise PenstockError(
            f"The prediction for vertex {str(vertex)!r} depends on {edges:,} edges within"
            f" {counted(len(reach.hops), 'hops')}, more than --max-edges {most:,}: allow more, at the cost of memory"
            " and time, or choose a vertex with fewer neighbours.",
            code="too-large",
        )


def _output_of(task: NodeTask) -> Output:
    if task.facts.learns == "numbers":
        return "numbers"
    return "labels" if task.multi_label else "classes"


def _prediction(task: NodeTask, logits: torch.Tensor) -> Any:
    """The prediction as the user reads it: a class by its word or number, the numbers of the labels, or a value."""
    output = _output_of(task)
    if output == "numbers":
        return float(logits[0])
    if output == "labels":
        return torch.nonzero(logits > 0).flatten().tolist()
    code = int(logits.argmax())
    return task.learned.words[code] if task.learned.words else code


def _score(output: Output, whole: torch.Tensor, logits: torch.Tensor) -> float:
    """How well some logits reproduce the prediction on the whole input (see `Explanation.score`)."""
    if output == "numbers":
        return float(logits[0])
    if output == "labels":
        shares = logits.sigmoid()
        return float(torch.where(whole > 0, shares, 1 - shares).mean())
    return float(logits.softmax(-1)[whole.argmax()])


def _notes(session: Session, present: list[str]) -> list[str]:
    learned = [name for name in present if name in session.inputs.tables]
    if not learned:
        return []
    return [f"Vertices of type {', '.join(learned)} have learned embeddings instead of features: no columns of theirs."]
