"""Tasks on the edges and triples of a partitioned graph, whose lists a worker reads in the original numbering."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from penstock.cluster.worker.batch_source import EdgeSplit, SeedSplit, make_parted_edge_batches, whole_batches
from penstock.cluster.worker.cut_graph import CutGraph, Parts, RemoteEdges, SupervisedEdges, edge_column
from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype, passing_numbers, release_pages
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS, EdgeType, TaskName, edge_key
from penstock.processes import ranges
from penstock.sampling.block import BatchKey
from penstock.sampling.exclusion import exclusion_of
from penstock.sampling.links import EdgeBatcher, Reverse, find_reverse, split_and_tell, supervise
from penstock.sampling.sampler_table import SAMPLERS
from penstock.sampling.temporal import OF_NODES
from penstock.sampling.triples import Entities, relations_of
from penstock.train.batch_source import EdgeTimes, check_sampler_supports, edge_times, seed_field
from penstock.train.dataset.prepared_graph import choose_edge_type, task_of_edges
from penstock.train.job import Job
from penstock.train.tasks import EdgeTask, LinkTask, Task, TripleTask
from penstock.train.tasks.edges import labelled_edges
from penstock.train.tasks.links import TimedLinkTask, check_no_held_out, time_splits
from penstock.train.tasks.triples import check_triple_job
from penstock.train.user_functions import UserFunctions

# Refuses jobs by time for which parts of a partitioned graph cannot be sampled.


def check_parted_times(job: Job, graph: Graph, on_edges: bool = False) -> None:
    """`on_edges`: whether the task is on edges."""
    if job.time is None or not job.time.startswith(OF_NODES):
        return
    graph.require_one_relation(
        "Sampling a cut graph by times of vertices", "name a field of the edges as `time`, or train on one machine"
    )
    if on_edges:
        raise PenstockError(
            f"Tasks on the edges of a cut graph go by times of the edges, and `time` ({job.time!r}) names times of"
            " vertices: name a field of the edges, or train on one machine.",
            code="unsupported-combination",
        )


# Tasks on the edges of a partitioned graph. A worker reads the lists of one relation, in the original numbering. They
# take 4 bytes per edge (8 in very large graphs), a quarter of what the order of an epoch over them takes; with them
# positives, negatives and ranks are found by the code of one machine. Neighbourhoods are drawn by the owners.


def make_parted_edge_task(
    parts: Parts, graph: CutGraph, job: Job, name: TaskName, functions: UserFunctions
) -> tuple[Task, CutGraph, SeedSplit]:
    """The job's task on edges, the graph it trains on, and how its batches are split."""
    check_sampler_supports(job, graph, excluding=True)
    check_parted_times(job, graph, on_edges=True)
    links = TASK_FACTS[name].learns == "links"
    kind = choose_edge_type(graph, job, None if links else job.label)
    columns = [] if job.time is None else [job.time, seed_field(job)]
    whole = _relations_around(parts, graph, kind, None if links else job.label, columns)
    if not links and job.task == "auto" and job.label in whole.edges[kind].fields:
        # Only the names of edge fields are known until one of them is read.
        name = task_of_edges(whole.edges[kind].fields[job.label])
    times = _times(parts, graph, job, edge_times(job, whole, kind))
    if links and times is not None:
        check_no_held_out(whole, kind)
    elif links and not any(len(pairs) for pairs in whole.edges[kind].held_out.values()):
        val, test = job.held_out
        whole, parts.absent = split_and_tell(whole, kind, (val, test), job.split_number)
    reverse = find_reverse(whole, kind)
    graph = _with_lists(graph, whole, kind, reverse)
    new = {node_type: new_numbers(parts, node_type) for node_type in dict.fromkeys((kind[0], kind[2]))}
    setup = parts.member.setup
    share = None
    if setup.layout.world > 1:
        share = EdgeSplit(new[kind[2]].__getitem__, setup.layout.shares, setup.task.rank)
    data = None if links else labelled_edges(graph, kind, job, name, None, reverse, times)
    training = data.splits["train"] if data is not None else _training_edges(job, graph.edges[kind].count, times)
    if SAMPLERS[job.sampler].supervision_apart:
        training = _supervised(parts, whole, graph, kind, reverse, training, job, new)
    batches = make_parted_edge_batches(parts, job, new, training)
    split = whole_batches(training)
    if data is not None:
        return EdgeTask(graph, data, batches, job, share, functions, times), graph, split
    if times is not None:
        timed = TimedLinkTask(graph, kind, batches, job, reverse, times, share, functions)
        return timed, graph, split
    return LinkTask(graph, kind, batches, job, reverse, share, functions=functions), graph, split


def _times(parts: Parts, graph: CutGraph, job: Job, own: EdgeTimes | None) -> EdgeTimes | None:
    """The times of a relation's edges, comparable with those of all relations as on one machine."""
    if own is None or job.time is None:
        return own
    bound = [kind for kind, edges in graph.edges.items() if job.time in edges.fields]
    stored = [parts.store.source(f"{edge_key(kind)}/{job.time}").dtype for kind in bound]
    whole_numbers = own.in_whole_numbers and all(each.kind in "iu" for each in stored)
    return replace(own, bound=frozenset(bound), in_whole_numbers=whole_numbers)


def _training_edges(job: Job, count: int, times: EdgeTimes | None) -> Array:
    """Positions of the edges that links are learned from: all that remain, or the earliest."""
    return np.arange(count, dtype=index_dtype(count)) if times is None else time_splits(job, times)["train"]


def _supervised(
    parts: Parts,
    whole: Graph,
    graph: CutGraph,
    kind: EdgeType,
    reverse: Reverse,
    training: Array,
    job: Job,
    new: Mapping[str, Array],
) -> Array:
    """Positions of the edges that are predicted, a share that the job gives; they carry no messages."""
    found = supervise(whole, kind, training, job.supervision, job.draw_seed, reverse)
    left_out = whole.num_edges - found.messages.num_edges
    pairs = EdgeBatcher(whole, kind, reverse=reverse).batch(found.positions, BatchKey(0, 0, 0)).exclude
    by_type = pairs if isinstance(pairs, dict) else {kind: pairs}
    parts.supervised = SupervisedEdges(
        {
            each: exclusion_of(
                np.stack([new[each[0]][sources], new[each[2]][targets]]),
                graph.nodes[each[0]].count,
                graph.nodes[each[2]].count,
            )
            for each, (sources, targets) in by_type.items()
        },
        graph.num_edges - left_out,
    )
    return found.positions


def learn_held_out_names(parts: Parts, graph: CutGraph) -> None:
    """Find which relations have held-out edges, by name."""
    for kind, edges in graph.edges.items():
        _, held_out, _ = parts.reader.names(kind, "")
        edges.held_out = dict.fromkeys(held_out, np.empty((0, 2), np.int64))


def _relations_around(
    parts: Parts, graph: CutGraph, kind: EdgeType, label: str | None, columns: Sequence[str] = ()
) -> Graph:
    """The relation of a task and, temporarily, its reverse if there is one, as one machine has them.

    Its fields are the label and `columns`, if they exist. Candidates for the reverse are read one after the other, and
    dropped if they are not.
    """
    edges = parts.reader.lists(kind)
    for name in dict.fromkeys([label, *columns]):
        if name is not None and name in graph.edges[kind].fields:
            edges.fields = {**edges.fields, name: edge_column(parts, kind, name, edges.indptr)}
    if label is not None:
        *_, words = parts.reader.names(kind, label)
        edges.categories = {} if words is None else {label: words}
    alone = Graph(graph.nodes, {kind: edges}, graph.name)
    if find_reverse(alone, kind) == "same":
        return alone
    for other, candidate in graph.edges.items():
        if other != kind and (other[0], other[2]) == (kind[2], kind[0]) and candidate.count == edges.count:
            both = Graph(graph.nodes, {kind: edges, other: parts.reader.lists(other)}, graph.name)
            if find_reverse(both, kind) == other:
                return both
    return alone


def _with_lists(graph: CutGraph, whole: Graph, kind: EdgeType, reverse: Reverse) -> CutGraph:
    """The partitioned graph with one relation's lists; its reverse gets its size without held-out edges."""
    edges = {**graph.edges, kind: whole.edges[kind]}
    if isinstance(reverse, tuple):
        before = edges[reverse]
        assert isinstance(before, RemoteEdges)
        edges[reverse] = replace(before, total=whole.edges[reverse].count)
    return CutGraph(graph.nodes, edges, graph.field_names, graph.name, graph.nbytes)


_NUMBERED = 1 << 20
"""Vertices that are numbered at a time."""


def new_numbers(parts: Parts, node_type: str) -> Array:
    """The number in the partitioned graph of every vertex of a type, by its original number.

    Four bytes for each (eight in very large graphs), as `passing_numbers`: batches of edges ask for vertices that lie
    anywhere, and a search in the original numbers takes as long for each part as a look here.
    """
    original = parts.partition.original(node_type)
    new = passing_numbers(len(original), index_dtype(len(original)))
    for first, last in ranges(len(original), _NUMBERED):
        new[original[first:last]] = np.arange(first, last)
    for mapped in (original, new):
        release_pages(mapped)
    return new


def new_entities(entities: Entities, new: Mapping[str, Array], numbers: Array) -> Array:
    """The numbers in the partitioned graph of some entities of all types, types one after the other."""
    found = np.empty(len(numbers), np.int64)
    of_type = np.searchsorted(entities.starts, numbers, "right") - 1
    for place, name in enumerate(entities.types):
        start, mine = entities.start(name), of_type == place
        found[mine] = new[name][numbers[mine] - start] + np.int64(start)
    return found


# Knowledge graph completion on a partitioned graph. A worker reads the triples of all relations, in the original
# numbering, 24 bytes per triple. Relations' vectors are parameters like any others, which all workers have; entities'
# rows are at their owners, and each worker's share of a batch are the triples whose tails are close to it.


def make_parted_triple_task(
    parts: Parts, graph: CutGraph, job: Job, functions: UserFunctions
) -> tuple[Task, CutGraph, SeedSplit]:
    """The task, the graph it trains on, and how its batches are split."""
    check_triple_job(job)
    check_sampler_supports(job, graph, excluding=True)
    relations = relations_of(graph.edges)
    lists = {kind: parts.reader.lists(kind) for kind in relations}
    if not any(len(pairs) for edges in lists.values() for pairs in edges.held_out.values()):
        raise PenstockError(
            "The graph holds no triples out, and a cluster cannot choose some: give it validation and test triples"
            " before it is cut (docs/knowledge-graphs.md).",
            code="missing-data",
        )
    graph = CutGraph(graph.nodes, {**graph.edges, **lists}, graph.field_names, graph.name, graph.nbytes)
    entities = Entities({name: nodes.count for name, nodes in graph.nodes.items()}, relations)
    new = {name: new_numbers(parts, name) for name in entities.types}
    setup, share = parts.member.setup, None
    if setup.layout.world > 1:
        share = EdgeSplit(partial(new_entities, entities, new), setup.layout.shares, setup.task.rank)
    count = sum(edges.count for edges in lists.values())
    training = np.arange(count, dtype=index_dtype(count))
    batches = make_parted_edge_batches(parts, job, new, training)
    return TripleTask(graph, batches, job, share, functions), graph, whole_batches(training)
