"""Knowledge graph completion on a cut graph. A worker reads the triples of all relations, in the original numbering.

They take 24 bytes a triple. Relations' vectors are parameters like any others, which all workers have; entities' rows
are at their owners, and each worker's share of a batch are the triples whose tails it is close to.
"""

import numpy as np

from penstock.cluster.worker.batch_source import make_parted_edge_batches
from penstock.cluster.worker.cut_graph import CutGraph, Parts
from penstock.cluster.worker.edge_tasks import new_numbers
from penstock.cluster.worker.split import EdgeSplit, SeedSplit, whole_batches
from penstock.errors import PenstockError
from penstock.graph.csr import index_dtype
from penstock.sampling.triples import Entities, relations_of
from penstock.train.batch_source import check_sampler_supports
from penstock.train.job import Job
from penstock.train.tasks import Task, TripleTask
from penstock.train.tasks.triple_checks import check_triple_job
from penstock.train.user_functions import UserFunctions


def make_parted_triple_task(
    parts: Parts, graph: CutGraph, job: Job, functions: UserFunctions
) -> tuple[Task, CutGraph, SeedSplit]:
    """The task, the graph it trains on, and how its batches are split."""
    check_triple_job(job)
    check_sampler_supports(job, not graph.is_homogeneous, excluding=True)
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
        every = np.concatenate([new[name].astype(np.int64) + entities.start(name) for name in entities.types])
        share = EdgeSplit(every, setup.layout.shares, setup.task.rank)
    count = sum(edges.count for edges in lists.values())
    training = np.arange(count, dtype=index_dtype(count))
    batches = make_parted_edge_batches(parts, job, new, training)
    return TripleTask(graph, batches, job, share, functions), graph, whole_batches(training)
