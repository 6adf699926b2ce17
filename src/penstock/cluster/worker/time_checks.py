"""Refuses jobs by time that parts of a cut graph cannot be sampled for."""

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.sampling.temporal import OF_NODES
from penstock.train.job import Job


def check_parted_times(job: Job, graph: Graph, on_edges: bool = False) -> None:
    """`on_edges`: whether the job learns edges."""
    if job.time is None:
        return
    if not graph.is_homogeneous and job.time.startswith(OF_NODES):
        raise PenstockError(
            "A cut graph is sampled by times of vertices only if it has one node type and one edge type: name a field"
            " of the edges as `time`, or train on one machine.",
            code="unsupported-combination",
        )
    if on_edges and job.time.startswith(OF_NODES):
        raise PenstockError(
            f"Tasks on the edges of a cut graph go by times of the edges, and `time` ({job.time!r}) names times of"
            " vertices: name a field of the edges, or train on one machine.",
            code="unsupported-combination",
        )
