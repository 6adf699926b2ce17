"""What is learned, one file for each kind of task. To add one, write a file and add a line here."""

from collections.abc import Mapping

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType
from penstock.sampling.links import Reverse, find_reverse, split_edges, supervise
from penstock.sampling.registry import sampler_entry
from penstock.sampling.triples import relations_of
from penstock.train.batch_source import BatchSource, EdgeTimes, edge_times, layers_of, make_batch_source
from penstock.train.data import choose_edge_type
from penstock.train.job import Job
from penstock.train.job_options import Task as TaskName
from penstock.train.labels import LearnedLabels, labelled_vertices, vertices_to_judge
from penstock.train.tasks.edges import EdgeTask, labelled_edges
from penstock.train.tasks.links import LinkTask, TimedLinkTask, check_no_held_out, time_splits
from penstock.train.tasks.node import NodeTask
from penstock.train.tasks.task import Scores, Task
from penstock.train.tasks.triples import TripleTask, check_relations, check_triple_job
from penstock.train.user_functions import NO_FUNCTIONS, UserFunctions

__all__ = ["EdgeTask", "LinkTask", "NodeTask", "Scores", "Task", "TripleTask", "make_task"]

_TRIED = 4
"""Items of the batch that a trained model is tried on."""


def make_task(
    name: TaskName,
    graph: Graph,
    job: Job,
    learned: LearnedLabels | None = None,
    split: str = "train",
    functions: UserFunctions = NO_FUNCTIONS,
) -> tuple[Task, Graph]:
    """The job's task, and the graph it trains on: without the edges it holds out.

    With the labels that a run has `learned`, the task is for using its model: the graph need not have labels, and an
    epoch consists of a few items only. Otherwise `split` names the items of an epoch. `functions` are the user's.
    """
    if name == "link-prediction":
        return _link_task(graph, job, learned, split, functions)
    if name in ("edge-classification", "edge-regression"):
        return _edge_task(name, graph, job, learned, split, functions)
    if name == "knowledge-graph-completion":
        return _triple_task(graph, job, learned, split, functions)
    if learned is not None:
        used = vertices_to_judge(graph, job, learned)
        return NodeTask(used, _few(job, graph, graph.nodes[used.node_type].count), job, functions), graph
    data = labelled_vertices(graph, job, name)
    return NodeTask(data, make_batch_source(job, graph, items_in(data.splits, split)), job, functions), graph


ALL = "all"
"""The pseudo-split with the items of all splits."""


def items_in(splits: Mapping[str, Array], split: str) -> Array:
    """The items of a split; an error where it does not exist or is empty."""
    if split == ALL:
        return np.sort(np.concatenate(list(splits.values())))
    if split not in splits:
        raise PenstockError(f"There is no split {split!r}{nearest(split, splits)}", code="split-missing")
    if len(splits[split]) == 0:
        raise PenstockError(f"Split {split!r} is empty: choose another.", code="missing-data")
    return splits[split]


def _link_task(
    graph: Graph, job: Job, learned: LearnedLabels | None, split: str, functions: UserFunctions
) -> tuple[Task, Graph]:
    kind = choose_edge_type(graph, _about(job, learned), None)
    if (times := edge_times(job, graph, kind)) is not None:
        return _timed_link_task(graph, job, kind, times, split, functions), graph
    if any(job.held_out) and not any(len(pairs) for pairs in graph.edges[kind].held_out.values()):
        val, test = job.held_out
        graph = split_edges(graph, kind, (val, test), job.split_number)
    count = graph.edges[kind].count
    training, reverse = np.arange(count, dtype=index_dtype(count)), find_reverse(graph, kind)
    if split not in ("train", ALL):
        pairs = items_in(graph.edges[kind].held_out, split)
        batches = make_batch_source(job, graph, np.arange(len(pairs)), excluding=True)
        return LinkTask(graph, kind, batches, job, reverse, pairs=pairs, functions=functions), graph
    batches = _edge_batches(job, graph, kind, training, reverse, learned)
    return LinkTask(graph, kind, batches, job, reverse, functions=functions), graph


def _timed_link_task(
    graph: Graph, job: Job, kind: EdgeType, times: EdgeTimes, split: str, functions: UserFunctions
) -> Task:
    """All edges stay in the graph: sampling by time hides those that are later than the edge to predict."""
    check_no_held_out(graph, kind)
    batches = make_batch_source(job, graph, items_in(time_splits(job, times), split), excluding=True)
    return TimedLinkTask(graph, kind, batches, job, find_reverse(graph, kind), times, functions=functions)


def _triple_task(
    graph: Graph, job: Job, learned: LearnedLabels | None, split: str, functions: UserFunctions
) -> tuple[Task, Graph]:
    check_triple_job(job)
    if split not in ("train", ALL):
        raise PenstockError(
            f"Batches of triples are of those that are learned from: leave out split {split!r}.",
            code="unsupported-combination",
        )
    relations = relations_of(graph.edges)
    held_out = (pairs for kind in relations for pairs in graph.edges[kind].held_out.values())
    if any(job.held_out) and not any(map(len, held_out)):
        val, test = job.held_out
        for kind in relations:
            if graph.edges[kind].count:
                graph = split_edges(graph, kind, (val, test), job.split_number)
    check_relations(relations, learned)
    count = sum(graph.edges[kind].count for kind in relations)
    training = np.arange(count, dtype=index_dtype(count))
    return TripleTask(graph, make_batch_source(job, graph, training, excluding=True), job, functions=functions), graph


def _edge_task(
    name: TaskName, graph: Graph, job: Job, learned: LearnedLabels | None, split: str, functions: UserFunctions
) -> tuple[Task, Graph]:
    kind = choose_edge_type(graph, _about(job, learned), job.label)
    times = edge_times(job, graph, kind)
    data = labelled_edges(graph, kind, job, name, learned, times=times)
    if learned is not None:
        few = _few(job, graph, graph.edges[kind].count)
        return EdgeTask(graph, data, few, job, functions=functions, times=times), graph
    batches = _edge_batches(job, graph, kind, items_in(data.splits, split), data.reverse, learned)
    return EdgeTask(graph, data, batches, job, functions=functions, times=times), graph


def _edge_batches(
    job: Job, graph: Graph, kind: EdgeType, training: Array, reverse: Reverse, learned: LearnedLabels | None
) -> BatchSource:
    """Batches of edges that are left out of the neighbourhoods they are learned from."""
    if learned is None and sampler_entry(job.sampler).supervision_apart:
        training, graph = supervise(graph, kind, training, job.supervision, job.draw_seed, reverse)
    return make_batch_source(job, graph, training, excluding=True)


def _about(job: Job, learned: LearnedLabels | None) -> Job:
    """The job, with the edge type of the run."""
    return job if learned is None else job.model_copy(update={"edge_type": learned.type})


def _few(job: Job, graph: Graph, count: int) -> BatchSource:
    """A few batches to try a model on, by a sampler that need not prepare a whole epoch."""
    if job.sampler != "neighbour":
        job = job.model_copy(update={"sampler": "neighbour", "fanouts": [1] * layers_of(job)})
    return make_batch_source(job, graph, np.arange(min(count, _TRIED)))
