"""Weights that count in sums and decide no draw: estimators of weighted lists, wherever the lists are."""

import numpy as np
import pytest

from penstock.sampling import BatchKey, NeighbourSampler, TypedNeighbourSampler
from random_graphs import power_law_graph


def weighted_graph():
    graph = power_law_graph(60, 6)
    (edges,) = graph.edges.values()
    edges.fields["w"] = np.random.default_rng(1).uniform(0, 2, edges.count)
    return graph, edges


def sums_of(block):
    return np.add.reduceat(np.append(block.weights, 0), block.indptr[:-1]) * (np.diff(block.indptr) > 0)


def test_draws_are_the_uniform_ones_and_whole_lists_weigh_what_they_weigh():
    graph, edges = weighted_graph()
    seeds, key = np.arange(60), BatchKey(0, 0, 1)
    plain = NeighbourSampler(graph, [3, 2], edges=True).sample(seeds, key)
    found = NeighbourSampler(graph, [3, 2], edges=True, weight="w", uniform=True).sample(seeds, key)
    for one, other in zip(plain.blocks, found.blocks, strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.edges, other.edges)
        lengths, drawn = np.diff(edges.indptr)[found.vertices["node"][: other.num_dst]], np.diff(other.indptr)
        factor = np.repeat(lengths / np.maximum(drawn, 1), drawn)
        np.testing.assert_allclose(other.weights, edges.fields["w"][other.edges] * factor, rtol=1e-6)
    whole = NeighbourSampler(graph, [-1], weight="w", uniform=True, edges=True).sample(seeds, key)
    by_weight = NeighbourSampler(graph, [-1], weight="w").sample(seeds, key)
    np.testing.assert_array_equal(whole.blocks[0].weights, by_weight.blocks[0].weights)
    np.testing.assert_array_equal(whole.blocks[0].totals, by_weight.blocks[0].totals)


@pytest.mark.parametrize("replace", [False, True])
def test_sums_are_unbiased(replace):
    graph, edges = weighted_graph()
    sampler = NeighbourSampler(graph, [2], replace, weight="w", uniform=True)
    found = [sums_of(sampler.sample(np.arange(60), BatchKey(0, 0, n)).blocks[0]) for n in range(800)]
    right = np.add.reduceat(np.append(edges.fields["w"], 0), edges.indptr[:-1]) * (np.diff(edges.indptr) > 0)
    spread = np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - right) <= 5 * spread + 1e-4)


def test_excluded_edges_count_nowhere():
    graph, edges = weighted_graph()
    v = int(np.argmax(np.diff(edges.indptr)))
    listed = edges.indices[edges.indptr[v] : edges.indptr[v + 1]]
    gone = np.stack([listed[:2], [v, v]])
    left = ~np.isin(listed, listed[:2])
    sampler = NeighbourSampler(graph, [2], weight="w", uniform=True)
    block = sampler.sample(np.array([v]), BatchKey(0, 0, 0), exclude=gone).blocks[0]
    weights = edges.fields["w"][edges.indptr[v] : edges.indptr[v + 1]][left]
    assert block.totals[0] == pytest.approx(weights.sum(), rel=1e-5)
    assert np.all(block.weights <= weights.max() * left.sum() / 2 + 1e-4)


def test_graphs_of_one_relation_are_sampled_alike_by_types():
    graph, _ = weighted_graph()
    how = {"weight": "w", "uniform": True, "edges": True}
    plain = NeighbourSampler(graph, [3], **how).sample(np.arange(9), BatchKey(0, 0, 0))
    typed = TypedNeighbourSampler(graph, [-1], **how).sample({"node": np.arange(9)}, BatchKey(0, 0, 0))
    (part,) = typed.blocks[0].parts
    assert part.weights is not None and plain.blocks[0].weights is not None
    whole = NeighbourSampler(graph, [-1], **how).sample(np.arange(9), BatchKey(0, 0, 0)).blocks[0]
    np.testing.assert_array_equal(part.weights, whole.weights)
