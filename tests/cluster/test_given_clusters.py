"""Cluster-GCN's clusters: found once by the first worker as one machine finds them, and given to the others."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from wired import template_for, wired

from penstock import PenstockError
from penstock.cluster.worker import batch_source
from penstock.cluster.worker.batch_source import clusters_for, offer_clusters
from penstock.partition import Cut, cut, open_partition
from penstock.sampling.cluster import clusters_from, clusters_of
from penstock.sampling.parts import OwnedPart, RelationReader
from random_graphs import mesh_graph
from refusals import refused

GRAPH = mesh_graph(12)
JOB = SimpleNamespace(clusters=6, seed=3)


@pytest.fixture
def workers(tmp_path):
    """Two workers' views of a cut graph, all of which is here."""
    partition = cut(GRAPH, Cut(3, 1, "random", tolerance=2.0), tmp_path / "cut")
    owned = {part: OwnedPart.of(partition, part) for part in range(3)}
    endpoint, members = wired(template_for(2, tmp_path), {}, [0, 1])
    reader = RelationReader(partition, owned, None)
    yield [
        SimpleNamespace(
            member=member, partition=partition, owned=owned, lists=None, reader=reader, edge_types=list(GRAPH.edges)
        )
        for member in members
    ]
    for member in members:
        member.close()
    endpoint.close()


def test_all_have_those_of_one_machine(workers, monkeypatch):
    """In several pieces, for one that asks before they are found."""
    monkeypatch.setattr(batch_source, "_PIECE", 50)
    found = []
    asking = threading.Thread(target=lambda: found.append(clusters_for(workers[1], JOB)))
    asking.start()
    own = clusters_for(workers[0], JOB)
    asking.join()
    np.testing.assert_array_equal(own, clusters_of(GRAPH, 6, 3))
    np.testing.assert_array_equal(found[0], own)


def test_they_are_found_once(workers, tmp_path, monkeypatch):
    first = offer_clusters(workers[0], JOB)
    monkeypatch.setattr(batch_source, "clusters_of", None)
    np.testing.assert_array_equal(offer_clusters(workers[0], JOB), first)
    whole = (tmp_path / "clusters.npy").read_bytes()
    np.save(tmp_path / "clusters.npy", first[:5])
    for content in (None, b"", whole[:40], whole[:-8]):
        if content is not None:
            (tmp_path / "clusters.npy").write_bytes(content)
        with refused("damaged-file 144"):
            offer_clusters(workers[0], JOB)


def test_the_parts_of_a_partition(workers, tmp_path):
    cut(GRAPH, Cut(4), tmp_path / "four")
    job = SimpleNamespace(clusters=str(tmp_path / "four"), unchecked=False)
    np.testing.assert_array_equal(clusters_for(workers[0], job), clusters_from(open_partition(tmp_path / "four")))


def test_a_partition_of_another_graph_is_refused(workers, tmp_path):
    cut(mesh_graph(5), Cut(2), tmp_path / "other")
    with refused("shape-mismatch 25 144"):
        clusters_for(workers[0], SimpleNamespace(clusters=str(tmp_path / "other"), unchecked=False))


def test_nobody_asks_when_the_run_is_over(workers, monkeypatch):
    workers[1].member.stopped.set()
    monkeypatch.setattr(workers[1].member.endpoint.channel("worker-0", "state"), "call", _lost)
    with refused("closed"):
        clusters_for(workers[1], JOB)


def _lost(message):
    raise PenstockError("It is not there.", code="unexpected-failure")
