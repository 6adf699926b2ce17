"""The graph and the task of a job: the graph is opened, the task and its edge type are chosen."""

from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.convert import load
from penstock.graph.csr import transpose_lists
from penstock.graph.data import EdgeSet
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph, require_finite
from penstock.graph.schema import EdgeType, Learns, TaskName, edge_key, is_about, task_for
from penstock.train.dataset.labels import SAMPLED, SplitValues, are_quantities, changed_labels
from penstock.train.job import Job
from penstock.train.job_options import DataOptions

IN_MEMORY = " (in memory)"
"""Ends the name of a job's graph that was given as an object and cannot be opened again."""


def open_data(options: Job) -> Graph:
    """The graph of a job, with reverse relations where asked for."""
    if options.graph.endswith(IN_MEMORY):
        name = options.graph.removesuffix(IN_MEMORY)
        raise PenstockError(
            f"The run's graph {name!r} was only in memory: pass it again, or pass the folder that holds it.",
            code="graph-not-found",
        )
    # A folder holds one split already, chosen when it was written.
    given = options.split_number and not (Path(options.graph) / "graph.json").exists()
    chosen: dict[str, Any] = {"split": options.split_number} if given else {}
    return prepared(load(options.graph, **chosen), options)


def prepared(graph: Graph, options: Job) -> Graph:
    """An opened graph, prepared as the job's options say."""
    if graph.is_part:
        raise PenstockError(
            f"{graph.path or graph.name} is one part of a cut graph: train on the whole graph.",
            code="whole-graph-needed",
        )
    if options.unchecked:
        graph.trust()
    check_graph(graph)
    for name, nodes in graph.nodes.items():
        if options.features in nodes.fields:
            require_finite(nodes, name, options.features, "features")
    graph = changed_labels(graph, options)
    _check_split_number(graph, options)
    return with_reverses(graph, options.time) if options.reverse_edges else graph


def _check_split_number(graph: Graph, options: Job) -> None:
    """Refuse a `split_number` that the graph does not have, where its own splits are used."""
    if options.split_number in (0, graph.origin.get("split", 0)) or options.split not in ("auto", "graph"):
        return
    own = any(options.label in nodes.fields and "train" in nodes.splits for nodes in graph.nodes.values())
    if own and is_about(choose_task(graph, options), "vertices"):
        raise PenstockError(
            f"split_number is {options.split_number}, and {graph.name} brings one split: leave out `split_number`, or"
            " set `split` to ratio or per-class to have another one drawn.",
            code="value-out-of-range",
        )


def with_reverses(graph: Graph, time: str | None = None) -> Graph:
    """The graph with (dst, rev-relation, src) added for every relation that has no reverse yet. Added lists are in
    memory.

    Reverses have no fields but `time`: without it they would show edges of the future.
    """
    edges = dict(graph.edges)
    for (source, relation, destination), lists in graph.edges.items():
        kind = (destination, f"rev-{relation}", source)
        if kind not in edges and not relation.startswith("rev-"):
            count = graph.nodes[source].count
            indptr, indices = transpose_lists(lists.indptr, lists.indices, count)
            fields = {}
            if time in lists.fields:
                fields[time] = lists.fields[time][np.argsort(lists.indices, kind="stable")]
            edges[kind] = EdgeSet(indptr, indices, fields)
    return Graph(graph.nodes, edges, graph.name, graph.path, graph.origin)


def with_empty_relations(graph: Graph) -> Graph:
    """A graph without relations, with an empty relation added for every node type, since samplers iterate over
    relations.
    """
    edges = {}
    for name, nodes in graph.nodes.items():
        indptr = np.zeros(nodes.count + 1, np.int64)
        edges[name, "to", name] = EdgeSet(indptr, np.empty(0, index_dtype(nodes.count)))
    return Graph(graph.nodes, edges, graph.name, graph.path, graph.origin)


def choose_task(graph: Graph, options: DataOptions) -> TaskName:
    """The task that is asked for, or the one that the graph's labels suggest."""
    if options.task != "auto":
        return options.task
    labelled = [nodes for nodes in graph.nodes.values() if options.label in nodes.fields]
    if labelled:
        return task_for("vertices", _learned(labelled[0].fields[options.label]))
    kinds = {edge_key(kind): edges for kind, edges in graph.edges.items() if options.label in edges.fields}
    if kinds:
        return task_of_edges(kinds.get(options.edge_type or "", next(iter(kinds.values()))).fields[options.label])
    _refuse_dropped(graph, options.label)
    if options.label != DataOptions.model_fields["label"].default:
        raise PenstockError(
            f"Neither vertices nor edges have a field {options.label!r} to learn: set `label` or `task`.",
            code="field-missing",
        )
    if options.edge_type is None and len(graph.edges) > 1:
        holding = sum(bool(edges.held_out) for edges in graph.edges.values())
        # Several relations among the vertices of one type, as files of triples have, are learned together.
        if holding > 1 or (holding == 0 and len(graph.nodes) == 1):
            return task_for("triples", "links")
    return task_for("edges", "links")


def _refuse_dropped(graph: Graph, label: str) -> None:
    """Refuse to learn links instead of labels that were dropped when another library's object was converted."""
    for name in graph.origin.get("dropped", []):
        if name == label or name.endswith(f"].{label}"):
            raise PenstockError(
                f"The graph was loaded without {name!r}, which is not an array with one row for each vertex or edge:"
                " give labels as such an array, or set `task`, to link-prediction for example.",
                code="shape-mismatch",
            )


def task_of_edges(labels: Array) -> TaskName:
    """The task for labels of edges where the job does not name one: classification or regression."""
    return task_for("edges", _learned(labels))


def choose_edge_type(graph: Graph, options: DataOptions, field: str | None) -> EdgeType:
    """The edge type of a task: the one named, the only one, or the only one that has the field or held-out edges."""
    kinds = {edge_key(kind): kind for kind in graph.edges}
    if options.edge_type is not None:
        if options.edge_type not in kinds:
            hint = nearest(options.edge_type, kinds)
            raise PenstockError(f"target {options.edge_type!r} is not in the graph{hint}", code="unknown-name")
        return kinds[options.edge_type]
    fit = [kind for kind, edges in graph.edges.items() if (field in edges.fields if field else edges.held_out)]
    fit = fit or ([] if field else list(graph.edges))
    if field and not fit:
        fields = sorted({name for edges in graph.edges.values() for name in edges.fields})
        known = f"{nearest(field, fields)}" if fields else ": they have no fields at all."
        raise PenstockError(
            f"No edges have a field {field!r} to learn (set `label` or `task`){known}", code="field-missing"
        )
    if len(fit) != 1:
        what = f"a field {field!r}" if field else "edges to predict"
        raise PenstockError(
            f"{len(fit)} edge types have {what}: name one with target ({', '.join(kinds)}).", code="option-missing"
        )
    return fit[0]


def _learned(labels: Array | SplitValues) -> Learns:
    """Whether labels are quantities rather than classes, judged by a sample of rows."""
    if labels.dtype.kind != "f" or (labels.ndim == 2 and labels.shape[1] > 1):
        return "classes"
    some = labels.different if isinstance(labels, SplitValues) else labels[:SAMPLED]
    return "numbers" if are_quantities(some) else "classes"
