"""The counter-based hash: even, independent of everything but its inputs, and fixed for ever."""

import numpy as np

from penstock.graph.hashing import key_of, unit_draws
from penstock.graph.splits import splits_by_ratio


def test_draws_are_even_and_uncorrelated():
    draws = np.empty(200_000)
    unit_draws(key_of(1, "test"), 0, draws)
    counts = np.bincount((draws * 100).astype(int), minlength=100)
    assert abs(draws.mean() - 0.5) < 0.003
    assert counts.min() > 1800
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01


def test_streams_differ_by_seed_and_purpose():
    streams = []
    for key in (key_of(0, "a"), key_of(1, "a"), key_of(0, "b"), key_of(0, "ab")):
        draws = np.empty(1000)
        unit_draws(key, 0, draws)
        streams.append(draws)
    assert abs(np.corrcoef(streams) - np.eye(4)).max() < 0.15


def test_any_start_gives_the_same_numbers():
    whole, tail = np.empty(100), np.empty(40)
    unit_draws(key_of(3, "x"), 0, whole)
    unit_draws(key_of(3, "x"), 60, tail)
    np.testing.assert_array_equal(whole[60:], tail)


def test_the_numbers_never_change():
    """Runs of an older release must stay repeatable: these values are part of the format."""
    draws = np.empty(3)
    unit_draws(key_of(0, "penstock"), 0, draws)
    np.testing.assert_allclose(draws, FIXED, rtol=0, atol=0)


def test_splits_by_ratio_are_exact_shares():
    eligible = np.arange(5, 1005)
    splits = splits_by_ratio(eligible, (0.5, 0.2, 0.2), seed=0)
    assert [len(rows) for rows in splits.values()] == [500, 200, 200]
    together = np.concatenate(list(splits.values()))
    assert len(np.unique(together)) == 900
    assert set(together) <= set(eligible.tolist())
    assert (np.diff(splits["train"]) > 0).all()
    again = splits_by_ratio(eligible, (0.5, 0.2, 0.2), seed=1)
    assert not np.array_equal(splits["train"], again["train"])


FIXED = [0.19216475624208085, 0.1594126674569345, 0.1285711890622493]
