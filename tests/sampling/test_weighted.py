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


LONG = np.concatenate([np.full(300, 0.25), np.zeros(40), [90.0, 30.0, 30.0], np.linspace(0.1, 3, 400)])
"""The weights of a list that is drawn from by running masses."""


def drawn_long(fanout, replace=False, batches=6, weights=LONG):
    """The edges and weights that some centres of the same long list draw, a row for each, and the weights there are."""
    graph, centres, _ = stars(700, weights=weights, leaves=len(weights))
    sampler = NeighbourSampler(graph, [fanout], replace, "w", edges=True)
    blocks = [sampler.sample(centres, BatchKey(2, 0, batch)).blocks[0] for batch in range(batches)]
    positions = np.concatenate([block.edges.reshape(700, -1) % len(weights) for block in blocks])
    found = None if replace else np.concatenate([block.weights.reshape(700, -1) for block in blocks])
    return positions, found


@pytest.mark.parametrize("fanout", [1, 5, 12])
def test_long_lists_are_drawn_in_proportion_without_repeats_and_without_bias(fanout):
    positions, weights = drawn_long(fanout)
    assert (np.diff(positions, axis=1) > 0).all() and (LONG[positions] > 0).all()
    values = np.cos(np.arange(len(LONG)))
    for value in (np.ones(len(LONG)), values, np.arange(len(LONG)) == 340):
        sums = (weights * value[positions]).sum(1)
        assert abs(sums.mean() - LONG @ value) <= 5 * sums.std() / np.sqrt(len(sums)) + 1e-3
    first = (positions == 340).any(1).mean()
    if fanout == 1:
        assert first == pytest.approx(90 / LONG.sum(), abs=5 * np.sqrt(0.1 * 0.9 / len(positions)))


def test_long_lists_are_drawn_about_as_often_as_by_priorities():
    """The chances of both kinds of ranks differ by little where no edge has much of the weight."""
    weights = np.linspace(0.2, 3, 400)
    by_sums, estimates = drawn_long(8, weights=weights)
    graph, centres, _ = stars(700, weights=weights, leaves=400)
    nothing = np.stack([np.zeros(700, np.int64), centres])  # excludes no edge of the lists, which are passed over then
    sampler = NeighbourSampler(graph, [8], False, "w", edges=True)
    blocks = [sampler.sample(centres, BatchKey(3, 0, k), exclude=nothing).blocks[0] for k in range(6)]
    by_priority = np.concatenate([block.edges for block in blocks]) % 400
    counts = [np.bincount(each.ravel() // 50, minlength=8) for each in (by_sums, by_priority)]
    assert (abs(counts[0] - counts[1]) <= 5 * np.sqrt(counts[0] + counts[1]) + 0.02 * counts[0]).all()
    other = np.concatenate([block.weights for block in blocks]).reshape(-1, 8).sum(1)
    assert estimates.sum(1).std() < 1.5 * other.std() and other.std() < 1.5 * estimates.sum(1).std()


def test_long_lists_with_replacement():
    positions, _ = drawn_long(4, replace=True)
    counts = np.bincount(positions.ravel(), minlength=len(LONG))
    expected = positions.size * LONG / LONG.sum()
    assert (counts[LONG == 0] == 0).all()
    assert (abs(counts - expected) <= 6 * np.sqrt(expected) + 1e-9).all()


def test_a_long_list_with_few_weights_is_taken_whole():
    weights = np.zeros(500)
    weights[[3, 70, 450]] = [2.0, 1e-30, 5.0]
    positions, found = drawn_long(5, weights=weights)
    np.testing.assert_array_equal(positions, np.tile([3, 70, 450], (len(positions), 1)))
    np.testing.assert_array_equal(found, np.tile(weights[[3, 70, 450]].astype(np.float32), (len(found), 1)))


def test_series_of_ranks():
    from penstock.sampling.weighted_draws import chance_below, exponential

    for bits in [0, 1 << 11, (1 << 63) - 1, 1 << 63, 0x9E3779B97F4A7C15, (1 << 64) - 1]:
        expected = -np.log(((bits >> 11) + 1) / 2**53)
        assert exponential(np.uint64(bits)) == pytest.approx(expected, rel=1e-9, abs=1e-15)
    for x in [0.0, 1e-12, 1e-3, 0.5, 2.0, 9.0, 39.0, 1e9]:
        assert chance_below(x) == pytest.approx(-np.expm1(-x), rel=1e-9)
