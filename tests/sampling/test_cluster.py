"""Cluster-GCN: whole clusters, the links among them, and clusters from partitions."""

import numpy as np
import pytest
from batch_contract import assert_same_on_threads, assert_valid_batch, neighbours, small_graphs, two_relations
from hypothesis import given
from hypothesis import strategies as st

from penstock.partition import Cut, cut
from penstock.sampling.block import BatchKey
from penstock.sampling.cluster import ClusterSampler, clusters_from, clusters_of
from random_graphs import directed_graph, mesh_graph, power_law_graph
from refusals import refused

KEY = BatchKey(0, 0, 0)


@given(small_graphs, st.integers(1, 6), st.integers(1, 3), st.integers(0, 99))
def test_a_batch_is_the_subgraph_of_its_clusters(graph, count, layers, seed):
    rng = np.random.default_rng(seed)
    clusters = rng.integers(0, count, graph.num_nodes)
    train = rng.permutation(graph.num_nodes)[: 1 + graph.num_nodes // 2]
    sampler = ClusterSampler(graph, clusters, train, layers)
    np.testing.assert_array_equal(sampler.items, np.unique(clusters))
    items = rng.permutation(sampler.items)[:2]
    batch = sampler.sample(items, KEY)
    assert_valid_batch(graph, batch)
    assert len(batch.blocks) == layers
    assert batch.seed_weights is None
    members = np.flatnonzero(np.isin(clusters, items))
    assert set(batch.vertices["node"]) == set(members)
    assert set(batch.seeds["node"]) == set(members) & set(train)
    for block in batch.blocks:
        assert block.weights is None
        for row in range(block.num_dst):
            inside = neighbours(graph, batch.vertices["node"][row])
            inside = inside[np.isin(inside, members)]
            np.testing.assert_array_equal(
                batch.vertices["node"][block.indices[block.indptr[row] : block.indptr[row + 1]]], inside
            )


def test_an_epoch_has_every_training_vertex_once():
    graph = power_law_graph(300)
    sampler = ClusterSampler(graph, np.arange(300) % 10, graph.split("train"))
    seeds = [sampler.sample(sampler.items[i : i + 2], KEY).seeds["node"] for i in range(0, 10, 2)]
    np.testing.assert_array_equal(np.sort(np.concatenate(seeds)), graph.split("train"))


def test_the_same_batches_on_any_number_of_threads():
    graph = power_law_graph()
    sampler = ClusterSampler(graph, np.arange(2000) % 24, graph.split("train"))
    assert_same_on_threads(lambda i: sampler.sample(sampler.items[[i, (i + 5) % 24]], BatchKey(0, 0, i)))


@pytest.mark.parametrize("trainers", [1, 2])
def test_clusters_of_a_partition_are_its_parts(tmp_path, trainers):
    graph = mesh_graph(12)
    partition = cut(graph, Cut(3, trainers), tmp_path / "p")
    clusters = clusters_from(partition)
    assert len(clusters) == graph.num_nodes
    for part in range(3):
        for trainer in range(trainers):
            share = np.arange(*partition.book.range(part, trainer=trainer))
            members = np.flatnonzero(clusters == part * trainers + trainer)
            np.testing.assert_array_equal(np.sort(partition.original()[share]), members)


def test_clusters_of_a_graph_have_few_edges_between_them():
    graph = mesh_graph(20)
    clusters = clusters_of(graph, 8)
    np.testing.assert_array_equal(clusters, clusters_of(graph, 8, seed=0))
    counts = np.bincount(clusters, minlength=8)
    assert counts.max() <= 1.1 * counts.mean() + 1
    edges = next(iter(graph.edges.values()))
    assert (clusters[edges.indices] != clusters[edges.destinations()]).mean() < 0.3


def test_bad_requests_get_a_sentence():
    graph = directed_graph()
    train, clusters = graph.split("train"), np.arange(graph.num_nodes) % 7
    with refused("shape-mismatch 10 int64 1,500"):
        ClusterSampler(graph, clusters[:10], train)
    with refused("shape-mismatch"):
        ClusterSampler(graph, clusters / 2, train)
    with refused("unsupported-combination"):
        ClusterSampler(two_relations(), np.zeros(10, int), np.arange(3))
    with refused("value-out-of-range 0"):
        ClusterSampler(graph, clusters, train, 0)
    with refused("missing-data"):
        ClusterSampler(graph, clusters, train[:0])
    sampler = ClusterSampler(graph, clusters, train)
    with refused("id-out-of-range 7"):
        sampler.sample(np.array([3, 7]), KEY)
    with refused("duplicate"):
        sampler.sample(np.array([3, 3]), KEY)
    with refused("value-out-of-range 1"):
        clusters_of(graph, 1)
    with refused("unsupported-combination"):
        clusters_of(two_relations(), 3)
