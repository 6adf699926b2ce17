"""The fewest rows and sums that carry all edges between two workers."""

from itertools import combinations

import numpy as np
import pytest

from penstock.partition import bins
from penstock.partition.bins import edges_to_sum


def sent(rows, sums, summed):
    return len(set(rows[~summed].tolist())) + len(set(sums[summed].tolist()))


def least(rows, sums):
    """By trying which rows do not travel."""
    names = sorted(set(rows.tolist()))
    found = len(names)
    for count in range(1, len(names) + 1):
        for left_out in combinations(names, count):
            found = min(found, len(names) - count + len(set(sums[np.isin(rows, left_out)].tolist())))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_nothing_smaller_carries_all_edges(seed, monkeypatch):
    monkeypatch.setattr(bins, "_WORTH", 1.0)
    rng = np.random.default_rng(seed)
    rows, sums = rng.integers(0, 8, (2, int(rng.integers(1, 30))))
    summed = edges_to_sum(rows, sums, np.zeros(len(rows), np.int64))
    # All edges of a row travel alike.
    assert not set(rows[summed].tolist()) & set(rows[~summed].tolist())
    assert sent(rows, sums, summed) == least(rows, sums)


def test_each_pair_of_workers_chooses_for_itself():
    """Ten rows that one vertex reads become a sum; ten that one vertex each reads stay rows; one row of ten readers."""
    rows = np.concatenate([np.arange(10), np.arange(20, 30), np.full(10, 40)])
    sums = np.concatenate([np.full(10, 0), np.arange(20, 30), np.arange(40, 50)])
    pairs = np.repeat([0, 1, 1], 10)
    summed = edges_to_sum(rows, sums, pairs)
    assert summed[:10].all() and not summed[10:].any()


def test_a_small_gain_is_not_worth_waiting_for_the_last_row():
    rows = np.concatenate([np.arange(18), [18, 19]])
    sums = np.concatenate([np.arange(18), [18, 18]])
    assert not edges_to_sum(rows, sums, np.zeros(20, np.int64)).any()


def test_no_edges():
    assert len(edges_to_sum(*(np.empty(0, np.int64) for _ in range(3)))) == 0
