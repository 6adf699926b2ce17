"""Sampling a partitioned graph: the owner of a list draws from it, and the requester merges the owners' draws.

`owner` draws from the lists of one part, `service` does it for others. `remote` has the lists of a relation over all
parts, groups rows by owner and merges their draws, and `graph` has samplers over those lists. `homogeneous` is a graph
for samplers that read whole lists, and keeps a worker's share of the batches that they draw for all workers. Draws hash
original numbers and lists keep their order, so that batches are those of the unpartitioned graph. `relation` reads one
relation's lists, for tasks on its edges. `batches` has whole batches drawn by sampler tasks, also without held-out
edges, and `requests` is the form of requests and batches on the wire.
"""

from penstock.sampling.parts.batches import HoldoutSampler, RemoteSampler, serve_batches
from penstock.sampling.parts.graph import VertexTimes, edge_types_in, parted_labor, parted_lists, parted_sampler
from penstock.sampling.parts.homogeneous import PartedGraph, SharedSampler, parted_graph
from penstock.sampling.parts.owner import OwnedPart, PartLists
from penstock.sampling.parts.relation import RelationReader
from penstock.sampling.parts.remote import PartedLists
from penstock.sampling.parts.requests import batch_messages
from penstock.sampling.parts.service import serve_lists

__all__ = [
    "HoldoutSampler",
    "OwnedPart",
    "PartLists",
    "PartedGraph",
    "PartedLists",
    "RelationReader",
    "RemoteSampler",
    "SharedSampler",
    "VertexTimes",
    "batch_messages",
    "edge_types_in",
    "parted_graph",
    "parted_labor",
    "parted_lists",
    "parted_sampler",
    "serve_batches",
    "serve_lists",
]
