"""The replicas of a run: what a store of one machine holds of other machines' parts."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.blocks import ranges
from penstock.graph.graph import Graph
from penstock.hardware.cluster import Replica
from penstock.partition import Partition
from penstock.store.files import passing_rows
from penstock.store.hot_rows import by_counts, count_in_lists
from penstock.store.parts import PartedStore
from penstock.store.parts.fields import IN_MEMORY
from penstock.store.parts.replicas import HeldRows
from penstock.wire import Message

_COPIED = 1 << 18
"""Rows that are copied at a time."""


def replicas_on(member: Member) -> list[Replica]:
    """The replicas that the cluster file places on this task's machine."""
    return [each for each in member.setup.cluster.replicas if each.machine == member.setup.task.machine]


def held_rows(
    member: Member, partition: Partition, graphs: Mapping[int, Graph]
) -> Iterator[tuple[tuple[int, str], HeldRows]]:
    """What this machine's replicas hold, by part and field; `graphs` are its own parts.

    Where a part's folder is on this machine, as on a shared disk, its rows are mapped and no copy is made; else they
    are copied from the owner, into memory or, where they are large, into a file without a name.
    """
    features, taken = str(member.setup.job["features"]), 0
    for replica in replicas_on(member):
        for name in partition.book.node_types:
            field, numbers = f"{name}/{features}", _numbers(replica, partition, graphs, name)
            if partition.has_part(replica.part):
                fields = partition.part(replica.part).nodes[name].fields
                if features in fields:
                    yield (replica.part, field), HeldRows(fields[features], numbers)
                continue
            source = _owner_store(member, partition)
            if field not in _fields_of(member, replica.part):
                continue
            first, last = partition.book.range(replica.part, name)
            wanted = np.arange(last - first) if numbers is None else numbers
            row_shape, dtype = source.source(field).row_shape(), source.source(field).dtype
            taken += len(wanted) * math.prod(row_shape) * dtype.itemsize
            _check_memory(member, replica, taken)
            table = passing_rows((len(wanted), *row_shape), IN_MEMORY, Path(member.setup.run), dtype)
            for start, stop in ranges(len(wanted), _COPIED):
                source.source(field).read(first + wanted[start:stop], table[start:stop])
            yield (replica.part, field), HeldRows(table, numbers, compact=True)


def _numbers(replica: Replica, partition: Partition, graphs: Mapping[int, Graph], name: str) -> Array | None:
    """The rows of a part that occur most in the lists of this machine's parts, ascending; None: all."""
    first, last = partition.book.range(replica.part, name)
    count = last - first
    if replica.rows == "all":
        return None
    wanted = replica.rows if isinstance(replica.rows, int) else max(1, round(replica.rows * count))
    counts = np.zeros(count, np.int64)
    for graph in graphs.values():
        for (source, _, _), edges in graph.edges.items():
            if source == name:
                count_in_lists(edges.indices, first, counts)
    return by_counts(counts, wanted)


def _owner_store(member: Member, partition: Partition) -> PartedStore:
    owners = member.setup.layout.owners
    return PartedStore(partition.book, {}, lambda part: member.endpoint.channel(owners[part], "replicas", 2))


def _fields_of(member: Member, part: int) -> dict[str, object]:
    owner = member.setup.layout.owners[part]
    said = member.endpoint.channel(owner, "replicas", 2).call(Message("fields", {"part": part})).body
    return dict(said["fields"])


def _check_memory(member: Member, replica: Replica, taken: int) -> None:
    """Refuse copies that a machine has no memory for, as far as its `memory_gb` says."""
    machine = next(each for each in member.setup.cluster.machines if each.name == replica.machine)
    if machine.memory_gb is not None and taken > machine.memory_gb * 1e9:
        raise PenstockError(
            f"Replicas on {machine.name} take {taken / 1e9:.3g} GB with part {replica.part}, and the machine has"
            f" memory_gb {machine.memory_gb:g}: give fewer rows, or another machine.",
            code="infeasible",
        )
