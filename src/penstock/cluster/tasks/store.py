"""The store: holds a machine's parts and answers requests for their rows and lists."""

from pathlib import Path
from typing import Any

import numpy as np

from penstock.cluster.checked_parts import checked_part
from penstock.cluster.member import Member
from penstock.cluster.replica_rows import held_rows, replicas_on
from penstock.cluster.setup import Setup
from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.graph.hashing import seed_of
from penstock.graph.output_files import make_private_folder
from penstock.nn.layer_table import WITHOUT_LAYERS
from penstock.nn.scorer_table import initial_rows
from penstock.partition import Partition, open_partition
from penstock.sampling.explained.part_draw import serve_explained_draws
from penstock.sampling.parts import OwnedPart, serve_lists
from penstock.store.embedding import row_optimiser
from penstock.store.parts import EmbeddingService, OwnedEmbedding, StoreService, own_embedding
from penstock.store.parts.replicas import ReplicaService
from penstock.wire import Message

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
        EmbeddingService(member.endpoint, _embeddings(member, partition, graphs))
        copies = ReplicaService(member.endpoint)
        member.announce()
        if replicas_on(member):
            # Rows may have to come from other stores, which wait for nobody once they have announced themselves.
            member.await_tasks("store")
            copies.hold(dict(held_rows(member, partition, graphs)))
        member.stopped.wait()
    return 0


def _embeddings(
    member: Member, partition: Partition, graphs: dict[int, Graph]
) -> dict[tuple[str, int], OwnedEmbedding]:
    """Learnable rows of the types without features, kept in the run folder."""
    # The controller has checked the job. What checks it imports torch, which a store does without.
    job, folder = member.setup.job, make_private_folder(Path(member.setup.run) / "embeddings")
    seed = seed_of(job["seed"], job["draws"])
    width, how = job["embedding"], (job["embedding_lr"], seed, job["embedding_decay"])

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


def serve_descriptions(member: Member, graphs: dict[int, Graph]) -> None:
    """Answer the requests "part" and "splits"."""

    def part_of(message: Message) -> Graph:
        part = message.body.get("part")
        if part not in graphs:
            raise PenstockError(
                f"{member.setup.task.id} does not hold part {part!r}: ask the task that holds it.", code="not-available"
            )
        return graphs[part]

    def describe(message: Message, sender: str) -> Message:
        return Message("part", described(part_of(message), str(message.body.get("label"))))

    def splits(message: Message, sender: str) -> Message:
        nodes = part_of(message).nodes.get(str(message.body.get("node_type")))
        if nodes is None:
            raise PenstockError(
                f"There are no vertices of type {message.body.get('node_type')!r}.", code="unknown-name"
            )
        # Inside a part rows count from its first.
        rows = tuple(np.asarray(rows, np.int64) + nodes.first for rows in nodes.splits.values())
        return Message("splits", {"names": list(nodes.splits)}, rows)

    member.endpoint.serve("part", describe)
    member.endpoint.serve("splits", splits)


def described(graph: Graph, label: str) -> dict[str, Any]:
    """What a part holds, in plain values; of the fields' words only those of the labels, as others may be many."""
    nodes = {
        name: {"count": nodes.count, "fields": list(nodes.fields), "words": nodes.categories.get(label)}
        for name, nodes in graph.nodes.items()
    }
    edges = [
        {"type": list(kind), "count": edges.count, "fields": list(edges.fields)} for kind, edges in graph.edges.items()
    ]
    return {"nodes": nodes, "edges": edges, "bytes": graph.nbytes}
