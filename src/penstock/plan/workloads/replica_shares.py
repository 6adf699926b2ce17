"""What of a part's feature bytes each worker gets from replicas, as a run's selector would divide it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from penstock.cost.profile import Profile
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.hardware.cluster import ClusterDocument, Replica
from penstock.hardware.machines import machines_of
from penstock.partition.part_numbers import parts_of
from penstock.plan.workloads.mini_batch_template import PlannedReplica
from penstock.store.hot_rows import by_counts
from penstock.store.parts.row_encoding import encoding_for

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
    covered = covered_reads(cluster, profile, open_graph)
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
                chosen = min(
                    places, key=lambda number: (carried[places[number]] + size / _CHUNKS) / rates[places[number]]
                )
                carried[places[chosen]] += size / _CHUNKS
                if chosen >= 0:
                    shares[chosen, rank] += 1 / _CHUNKS
    return [
        PlannedReplica(part=each.part, store=f"store-{each.machine}", shares=[round(float(x), 6) for x in row])
        for each, row in zip(cluster.replicas, shares, strict=True)
    ]


def covered_reads(cluster: ClusterDocument, profile: Profile, open_graph: Callable[[], Graph]) -> list[float]:
    """For each replica the share of the feature bytes of its part that its rows answer."""
    if all(each.rows == "all" for each in cluster.replicas):
        return [1.0] * len(cluster.replicas)
    graph, features = open_graph(), profile.transfer("features")
    part_of = parts_of(graph, cluster.partition, len(cluster.machines), cluster.method)
    found = []
    for each in cluster.replicas:
        sizes = [size for size in (features.bytes[each.part] if features is not None else []) if size > 0]
        pulled = float(np.mean(sizes)) if sizes else 0.0
        field = str(profile.job.get("features", "x"))
        found.append(1.0 if each.rows == "all" else _covered(_reads(each, cluster, graph, field, part_of), pulled))
    return found


class _PartReads(NamedTuple):
    """How often rows of a part are read: one node type."""

    entries: Array
    """Entries of other parts' lists that name each row."""
    held: Array
    """Whether a replica holds it."""
    row_bytes: int


def _reads(replica: Replica, cluster: ClusterDocument, graph: Graph, field: str, part_of: Array) -> list[_PartReads]:
    here = [machine.name for machine in cluster.machines].index(replica.machine)
    starts = np.cumsum([0, *(graph.nodes[name].count for name in graph.node_types)])
    offsets = dict(zip(graph.node_types, starts, strict=False))
    found = []
    for name in graph.node_types:
        table = graph.nodes[name].fields.get(field)
        if table is None:
            continue
        near, others = np.zeros(graph.nodes[name].count, np.int64), np.zeros(graph.nodes[name].count, np.int64)
        for (source, _, target), edges in graph.edges.items():
            if source == name:
                there = part_of[offsets[target] + edges.destinations()]
                np.add.at(near, edges.indices[there == here], 1)
                np.add.at(others, edges.indices[there != replica.part], 1)
        mine = np.flatnonzero(part_of[offsets[name] :][: len(near)] == replica.part)
        wanted = replica.rows if isinstance(replica.rows, int) else max(1, round(float(replica.rows) * len(mine)))
        held = np.zeros(len(mine), np.bool_)
        held[by_counts(near[mine], wanted)] = True
        row_bytes = encoding_for(cluster.wire_type, table.dtype, table.shape[1:], None).row_bytes
        found.append(_PartReads(others[mine], held, row_bytes))
    return found


def _covered(reads: Sequence[_PartReads], pulled: float) -> float:
    """The share of the bytes that a batch pulls of a part which are of held rows.

    A batch pulls a row once however often it reads it. With reads in proportion to a row's entries in lists, a row is
    pulled with chance 1 - exp(-rate * entries); the rate is such that a batch pulls as many bytes as the profile has.
    """
    entries = np.concatenate([np.empty(0, np.int64), *(each.entries for each in reads)])
    sizes = np.concatenate([np.empty(0), *(np.full(len(each.entries), each.row_bytes) for each in reads)])
    if not entries.any():
        return 0.0

    def expected(log_rate: float) -> Array:
        """Bytes of every row."""
        return np.asarray(-sizes * np.expm1(-np.exp(log_rate) * entries))

    rarely, always = np.log(1e-9 / entries.max()), np.log(50.0)
    rate = always if pulled >= expected(always).sum() else rarely
    if expected(rarely).sum() < pulled < expected(always).sum():
        rate = brentq(lambda each: expected(each).sum() - pulled, rarely, always)
    bytes_of, held = expected(rate), np.concatenate([each.held for each in reads])
    return float(bytes_of[held].sum() / bytes_of.sum())


def _allowed(cluster: ClusterDocument) -> list[str]:
    return ["owner", "replica"] if cluster.feature_paths == "auto" else list(cluster.feature_paths)
