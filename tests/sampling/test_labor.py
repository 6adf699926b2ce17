"""LABOR-0: valid, repeatable, unbiased, and with fewer vertices than independent choices."""

import numpy as np
from batch_contract import (
    aggregate,
    assert_same_batch,
    assert_same_on_threads,
    assert_unbiased,
    assert_valid_batch,
    exact_sums,
    renumbered,
    small_graphs,
    two_relations,
)
from hypothesis import given
from hypothesis import strategies as st

from penstock import Graph, NodeSet
from penstock.sampling.block import BatchKey
from penstock.sampling.labor import Labor
from penstock.sampling.neighbours import NeighbourSampler
from random_graphs import directed_graph, power_law_graph
from refusals import refused


@given(small_graphs, st.lists(st.sampled_from([1, 2, 5, -1]), min_size=1, max_size=3), st.integers(0, 99))
def test_batches_keep_the_contract(graph, fanouts, seed):
    seeds = np.random.default_rng(seed).permutation(graph.num_nodes)[: 1 + seed % 5]
    batch = Labor(graph, fanouts).sample(seeds, BatchKey(seed, 0, 0))
    np.testing.assert_array_equal(batch.seeds["node"], seeds)
    assert_valid_batch(graph, batch)
    degrees = np.diff(graph.indptr)
    for block, fanout in zip(reversed(batch.blocks), fanouts, strict=True):
        for row in range(block.num_dst):
            degree = degrees[batch.vertices["node"][row]]
            weights = block.weights[block.indptr[row] : block.indptr[row + 1]]
            if fanout < 0 or degree <= fanout:
                assert len(weights) == degree
                assert (weights == 1).all()
            else:
                assert (weights == np.float32(degree) / np.float32(fanout)).all()


def test_destinations_agree_on_sources():
    """A source taken by a destination is taken by all its other destinations whose lists are no longer."""
    graph = power_law_graph(300)
    batch = Labor(graph, [4]).sample(np.arange(100), BatchKey(0, 0, 0))
    degrees = np.diff(graph.indptr)
    block = batch.blocks[0]
    rows = [set(batch.vertices["node"][block.indices[block.indptr[i] : block.indptr[i + 1]]]) for i in range(100)]
    for v in range(100):
        for u in rows[v]:
            for other in range(100):
                if degrees[other] <= degrees[v] and u in graph.indices[graph.indptr[other] : graph.indptr[other + 1]]:
                    assert u in rows[other]


def test_the_estimate_of_a_sum_is_right():
    graph = power_law_graph(200)
    values = np.random.default_rng(0).random(200)
    sampler = Labor(graph, [4])
    estimates = []
    for batch in range(2000):
        found = sampler.sample(np.arange(50), BatchKey(3, 0, batch))
        estimates.append(aggregate(found.blocks[0], values[found.vertices["node"]]))
    assert_unbiased(estimates, exact_sums(graph, values)[:50])


def test_the_number_drawn_is_the_fanout_in_the_mean_and_batches_are_smaller():
    graph = power_law_graph()
    hubs = np.argsort(-np.diff(graph.indptr))[:200]
    shared, alone = Labor(graph, [6]), NeighbourSampler(graph, [6])
    batches = [shared.sample(hubs, BatchKey(0, 0, i)) for i in range(300)]
    assert_unbiased([np.diff(batch.blocks[0].indptr) for batch in batches], np.full(200, 6))
    independent = [len(alone.sample(hubs, BatchKey(0, 0, i)).vertices["node"]) for i in range(30)]
    assert np.mean([len(batch.vertices["node"]) for batch in batches]) < 0.9 * np.mean(independent)


def test_neighbouring_batches_can_share_their_draws():
    """A batch is drawn with the numbers of the first that it shares them with, and reads much of what that read."""
    graph = power_law_graph()
    seeds = np.random.default_rng(0).permutation(graph.num_nodes)[:400].reshape(8, 50)
    shared, alone = Labor(graph, [5, 5], shared_draws=4), Labor(graph, [5, 5])
    batches = [shared.sample(some, BatchKey(1, 2, number)) for number, some in enumerate(seeds)]
    for number, (some, batch) in enumerate(zip(seeds, batches, strict=True)):
        assert_same_batch(batch, alone.sample(some, BatchKey(1, 2, number - number % 4)))
    apart = [alone.sample(some, BatchKey(1, 2, number)) for number, some in enumerate(seeds)]
    read, read_apart = (
        np.unique(np.concatenate([batch.vertices["node"] for batch in some[:4]])) for some in (batches, apart)
    )
    assert len(read) < 0.8 * len(read_apart)


def test_the_same_batches_on_any_number_of_threads():
    sampler = Labor(power_law_graph(), [5, 4, 3])
    seeds = np.random.default_rng(0).permutation(2000).reshape(40, 50)
    assert_same_on_threads(lambda i: sampler.sample(seeds[i], BatchKey(7, 0, i)))


def test_original_numbers_name_vertices_in_the_hash():
    graph = power_law_graph(500)
    original = np.random.default_rng(1).permutation(500)
    seeds = np.arange(0, 500, 20)
    whole = Labor(graph, [5, 5]).sample(seeds, BatchKey(0, 0, 0))
    moved = Labor(renumbered(graph, original), [5, 5], original).sample(np.argsort(original)[seeds], BatchKey(0, 0, 0))
    moved.seeds["node"], moved.vertices["node"] = original[moved.seeds["node"]], original[moved.vertices["node"]]
    assert_same_batch(whole, moved)


def test_bad_requests_get_a_sentence():
    graph = directed_graph()
    for fanouts in ([], [0], [5, -2]):
        with refused("value-out-of-range"):
            Labor(graph, fanouts)
    with refused("unsupported-combination"):
        Labor(two_relations(), [2])
    edges = next(iter(graph.edges.values()))
    part = Graph({"node": NodeSet(graph.num_nodes, total=9999)}, {("node", "to", "node"): edges}, "part0")
    with refused("whole-graph-needed part0"):
        Labor(part, [2])
    with refused("missing-data bare"):
        Labor(Graph({"node": NodeSet(3)}, {}, "bare"), [2])
    with refused("shape-mismatch 3"):
        Labor(graph, [2], np.arange(3))
    sampler = Labor(graph, [2])
    with refused("duplicate 7"):
        sampler.sample(np.array([7, 3, 7]), BatchKey(0, 0, 0))
    with refused("id-out-of-range"):
        sampler.sample(np.array([1 << 40]), BatchKey(0, 0, 0))
    assert_valid_batch(graph, sampler.sample(np.array([7, 3]), BatchKey(0, 0, 0)))  # the next batch is not spoilt
