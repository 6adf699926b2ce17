"""Draws with local and remote neighbours apart: inclusion probabilities, unbiasedness, and how many are remote."""

from itertools import pairwise

import numpy as np
import pytest

from penstock.graph.hashing import key_of
from penstock.sampling.explained import LEAST_REMOTE, draw_by_locality, expected_remote, inclusion_probabilities

NONE = np.empty(0, np.int64)
VERTICES, LIST, HOME = 60, 24, np.array([[0, 30], [50, 55]])
DRAWS = 4000


@pytest.fixture(scope="module")
def lists():
    """Lists of a few vertices: some local, some remote, an empty one, one without local neighbours."""
    rng = np.random.default_rng(3)
    found = [rng.choice(VERTICES, size, replace=False) for size in (LIST, 3, 0, 12)]
    found.append(np.arange(30, 50))
    indptr = np.concatenate([[0], np.cumsum([len(each) for each in found])])
    return indptr, np.concatenate(found).astype(np.int32)


@pytest.fixture(scope="module")
def scores():
    """Scores of some of the remote vertices."""
    scored = np.array([31, 33, 40, 41, 49, 57], np.int32)
    return scored, np.linspace(0.05, 1.0, len(scored))


def drawn(lists, scores, number, fanout=6, bias=0.1, readers=None, home=HOME):
    readers = np.arange(len(lists[0]) - 1) if readers is None else readers
    return draw_by_locality(*lists, NONE, NONE, home, *scores, 0.5, key_of(7, "{}", number), fanout, bias, readers)


def test_probabilities_add_up_and_are_in_proportion_below_one():
    rng, out = np.random.default_rng(0), np.empty(50)
    for expected in (0.3, 7.0, 31.5, 50.0):
        scores = rng.random(50) ** 4 + 0.01
        inclusion_probabilities(scores, expected, out)
        assert out.sum() == pytest.approx(expected)
        assert ((out > 0) & (out <= 1)).all()
        below = out < 1
        assert np.ptp(out[below] / scores[below]) < 1e-9 if below.any() else expected == 50.0
        assert (np.diff(out[np.argsort(scores)]) >= -1e-12).all()


def test_expected_remote_draws_follow_share_and_bias():
    assert expected_remote(10, 8, 20, 0.1) == pytest.approx(10 * 0.4 - 1)
    assert expected_remote(-1, 8, 20, 0.0) == 8
    assert expected_remote(10, 1, 20, 0.1) == pytest.approx(LEAST_REMOTE * 0.5)
    assert expected_remote(10, 0, 20, 0.1) == 0
    assert expected_remote(64, 3, 6, 0.1) == pytest.approx(3 - 0.6)


@pytest.mark.parametrize(("fanout", "bias"), [(6, 0.1), (6, 0.0), (2, 0.3), (-1, 0.1), (64, 0.05)])
def test_weighted_sums_are_unbiased(lists, scores, fanout, bias):
    indptr, indices = lists
    x = np.random.default_rng(1).normal(1.0, 1.0, (VERTICES, 3))
    exact = np.array([x[indices[a:b]].sum(0) for a, b in pairwise(indptr)])
    sums = np.zeros((DRAWS, *exact.shape))
    for number in range(DRAWS):
        offsets, positions, weights = drawn(lists, scores, number, fanout, bias)
        np.add.at(
            sums[number], np.repeat(np.arange(len(exact)), np.diff(offsets)), weights[:, None] * x[indices[positions]]
        )
    error = sums.std(0, ddof=1) / np.sqrt(DRAWS)
    assert (np.abs(sums.mean(0) - exact) <= 4 * error + 1e-5 * np.abs(exact)).all()


def test_every_edge_is_drawn_as_often_as_its_weight_says(lists, scores):
    counts, weight_of = np.zeros(len(lists[1])), np.full(len(lists[1]), np.nan)
    for number in range(DRAWS):
        _, positions, weights = drawn(lists, scores, number)
        assert len(np.unique(positions)) == len(positions)
        counts[positions] += 1
        weight_of[positions] = weights
    chance = 1 / weight_of
    spread = np.sqrt(chance * (1 - chance) / DRAWS)
    assert (np.abs(counts / DRAWS - chance) <= 4 * spread + 1e-9).all()


def test_number_of_remote_and_local_draws(lists, scores):
    indptr, indices = lists
    remote = (indices >= 30) & ~((indices >= 50) & (indices < 55))
    number_remote, number = [], []
    for key in range(DRAWS):
        _, positions, _ = drawn(lists, scores, key, readers=np.array([0]))
        number_remote.append(remote[positions].sum())
        number.append(len(positions))
    share = remote[indptr[0] : indptr[1]].mean()
    wanted = 6 * share - 0.6
    assert np.mean(number_remote) == pytest.approx(wanted, abs=4 * np.std(number_remote) / np.sqrt(DRAWS))
    assert np.mean(number) == pytest.approx(6, abs=4 * np.std(number) / np.sqrt(DRAWS))
    local = np.array(number) - np.array(number_remote)
    assert set(local) <= {int(6 - wanted), int(6 - wanted) + 1}


def test_rows_agree_on_remote_sources_and_draws_depend_on_names_alone(lists, scores):
    indptr, indices = np.array([0, 20, 40]), np.concatenate([np.arange(30, 50, dtype=np.int32)] * 2)
    offsets, positions, _ = drawn((indptr, indices), scores, 5)
    first, second = indices[positions[: offsets[1]]], indices[positions[offsets[1] :]]
    np.testing.assert_array_equal(first, second)
    names = np.random.default_rng(2).permutation(VERTICES)
    own = np.arange(100, 100 + len(lists[0]) - 1)
    key, readers = key_of(1, "a"), np.arange(len(lists[0]) - 1)
    one = draw_by_locality(*lists, own, names, HOME, *scores, 0.5, key, 6, 0.1, readers)
    two = draw_by_locality(*lists, own, names, HOME, *scores, 0.5, key, 6, 0.1, readers[::-1].copy())
    lengths = np.diff(one[0])
    pieces = np.split(one[1], one[0][1:-1])
    np.testing.assert_array_equal(np.concatenate(pieces[::-1]), two[1])
    np.testing.assert_array_equal(lengths[::-1], np.diff(two[0]))


def test_a_graph_that_is_all_local_draws_like_plain_sampling(lists, scores):
    everything = np.array([[0, VERTICES]])
    offsets, _, weights = drawn(lists, scores, 0, home=everything)
    np.testing.assert_array_equal(np.diff(offsets), [6, 3, 0, 6, 6])
    np.testing.assert_allclose(weights[:6], LIST / 6)
