"""FastGCN and LADIES: valid, repeatable, unbiased, and drawn by the chances they promise."""

import numpy as np
import pytest
from batch_contract import (
    aggregate,
    assert_same_batch,
    assert_same_on_threads,
    assert_unbiased,
    assert_valid_batch,
    exact_sums,
    neighbours,
    renumbered,
    small_graphs,
    two_relations,
)
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph.hashing import key_of
from penstock.sampling.block import BatchKey
from penstock.sampling.homogeneous import Distribution, importance, whole_graph
from penstock.sampling.layerwise import FastGCN, Ladies
from random_graphs import directed_graph, power_law_graph
from refusals import refused

BOTH = pytest.mark.parametrize("kind", [FastGCN, Ladies])
PLAIN = np.empty(0, np.int64)


@BOTH
@given(small_graphs, st.lists(st.integers(1, 12), min_size=1, max_size=3), st.integers(0, 99))
def test_batches_keep_the_contract(kind, graph, sizes, seed):
    seeds = np.random.default_rng(seed).permutation(graph.num_nodes)[: 1 + seed % 5]
    batch = kind(graph, sizes).sample(seeds, BatchKey(seed, 0, 0))
    np.testing.assert_array_equal(batch.seeds["node"], seeds)
    assert_valid_batch(graph, batch)
    for block, size in zip(reversed(batch.blocks), sizes, strict=True):
        assert len(np.unique(block.indices)) <= size
        assert len(set(block.indices) | set(range(block.num_dst))) == block.num_src  # no row that nobody reads
        for row in np.unique(block.indices):  # one weight a source
            assert len(np.unique(block.weights[block.indices == row])) == 1
        for row in range(block.num_dst):  # all edges from a drawn vertex, parallel ones too
            drawn = batch.vertices["node"][block.indices[block.indptr[row] : block.indptr[row + 1]]]
            whole = neighbours(graph, batch.vertices["node"][row])
            np.testing.assert_array_equal(
                drawn, whole[np.isin(whole, batch.vertices["node"][np.unique(block.indices)])]
            )


@BOTH
def test_the_estimate_of_a_sum_is_right(kind):
    graph = power_law_graph(200)
    values = np.random.default_rng(0).random(200)
    sampler = kind(graph, [30])
    estimates = []
    for batch in range(3000):
        found = sampler.sample(np.arange(40), BatchKey(3, 0, batch))
        estimates.append(aggregate(found.blocks[0], values[found.vertices["node"]]))
    assert_unbiased(estimates, exact_sums(graph, values)[:40])


@BOTH
def test_two_linear_layers_are_unbiased_too(kind):
    graph = power_law_graph(100)
    values = np.random.default_rng(0).random(100)
    sampler = kind(graph, [25, 40])
    estimates = []
    for batch in range(3000):
        found = sampler.sample(np.arange(20), BatchKey(4, 0, batch))
        inner = aggregate(found.blocks[0], values[found.vertices["node"]])
        estimates.append(aggregate(found.blocks[1], inner))
    assert_unbiased(estimates, exact_sums(graph, exact_sums(graph, values))[:20])


def test_importance_is_the_squared_column_norm():
    graph = directed_graph(40, 200)
    matrix = np.zeros((40, 40))
    for v in range(40):
        for u in neighbours(graph, v):
            matrix[v, u] = 1 / len(neighbours(graph, v))
    edges = next(iter(graph.edges.values()))
    expected = np.zeros(40)
    np.add.at(expected, edges.indices, matrix[edges.destinations(), edges.indices] ** 2)
    np.testing.assert_allclose(importance(whole_graph(graph, "test")), expected)


def test_draws_follow_their_masses():
    mass = np.array([0.0, 3.0, 0.0, 1.0, 6.0, 0.0])
    drawn, chances = Distribution(mass, PLAIN).draw(key_of(0, "test"), 20_000)
    np.testing.assert_allclose(chances, mass[drawn] / 10)
    counts = np.bincount(drawn, minlength=6)
    spread = np.sqrt(20_000 * mass / 10 * (1 - mass / 10))
    assert (np.abs(counts - 2000 * mass) <= 5 * spread).all()


def test_ladies_is_exact_when_all_neighbours_fit():
    graph = power_law_graph(200)
    values = np.random.default_rng(0).random(200)
    found = Ladies(graph, [200]).sample(np.arange(40), BatchKey(0, 0, 0))
    np.testing.assert_allclose(
        aggregate(found.blocks[0], values[found.vertices["node"]]), exact_sums(graph, values)[:40]
    )


@BOTH
def test_the_same_batches_on_any_number_of_threads(kind):
    sampler = kind(power_law_graph(), [100, 200])
    seeds = np.random.default_rng(0).permutation(2000).reshape(40, 50)
    assert_same_on_threads(lambda i: sampler.sample(seeds[i], BatchKey(7, 0, i)))


@BOTH
def test_the_numbering_does_not_matter(kind):
    graph = power_law_graph(500)
    original = np.random.default_rng(1).permutation(500)
    seeds = np.arange(0, 500, 20)
    whole = kind(graph, [40, 60]).sample(seeds, BatchKey(0, 0, 0))
    moved = kind(renumbered(graph, original), [40, 60], original).sample(np.argsort(original)[seeds], BatchKey(0, 0, 0))
    moved.seeds["node"], moved.vertices["node"] = original[moved.seeds["node"]], original[moved.vertices["node"]]
    assert_same_batch(whole, moved)


@BOTH
def test_bad_requests_get_a_sentence(kind):
    graph = directed_graph()
    for sizes in ([], [0], [5, -1]):
        with refused("value-out-of-range"):
            kind(graph, sizes)
    with refused(f"unsupported-combination {kind.__name__}"):
        kind(two_relations(), [2])
    sampler = kind(graph, [20])
    with refused("duplicate 7"):
        sampler.sample(np.array([7, 3, 7]), BatchKey(0, 0, 0))
    with refused("id-out-of-range"):
        sampler.sample(np.array([-1]), BatchKey(0, 0, 0))
    assert_valid_batch(graph, sampler.sample(np.array([7, 3]), BatchKey(0, 0, 0)))  # the next batch is not spoilt
