"""A worker's paths to feature rows: the owners of parts, and the replicas that the cluster file places."""

from collections.abc import Iterable

import numpy as np

from penstock.cluster.worker.cut_graph import Parts
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.hardware.cluster import Replica
from penstock.store.parts.replicas import ReplicaCopy, ReplicaReader
from penstock.store.parts.row_paths import RowPaths
from penstock.wire import Message

_LOOK = 0.05
"""Seconds before a replica that is still being copied is asked again."""


def use_replicas(parts: Parts, features: str, types: Iterable[str]) -> None:
    """Let the worker's store pull rows of these node types' features along all paths that the cluster file allows."""
    setup = parts.member.setup
    allowed = ("owner", "replica") if setup.cluster.feature_paths == "auto" else setup.cluster.feature_paths
    if not setup.cluster.replicas or "replica" not in allowed:
        return
    by_part: dict[int, list[Replica]] = {}
    for replica in setup.cluster.replicas:
        by_part.setdefault(replica.part, []).append(replica)
    copies = {
        f"{name}/{features}": {
            part: [_copy(parts, name, features, each) for each in replicas] for part, replicas in by_part.items()
        }
        for name in types
    }
    stores = {part: [f"store-{each.machine}" for each in replicas] for part, replicas in by_part.items()}
    paths = RowPaths(setup.layout.owners, stores, with_owner="owner" in allowed)
    endpoint = parts.member.endpoint
    parts.store.replicas = ReplicaReader(copies, paths, lambda store: endpoint.channel(store, "features", 2))


def _copy(parts: Parts, name: str, features: str, replica: Replica) -> ReplicaCopy:
    """What a replica holds, as soon as it does; its rows, where this worker can map them."""
    member, store = parts.member, f"store-{replica.machine}"
    request = {"part": replica.part, "field": f"{name}/{features}"}
    channel = member.endpoint.channel(store, "features", 2)
    while not (said := channel.call(Message("replica-rows", dict(request)))).body.get("ready"):
        if member.stopped.wait(_LOOK):
            raise PenstockError("The controller ended the run.", code="closed")
    numbers: Array | None = None if said.body.get("all") else np.asarray(said.arrays[0], np.int64)
    mine = replica.machine == member.setup.task.machine and parts.partition.has_part(replica.part)
    table = parts.partition.part(replica.part).nodes[name].fields[features] if mine else None
    return ReplicaCopy(store, numbers, table)
