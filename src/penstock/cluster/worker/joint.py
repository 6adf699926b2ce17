"""Samplers that draw a batch for all workers together: FastGCN, LADIES, GraphSAINT and Cluster-GCN over a cut graph.

A batch is that of one machine, and its loss is shared: a worker keeps what its part of the loss vertices needs. Every
task that draws has the offsets of all lists (8 bytes a vertex), and what a sampler finds out beforehand:

- fastgcn, saint-vertex, saint-edge, saint-walk of one step: chances of all vertices (16 to 32 bytes a vertex), for
  which all lists pass through once, 16 MiB at a time. They are summed in the order that one machine sums in, as sums at
  the owners would round differently, and a draw is a search in them.
- saint-walk of more steps: all lists and a count of walks for each edge, 8 bytes an edge. To count them walk by walk
  over the wire would move more than the lists.
- cluster: the vertices cluster by cluster (5 bytes a vertex); clusters come from the first worker.
"""

from penstock.cluster.worker.clusters import clusters_for
from penstock.cluster.worker.cut_graph import Parts, open_cut_graph
from penstock.cluster.worker.split import vertex_share
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.sampling.cluster import ClusterSampler
from penstock.sampling.fastgcn import FastGCN
from penstock.sampling.ladies import Ladies
from penstock.sampling.parts import PartedGraph, SharedSampler, parted_graph
from penstock.sampling.parts.sharing import WholeSampler
from penstock.sampling.saint import Saint
from penstock.train.data import choose_task
from penstock.train.job import Job
from penstock.train.labels import labelled_vertices
from penstock.train.samplers import layers_of

LAYERWISE = {"fastgcn": FastGCN, "ladies": Ladies}
SUBGRAPHS = ("saint-vertex", "saint-edge", "saint-walk", "cluster")
JOINT = (*LAYERWISE, *SUBGRAPHS)


def joint_sampler(parts: Parts, job: Job, train: Array | None = None) -> SharedSampler:
    """The job's sampler over all parts, for the worker of this rank.

    `train` are the training vertices in the cut graph's numbers; a task that is no worker finds them itself.
    """
    setup = parts.member.setup
    graph = parted_graph(parts.partition, job.sampler, parts.owned, parts.lists)
    sampler: WholeSampler
    if job.sampler in LAYERWISE:
        sampler = LAYERWISE[job.sampler](graph, job.layer_sizes)
    else:
        sampler = _of_subgraphs(parts, job, graph, _training_vertices(parts, job) if train is None else train)
    share = vertex_share(setup.layout.shares, setup.task.rank)
    # One machine normalises rows that no loss vertex needs too: then every worker has them all. And optimisers with
    # moments move learnable rows of a batch without any gradient.
    every_input = job.sampler in SUBGRAPHS and _learns_rows(parts, job, graph.node_type)
    return SharedSampler(job.sampler, graph, sampler, share, job.norm == "batch", every_input)


def _learns_rows(parts: Parts, job: Job, node_type: str) -> bool:
    """Whether vertices have embeddings in the place of features."""
    return job.features not in parts.describe(job.label)[0]["nodes"][node_type]["fields"]


def _of_subgraphs(parts: Parts, job: Job, graph: PartedGraph, train: Array) -> WholeSampler:
    layers = layers_of(job)
    if job.sampler == "cluster":
        return ClusterSampler(graph, clusters_for(parts, job)[graph.names], train, layers)
    kind = job.sampler.removeprefix("saint-")
    return Saint(graph, train, kind=kind, size=job.saint_size, walk_length=job.walk_length, layers=layers)


def _training_vertices(parts: Parts, job: Job) -> Array:
    """As a worker has them, who knows the task."""
    graph = open_cut_graph(parts, job.label)
    task = choose_task(graph, job)
    if task in ("link-prediction", "edge-classification"):
        raise PenstockError(f"Tasks on edges are sampled with sampler neighbour, not {job.sampler}.")
    data = labelled_vertices(graph, job, task)
    return parts.partition.new_ids(data.splits["train"], data.node_type)
