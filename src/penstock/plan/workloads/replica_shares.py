"""What of a part's feature bytes each worker gets from replicas, as a run's selector would divide it."""

from collections.abc import Callable, Sequence

import numpy as np

from penstock.cost.profile import Profile
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.hardware.cluster import ClusterDocument, Replica
from penstock.hardware.machines import machines_of
from penstock.partition.part_numbers import parts_of
from penstock.plan.workloads.mini_batch_template import PlannedReplica
from penstock.store.hot_rows import by_counts

_CHUNKS = 40
"""Into which the bytes between a part and a worker are divided."""


def replica_shares(
    cluster: ClusterDocument,
    profile: Profile,
    open_graph: Callable[[], Graph],
    seats: Sequence[int] | None = None,
) -> list[PlannedReplica]:
    """Every chunk goes where it ends first: at the owner's or a replica's link, given what these carry already.

    `seats` are the workers' machines; None: as the cluster file has them. A worker beside a replica reads it there.
    """
    features, lists = profile.transfer("features"), profile.transfer("lists")
    if not cluster.replicas or features is None or "replica" not in _allowed(cluster):
        return []
    names = [machine.name for machine in cluster.machines]
    if seats is None:
        seats = [number for number, machine in enumerate(cluster.machines) for _ in range(machine.workers)]
    rates, carried = machines_of(cluster, profile.rate).rates, np.zeros(len(names))
    if lists is not None:
        for part, sizes in enumerate(lists.bytes):
            carried[part] += sum(size for size, seat in zip(sizes, seats, strict=True) if seat != part)
    covered = covered_reads(cluster, open_graph)
    shares = np.zeros((len(cluster.replicas), len(seats)))
    for chunk in range(_CHUNKS):
        for part, sizes in enumerate(features.bytes):
            for rank, (size, seat) in enumerate(zip(sizes, seats, strict=True)):
                if seat == part:
                    continue
                held = [
                    number
                    for number, each in enumerate(cluster.replicas)
                    if each.part == part and chunk < covered[number] * _CHUNKS
                ]
                places = {number: names.index(cluster.replicas[number].machine) for number in held}
                if any(place == seat for place in places.values()):
                    chosen = next(number for number, place in places.items() if place == seat)
                    shares[chosen, rank] += 1 / _CHUNKS
                    continue
                if "owner" in _allowed(cluster) or not held:
                    places[-1] = part
                chosen = min(places, key=lambda number: (carried[places[number]] + size) / rates[places[number]])
                carried[places[chosen]] += size / _CHUNKS
                if chosen >= 0:
                    shares[chosen, rank] += 1 / _CHUNKS
    return [
        PlannedReplica(part=each.part, store=f"store-{each.machine}", shares=[round(float(x), 6) for x in row])
        for each, row in zip(cluster.replicas, shares, strict=True)
    ]


def covered_reads(cluster: ClusterDocument, open_graph: Callable[[], Graph]) -> list[float]:
    """For each replica the share of reads of its part, from other parts' lists, that its rows answer."""
    if all(each.rows == "all" for each in cluster.replicas):
        return [1.0] * len(cluster.replicas)
    graph = open_graph()
    part_of = parts_of(graph, cluster.partition, len(cluster.machines), cluster.method)
    offsets = dict(
        zip(graph.node_types, np.cumsum([0, *(graph.nodes[n].count for n in graph.node_types)]), strict=False)
    )
    names = [machine.name for machine in cluster.machines]
    return [1.0 if each.rows == "all" else _covered(each, graph, part_of, offsets, names) for each in cluster.replicas]


def _covered(replica: Replica, graph: Graph, part_of: Array, offsets: dict[str, int], names: list[str]) -> float:
    read = kept = 0
    for name in graph.node_types:
        near, others = np.zeros(graph.nodes[name].count, np.int64), np.zeros(graph.nodes[name].count, np.int64)
        for (source, _, target), edges in graph.edges.items():
            if source == name:
                there = part_of[offsets[target] + edges.destinations()]
                np.add.at(near, edges.indices[there == names.index(replica.machine)], 1)
                np.add.at(others, edges.indices[there != replica.part], 1)
        mine = np.flatnonzero(part_of[offsets[name] :][: len(near)] == replica.part)
        wanted = replica.rows if isinstance(replica.rows, int) else max(1, round(float(replica.rows) * len(mine)))
        read += int(others[mine].sum())
        kept += int(others[mine[by_counts(near[mine], wanted)]].sum())
    return kept / read if read else 0.0


def _allowed(cluster: ClusterDocument) -> list[str]:
    return ["owner", "replica"] if cluster.feature_paths == "auto" else list(cluster.feature_paths)
