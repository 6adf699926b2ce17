"""Rows of drawn edges from the stores of a cluster, each a process of its own, are those of the uncut graph."""

import numpy as np
import pytest

from cluster_runs import running_worker
from penstock import EdgeSet, Graph, NodeSet
from penstock.cluster.worker.cut_graph import Parts
from penstock.graph.csr import build_lists
from penstock.partition import Cut, cut
from penstock.sampling import BatchKey, NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.parts import parted_sampler
from penstock.store.source import LocalStore
from penstock.train.job import make_job

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
        job = make_job({"graph": str(partition.path)})
        with running_worker(partition, job, tmp_path / f"run{parts}", machines=machines) as worker:
            reached = Parts(worker)
            sampler = parted_sampler(partition, [5, 3], edges=True, local=reached.owned, channels=reached.lists)
            batch = sampler.sample({"paper": new} if typed else new, KEY)
            for layer, block in zip(whole.blocks, batch.blocks, strict=True):
                pairs = zip(layer.parts, block.parts, strict=True)
                for name, (one, other) in zip(layer.relations if typed else [RELATES], pairs, strict=True):
                    field = f"{'__'.join(name)}/v"
                    rows = reached.store.source(field).read(other.edges)
                    np.testing.assert_array_equal(rows, exact.source(field).read(one.edges))
            assert (reached.store.traffic() != {}) == (parts > 1)
