"""Rows of drawn edges from the stores of a cluster, each a process of its own, are those of the uncut graph."""

from contextlib import contextmanager

import numpy as np
import pytest

from forks import ForkedTask
from penstock import EdgeSet, Graph, NodeSet
from penstock.cluster.layout import CONTROLLER, Setup, lay_out
from penstock.cluster.member import Member
from penstock.cluster.worker.cut_graph import Parts
from penstock.graph.csr import build_lists
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.partition import Cut, cut
from penstock.sampling import BatchKey, NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.parts import parted_sampler
from penstock.store.source import LocalStore
from penstock.train.job import make_job
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.transport.tls import make_credentials

KEY = BatchKey(3, 1, 4)
RELATES, WRITES = ("paper", "to", "paper"), ("author", "writes", "paper")


def made_graph(typed):
    """Papers that cite each other, and where `typed` authors who write them; edges have rows of three numbers."""
    rng, counts = np.random.default_rng(0), {"paper": 200, "author": 40}
    edges = {}
    for kind in (RELATES, WRITES) if typed else (RELATES,):
        ends = counts[kind[0]], counts[kind[2]]
        indptr, indices, _ = build_lists(rng.integers(0, ends[0], 1500), rng.integers(0, ends[1], 1500), *ends)
        edges[kind] = EdgeSet(indptr, indices, {"v": rng.random((1500, 3)).astype(np.float32)})
    nodes = {name: NodeSet(counts[name], {"x": rng.random((counts[name], 2), np.float32)}) for name in counts}
    return Graph({name: nodes[name] for name in counts if typed or name == "paper"}, edges, "rows")


@contextmanager
def running_stores(partition, machines, folder):
    """A worker's view of the parts while the stores of some machines run, each a process."""
    cluster = ClusterDocument(machines=[Machine(name=f"m{n}", workers=1) for n in range(machines)])
    layout = lay_out(cluster, partition.parts)
    keys = make_credentials([CONTROLLER, *(task.id for task in layout.tasks)])
    (folder / "logs").mkdir(parents=True)
    with Endpoint(keys[CONTROLLER], "127.0.0.1", cluster.wire) as controller:
        addresses = {}

        def here(message, sender):
            if message.body["ready"]:
                addresses[sender] = message.body["address"]
            return Message("here", addresses)

        controller.serve("here", here)
        controller.serve("beat", lambda message, sender: Message("beat"))
        template = Setup(
            task=layout.tasks[0],
            incarnation=0,
            credentials="",
            controller=controller.address,
            run=str(folder),
            partition=str(partition.path),
            job=make_job({"graph": str(partition.path)}).model_dump(mode="json"),
            cluster=cluster,
            layout=layout,
            addresses={},
        )

        def told(task):
            return template.model_copy(update={"task": task, "credentials": keys[task.id].to_json()})

        stores = [ForkedTask(told(task), folder / "logs" / f"{task.id}.log") for task in layout.of_kind("store")]
        try:
            with Member(told(layout.of_kind("worker")[0])) as worker:
                while len(addresses) < len(stores):
                    assert all(store.poll() is None for store in stores), (folder / "logs").iterdir()
                    worker.stopped.wait(0.01)
                worker.announce(ready=False)
                yield Parts(worker)
        finally:
            for store in stores:
                store.kill()


@pytest.mark.parametrize("typed", [pytest.param(False, marks=pytest.mark.long), True])
def test_rows_of_drawn_edges(tmp_path, typed):
    """One machine maps a part, the others' are asked of their stores, for draws and for rows."""
    graph = made_graph(typed)
    seeds = np.arange(0, 200, 9)
    kind = TypedNeighbourSampler if typed else NeighbourSampler
    whole = kind(graph, [5, 3], edges=True).sample({"paper": seeds} if typed else seeds, KEY)
    exact = LocalStore.of_graph(graph)
    for parts, machines in ((1, 1), (4, 3)):
        partition = cut(graph, Cut(parts, 2 if parts == 1 else 1, "random"), tmp_path / f"cut{parts}")
        new = partition.new_ids(seeds, "paper")
        with running_stores(partition, machines, tmp_path / f"run{parts}") as reached:
            sampler = parted_sampler(partition, [5, 3], edges=True, local=reached.owned, channels=reached.lists)
            batch = sampler.sample({"paper": new} if typed else new, KEY)
            for layer, block in zip(whole.blocks, batch.blocks, strict=True):
                pairs = zip(layer.parts, block.parts, strict=True)
                for name, (one, other) in zip(layer.relations if typed else [RELATES], pairs, strict=True):
                    field = f"{'__'.join(name)}/v"
                    rows = reached.store.source(field).read(other.edges)
                    np.testing.assert_array_equal(rows, exact.source(field).read(one.edges))
            assert (reached.store.traffic() != {}) == (parts > 1)
