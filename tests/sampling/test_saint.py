"""GraphSAINT: induced, repeatable, with weights that make aggregates and losses unbiased."""

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
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.sampling.block import BatchKey
from penstock.sampling.saint import Saint
from random_graphs import directed_graph, power_law_graph
from refusals import refused

KINDS = pytest.mark.parametrize("kind", ["vertex", "edge", "walk"])
ITEM = np.array([0])


@KINDS
@given(small_graphs, st.integers(2, 12), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_batches_keep_the_contract(kind, graph, size, length, layers, seed):
    assume(graph.num_edges > 0)
    train = np.unique([*graph.indices[:1], *np.random.default_rng(seed).integers(0, graph.num_nodes, 5)])
    sampler = Saint(graph, train, kind, size, length, layers, presample=2)
    batch = sampler.sample(ITEM, BatchKey(seed, 0, 0))
    assert_valid_batch(graph, batch)
    assert len(batch.blocks) == layers
    assert set(batch.seeds["node"]) == set(train) & set(batch.vertices["node"])
    for block in batch.blocks:
        assert block.num_src == len(batch.vertices["node"])
        assert (block.weights >= 1 - 1e-6).all()
        for row in range(block.num_dst):  # every edge among the vertices
            inside = neighbours(graph, batch.vertices["node"][row])
            inside = inside[np.isin(inside, batch.vertices["node"])]
            np.testing.assert_array_equal(
                batch.vertices["node"][block.indices[block.indptr[row] : block.indptr[row + 1]]], inside
            )


CASES = pytest.mark.parametrize(
    ("kind", "size", "length"), [("vertex", 10, 1), ("edge", 6, 1), ("walk", 6, 1), ("walk", 4, 3)]
)


def collected(graph, kind, size, length, rounds):
    """Aggregates of every vertex whenever it was in, and the weighted losses of every batch."""
    values = np.random.default_rng(0).random(graph.num_nodes)
    sampler = Saint(graph, graph.split("train"), kind, size, length, layers=2, presample=100_000)
    sums, losses, sizes = [[] for _ in range(graph.num_nodes)], [], []
    for number in range(rounds):
        batch = sampler.sample(ITEM, BatchKey(5, 0, number))
        rows = aggregate(batch.blocks[0], values[batch.vertices["node"]])
        for vertex, total in zip(batch.vertices["node"], rows, strict=True):
            sums[vertex].append(total)
        losses.append((batch.seed_weights * values[batch.seeds["node"]]).sum())
        sizes.append(len(batch.vertices["node"]))
    return sampler, values, sums, losses, sizes


@CASES
@pytest.mark.parametrize("directed", [pytest.param(False, marks=pytest.mark.long), True])
def test_aggregates_and_losses_are_unbiased(kind, size, length, directed):
    graph = directed_graph(30, 90, seed=2) if directed else power_law_graph(30, 3)
    sampler, values, sums, losses, sizes = collected(graph, kind, size, length, 4000)
    exact = exact_sums(graph, values)
    degrees = np.diff(graph.indptr)
    # Later steps of walks are counted over 400,000 walks: a chance of 1 % is known to 1.6 %, most to better.
    slack = 0.02 if length > 1 else 0.0
    for vertex in range(graph.num_nodes):
        if degrees[vertex] and len(sums[vertex]) > 100:
            assert_unbiased(sums[vertex], exact[vertex], slack * degrees[vertex])
    linked = degrees + np.bincount(graph.indices, minlength=graph.num_nodes) > 0
    train = graph.split("train")
    counted = train[linked[train]] if kind == "edge" else train
    assert_unbiased(losses, values[counted].mean(), slack * values.mean())
    assert len(sampler.items) == np.ceil(graph.num_nodes / sampler._inclusion.sum())
    assert_unbiased(sizes, sampler._inclusion.sum(), slack * graph.num_nodes)


def test_walks_follow_edges_backwards_and_visit_the_steps_promised():
    graph = power_law_graph(200)
    sampler = Saint(graph, graph.split("train"), "walk", 1, 4, presample=10)
    for number in range(50):
        batch = sampler.sample(ITEM, BatchKey(0, 0, number))
        assert 2 <= len(batch.vertices["node"]) <= 5
        # Connected, and both directions are there.
        assert batch.blocks[0].num_edges >= 2 * (len(batch.vertices["node"]) - 1)


@KINDS
def test_the_same_batches_on_any_number_of_threads(kind):
    graph = power_law_graph()
    sampler = Saint(graph, graph.split("train"), kind, 100, presample=10)
    assert_same_on_threads(lambda i: sampler.sample(ITEM, BatchKey(7, 0, i)))
    first, other = sampler.sample(ITEM, BatchKey(7, 0, 0)), sampler.sample(ITEM, BatchKey(7, 1, 0))
    assert not np.array_equal(first.vertices["node"], other.vertices["node"])


@KINDS
def test_the_numbering_does_not_matter(kind):
    graph = power_law_graph(500)
    train = graph.split("train")
    original = np.random.default_rng(1).permutation(500)
    new = np.argsort(original)
    whole = Saint(graph, train, kind, 60, presample=10).sample(ITEM, BatchKey(0, 0, 0))
    moved = Saint(renumbered(graph, original), new[train], kind, 60, presample=10, original=original)
    batch = moved.sample(ITEM, BatchKey(0, 0, 0))
    batch.seeds["node"], batch.vertices["node"] = original[batch.seeds["node"]], original[batch.vertices["node"]]
    assert_same_batch(whole, batch)


def test_layers_share_their_arrays():
    graph = power_law_graph(200)
    batch = Saint(graph, graph.split("train"), "edge", 30, layers=3).sample(ITEM, BatchKey(0, 0, 0))
    assert batch.blocks[0] is batch.blocks[1]
    assert np.shares_memory(batch.blocks[1].indices, batch.blocks[2].indices)


def test_bad_requests_get_a_sentence():
    graph = directed_graph()
    train = graph.split("train")
    with refused("unknown-name node"):
        Saint(graph, train, "node")
    with refused("unsupported-combination"):
        Saint(two_relations(), np.arange(3))
    with refused("value-out-of-range 1"):
        Saint(graph, train, "vertex", 1)
    for wrong in ({"layers": 0}, {"walk_length": 0}):
        with refused("value-out-of-range"):
            Saint(graph, train, **wrong)
    with refused("value-out-of-range 1"):
        Saint(graph, train, "walk", presample=0)
    with refused("missing-data"):
        Saint(graph, train[:0])
    with refused("id-out-of-range"):
        Saint(graph, np.array([graph.num_nodes]))
    with refused("missing-data made"):
        Saint(directed_graph(10, 0), np.arange(3), "edge")
    with refused("value-out-of-range"):
        Saint(graph, train).sample(np.arange(2), BatchKey(0, 0, 0))
    original = np.random.default_rng(1).permutation(graph.num_nodes)
    with refused("option-missing"):
        Saint(renumbered(graph, original), train, "walk")
