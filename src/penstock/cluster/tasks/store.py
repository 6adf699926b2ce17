"""The store: holds a machine's parts and serves their rows and lists."""

import math
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cluster.layout import Setup
from penstock.cluster.member import Member
from penstock.cluster.worker.cut_graph import checked_part
from penstock.errors import PenstockError
from penstock.graph.arrays import Array, passing_rows, release_pages
from penstock.graph.data import NodeSet
from penstock.graph.files import make_private_folder
from penstock.graph.folder import Graph
from penstock.graph.hashing import seed_of
from penstock.graph.integrity import nan_rows
from penstock.graph.schema import file_name
from penstock.hardware.cluster import Replica
from penstock.nn.layer_table import WITHOUT_LAYERS
from penstock.nn.options import width_of_embedding
from penstock.nn.scorer_table import initial_rows
from penstock.partition import Partition, open_partition
from penstock.processes import ranges
from penstock.sampling.explained import serve_explained_draws
from penstock.sampling.parts import OwnedPart, serve_lists
from penstock.store.embedding import row_optimiser
from penstock.store.parts import EmbeddingService, OwnedEmbedding, PartedStore, StoreService, own_embedding
from penstock.store.parts.replicas import HeldRows, ReplicaService
from penstock.store.parts.requests import MemoryRequest, checked
from penstock.store.parts.service import IN_MEMORY
from penstock.store.rows import by_counts, count_in_lists
from penstock.train.dataset.labels import column, different_values
from penstock.wire.message import Message

# The replicas of a run: what a store of one machine holds of other machines' parts.

_COPIED = 1 << 18
"""Rows that are copied at a time."""


def replicas_on(member: Member) -> list[Replica]:
    """The replicas that the cluster file places on this task's machine."""
    return [each for each in member.setup.cluster.replicas if each.machine == member.setup.task.machine]


def held_rows(
    member: Member, partition: Partition, graphs: Mapping[int, Graph]
) -> Iterator[tuple[tuple[int, str], HeldRows]]:
    """What this machine's replicas hold, by part and field; `graphs` are its own parts.

    If a part's folder is accessible on this machine, as on a shared disk, its rows are mapped and not copied; else they
    are copied from the owner, into memory or, if large, into an unlinked file.
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
    """Refuse copies that exceed a machine's `memory_gb`, if that is given."""
    machine = next(each for each in member.setup.cluster.machines if each.name == replica.machine)
    if machine.memory_gb is not None and taken > machine.memory_gb * 1e9:
        raise PenstockError(
            f"Replicas on {machine.name} take {taken / 1e9:.3g} GB with part {replica.part}, and the machine has"
            f" memory_gb {machine.memory_gb:g}: give fewer rows, or another machine.",
            code="infeasible",
        )


_THREADS = 4


def run_store(setup: Setup) -> int:
    """Serve until the run is over."""
    with Member(setup, _THREADS) as member:
        partition = open_partition(Path(setup.partition), bool(setup.job.get("unchecked")))
        graphs = {part: checked_part(partition, part, setup.job["features"]) for part in setup.task.parts}
        StoreService(member.endpoint, graphs, folder=Path(setup.run))
        owned = {part: OwnedPart.of(partition, part) for part in graphs}
        serve_lists(member.endpoint, owned)
        serve_explained_draws(member.endpoint, owned)
        serve_descriptions(member, graphs)
        serve_shared_memory(member)
        EmbeddingService(member.endpoint, _embeddings(member, partition, graphs))
        copies = ReplicaService(member.endpoint)
        member.announce()
        if replicas_on(member):
            # Rows may have to be copied from other stores, which need no other task once they have announced
            # themselves.
            member.await_tasks("store")
            copies.hold(dict(held_rows(member, partition, graphs)))
        member.stopped.wait()
    return 0


def _embeddings(
    member: Member, partition: Partition, graphs: dict[int, Graph]
) -> dict[tuple[str, int], OwnedEmbedding]:
    """Learnable rows of the types without features, kept in the run folder."""
    # The controller has checked the job. The check imports torch, which a store does without.
    job, folder = member.setup.job, make_private_folder(Path(member.setup.run) / "embeddings")
    seed = seed_of(job["seed"], job["draws"])
    width = width_of_embedding(job["embedding"], job["hidden"], job["bases"])
    how = (job["embedding_lr"], seed, job["embedding_decay"])

    def damaged(error: PenstockError) -> None:
        member.drop_damaged(error, "its rows")

    reads_layers = job["module"] is not None or job["model"] not in WITHOUT_LAYERS
    scorer = None if reads_layers else job["scorer"]

    def owned(name: str, part: int) -> OwnedEmbedding:
        count = partition.book.count(name)
        optimiser = row_optimiser(job["embedding_optimiser"], reads_layers, count, job["batch_size"])
        initial = initial_rows(job["embedding_init"], scorer, count, width, job["margin"], job["distance"])
        return own_embedding(folder, partition, part, name, width, optimiser, *how, damaged, initial)

    return {
        (name, part): owned(name, part)
        for part, graph in graphs.items()
        for name, nodes in graph.nodes.items()
        if job["features"] not in nodes.fields
    }


def serve_shared_memory(member: Member) -> None:
    """Answer the requests "memory" and "memory-held". The memory has no name outside this process, which keeps it open:
    however the run ends, it is freed.
    """
    made: dict[str, int] = {}
    lock = threading.Lock()

    def memory(message: Message, sender: str) -> Message:
        wanted = checked(message, MemoryRequest)
        with lock:
            if wanted.name not in made:
                made[wanted.name] = _new_memory(wanted.bytes)
            number = made[wanted.name]
        if os.fstat(number).st_size != wanted.bytes:
            raise PenstockError(
                f"{wanted.name!r} has {os.fstat(number).st_size:,} bytes and not {wanted.bytes:,}: run the same release"
                " in all tasks.",
                code="malformed-message",
            )
        return Message("memory", {"path": f"/proc/{os.getpid()}/fd/{number}"})

    def held(message: Message, sender: str) -> Message:
        with lock:
            return Message("memory-held", {"bytes": sum(512 * os.fstat(each).st_blocks for each in made.values())})

    member.endpoint.serve("memory", memory)
    member.endpoint.serve("memory-held", held)


def _new_memory(size: int) -> int:
    """The descriptor of so many bytes, which take no memory before they are written."""
    file = os.memfd_create("penstock", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, size)
    except (OSError, OverflowError) as error:
        os.close(file)
        raise PenstockError(
            f"The system refuses {size:,} bytes of shared memory ({error}): place what is pinned on host or device.",
            code="out-of-memory",
        ) from None
    return file


_READ = 1 << 20
"""Rows of a column that are read at a time."""


def serve_descriptions(member: Member, graphs: dict[int, Graph]) -> None:
    """Answer the requests "part", "splits", "different-labels" and "nan-times"."""
    found: dict[tuple[Any, ...], Array | None] = {}
    lock = threading.Lock()

    def part_of(message: Message) -> Graph:
        part = message.body.get("part")
        if part not in graphs:
            raise PenstockError(
                f"{member.setup.task.id} does not hold part {part!r}: ask the task that holds it.", code="not-available"
            )
        return graphs[part]

    def describe(message: Message, sender: str) -> Message:
        return Message("part", described(part_of(message), str(message.body.get("label"))))

    def nodes_of(message: Message) -> NodeSet:
        nodes = part_of(message).nodes.get(str(message.body.get("node_type")))
        if nodes is None:
            raise PenstockError(
                f"There are no vertices of type {message.body.get('node_type')!r}.", code="unknown-name"
            )
        return nodes

    def column_of(message: Message) -> tuple[str, Array]:
        nodes, name = nodes_of(message), str(message.body.get("field"))
        values = nodes.fields.get(name)
        if values is None or values.dtype.kind not in "biuf" or math.prod(values.shape[1:]) != 1:
            raise PenstockError(f"There is no column of numbers {name!r} of these vertices.", code="field-missing")
        return name, values

    def different(message: Message, sender: str) -> Message:
        """Answer with the different labels of a part, each once; without an array where there are too many."""
        name, values = column_of(message)
        key = message.body["part"], message.body["node_type"], name
        with lock:
            if key not in found:
                blocks = (values[first:last] for first, last in ranges(len(values), _READ))
                found[key] = different_values(column(values[:0]), blocks)
                release_pages(values)
        labels = found[key]
        return Message("different-labels", {}, () if labels is None else (labels,))

    def nan_times(message: Message, sender: str) -> Message:
        """Answer with how many times of a part are NaN, and the new number of the first such vertex (-1: none)."""
        name, values = column_of(message)
        nodes, rows, first = nodes_of(message), 0, -1
        if values.dtype.kind == "f":
            rows, first = nodes.facts.of(f"field.{file_name(name)}", values, "NaN", nan_rows)
        return Message("nan-times", {"rows": rows, "first": first + nodes.first if rows else -1})

    def splits(message: Message, sender: str) -> Message:
        nodes = nodes_of(message)
        # Rows of a part are numbered from its first.
        rows = tuple(np.asarray(rows, np.int64) + nodes.first for rows in nodes.splits.values())
        return Message("splits", {"names": list(nodes.splits)}, rows)

    member.endpoint.serve("part", describe)
    member.endpoint.serve("splits", splits)
    member.endpoint.serve("different-labels", different)
    member.endpoint.serve("nan-times", nan_times)


def described(graph: Graph, label: str) -> dict[str, Any]:
    """A part's description in plain values; only the labels' words are included, as other fields may have many."""
    nodes = {
        name: {"count": nodes.count, "fields": list(nodes.fields), "words": nodes.categories.get(label)}
        for name, nodes in graph.nodes.items()
    }
    edges = [
        {"type": list(kind), "count": edges.count, "fields": list(edges.fields)} for kind, edges in graph.edges.items()
    ]
    return {"nodes": nodes, "edges": edges, "bytes": graph.nbytes}
