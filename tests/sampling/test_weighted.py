"""Weighted draws: in proportion, never an edge without weight, and sentences for weights that are none."""

import numpy as np
import pytest

from neighbourhoods import stars
from penstock.sampling import ALL, BatchKey, NeighbourSampler
from refusals import refused

KEY = BatchKey(0, 0, 0)


def counts_of(sampler, centres, leaves):
    batch = sampler.sample(centres, KEY)
    drawn = batch.vertices["node"][batch.blocks[0].indices]
    return np.array([(drawn == leaf).sum() for leaf in leaves]), batch.blocks[0]


def test_with_replacement_an_edge_is_drawn_in_proportion_to_its_weight():
    graph, centres, leaves = stars(5000, weights=[1, 2, 0, 4, 0.5], leaves=5)
    counts, block = counts_of(NeighbourSampler(graph, [3], True, "w"), centres, leaves)
    chance = np.array([1, 2, 0, 4, 0.5]) / 7.5
    assert (abs(counts - 15000 * chance) <= 5 * np.sqrt(15000 * chance * (1 - chance))).all()
    assert counts[2] == 0
    assert block.weights is None
    np.testing.assert_allclose(block.totals[:5000], 7.5)


def test_one_of_two_by_priority_is_drawn_with_the_known_chance():
    """w / u against v / u' with v <= w: the smaller wins with the chance v / 2w."""
    graph, centres, leaves = stars(8000, weights=[3, 1], leaves=2)
    counts, block = counts_of(NeighbourSampler(graph, [1], False, "w"), centres, leaves)
    assert abs(counts[1] - 8000 / 6) < 5 * np.sqrt(8000 * 5 / 36)
    assert (block.weights >= 1).all()


@pytest.mark.parametrize("fanout", [2, 3, 7, ALL])
@pytest.mark.parametrize("replace", [False, True])
def test_edges_of_weight_zero_are_never_drawn(fanout, replace):
    weights = [0, 1, 2, 0, 3, 0, 0]
    graph, centres, leaves = stars(300, weights=weights, leaves=7)
    counts, block = counts_of(NeighbourSampler(graph, [fanout], replace, "w"), centres, leaves)
    assert (counts[[0, 3, 5, 6]] == 0).all()
    if fanout == ALL or (fanout >= 3 and not replace):  # the whole list: the weights themselves
        np.testing.assert_array_equal(block.weights, np.tile([1, 2, 3], 300))


def test_a_list_without_weight_draws_nothing():
    graph, centres, _ = stars(10, weights=np.zeros(4), leaves=4)
    for replace in (False, True):
        batch = NeighbourSampler(graph, [2, ALL], replace, "w").sample(centres, KEY)
        assert batch.num_edges == 0
        np.testing.assert_array_equal(batch.blocks[0].totals, np.zeros(10))


def test_equal_weights_stand_for_equal_shares():
    graph, centres, _ = stars(50, weights=np.full(20, 2.0), leaves=20)
    block = NeighbourSampler(graph, [5], False, "w").sample(centres, KEY).blocks[0]
    assert (np.diff(block.indptr) == 5).all()
    assert len(np.unique(block.indices + 1000 * block.destinations())) == 250  # no edge twice
    thresholds = block.weights.reshape(50, 5)
    assert (thresholds == thresholds[:, :1]).all()


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_weights_get_a_sentence(bad):
    graph, *_ = stars(2, weights=[1, bad, 1], leaves=3)
    with refused("not-finite node__to__node 2 1"):
        NeighbourSampler(graph, [1], weight="w")


def test_fields_that_cannot_weigh_get_a_sentence():
    graph, *_ = stars(2, weights=[3e38, 3e38], leaves=2)
    with refused("value-out-of-range float32"):
        NeighbourSampler(graph, [1], weight="w")
    with refused("field-missing v"):
        NeighbourSampler(graph, [1], weight="v")
    fields = graph.edges["node", "to", "node"].fields
    fields["v"] = np.ones((4, 2), np.float32)
    with refused("wrong-type"):
        NeighbourSampler(graph, [1], weight="v")
