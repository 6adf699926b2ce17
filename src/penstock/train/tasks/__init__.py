"""What is learned, a file a kind: vertices, links, edges. Adding one touches a file and a line here."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.csr import index_dtype
from penstock.graph.graph import Graph
from penstock.sampling.links import split_edges, split_positions
from penstock.train.data import Task as TaskName
from penstock.train.data import choose_edge_type
from penstock.train.job import Job
from penstock.train.labels import labelled_vertices
from penstock.train.samplers import make_drawing
from penstock.train.tasks.edges import EdgeTask
from penstock.train.tasks.links import LinkTask
from penstock.train.tasks.node import NodeTask
from penstock.train.tasks.task import Scores, Task

__all__ = ["EdgeTask", "LinkTask", "NodeTask", "Scores", "Task", "make_task"]


def make_task(name: TaskName, graph: Graph, job: Job) -> tuple[Task, Graph]:
    """The job's task, and the graph it trains on: without the edges it holds out."""
    if name == "link-prediction":
        return _link_task(graph, job)
    if name == "edge-classification":
        return _edge_task(graph, job)
    data = labelled_vertices(graph, job, name)
    return NodeTask(data, make_drawing(job, graph, data.splits["train"]), job), graph


def _link_task(graph: Graph, job: Job) -> tuple[Task, Graph]:
    kind = choose_edge_type(graph, job, None)
    if not any(len(pairs) for pairs in graph.edges[kind].held_out.values()):
        val, test = job.held_out
        graph = split_edges(graph, kind, (val, test), job.split_number)
    count = graph.edges[kind].count
    drawing = make_drawing(job, graph, np.arange(count, dtype=index_dtype(count)), excluding=True)
    return LinkTask(graph, kind, drawing, job), graph


def _edge_task(graph: Graph, job: Job) -> tuple[Task, Graph]:
    kind = choose_edge_type(graph, job, job.label)
    edges = graph.edges[kind]
    if job.label not in edges.fields:
        raise PenstockError(f"The edges have no field {job.label!r} to learn: set `label`.")
    labels = np.asarray(edges.fields[job.label])
    known = labels >= 0 if labels.dtype.kind == "i" and labels.ndim == 1 else None
    first, second, third = job.split_ratio
    splits = split_positions(edges, (first, second, third), job.split_number, "none", known)
    drawing = make_drawing(job, graph, splits["train"], excluding=True)
    return EdgeTask(graph, kind, splits, drawing, job), graph
