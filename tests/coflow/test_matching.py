"""Schedules of all-to-alls: the bound, the number of phases, every byte once; and what is no matrix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from matrices import KINDS, assert_sends_all

import penstock as ps
from penstock.coflow import SCHEDULES, bound, schedule, seconds
from penstock.coflow.matching import padded, printed_phases
from refusals import refused

COUNTEREXAMPLE = [[0, 1, 1], [1, 0, 1], [0, 0, 0]]
EACH = 14
"""Matrices of a kind and number of ranks."""
MATRICES = st.integers(1, 6).flatmap(
    lambda ranks: arrays.arrays(np.int64, (ranks, ranks), elements=st.integers(0, 12) | st.just(0))
)


def duration(phases):
    return sum(phase.weight for phase in phases)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_bvn_takes_the_bound_exactly(kind):
    rng = np.random.default_rng(7)
    for ranks in range(1, 13):
        for _ in range(EACH):
            matrix = kind(ranks, rng)
            phases = schedule(matrix, "bvn")
            assert_sends_all(matrix, phases)
            assert duration(phases) == bound(matrix, 1.0)
            assert len(phases) <= ranks**2 - 2 * ranks + 2
            weights = [phase.weight for phase in phases]
            assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_matched_is_near_the_bound_in_fewer_phases(kind):
    rng = np.random.default_rng(8)
    matched = exact = 0
    for ranks in range(2, 13):
        for _ in range(EACH // 3):
            matrix = kind(ranks, rng)
            phases = schedule(matrix, "matched")
            assert_sends_all(matrix, phases)
            assert duration(phases) <= 1.05 * bound(matrix, 1.0)
            matched, exact = matched + len(phases), exact + len(schedule(matrix, "bvn"))
    assert matched < exact


@given(MATRICES)
def test_all_matchings_send_every_byte_once(matrix):
    for name in ("printed", "matched", "bvn"):
        assert_sends_all(matrix, schedule(matrix, name))


@given(MATRICES)
def test_padding_makes_all_sums_equal(matrix):
    np.fill_diagonal(matrix, 0)
    entries = padded(matrix)
    assert (entries >= matrix).all()
    assert set(entries.sum(0)) | set(entries.sum(1)) == {bound(matrix, 1.0)}


def test_the_printed_schedule_is_not_optimal():
    assert bound(COUNTEREXAMPLE, 1.0) == 2
    assert {name: seconds(COUNTEREXAMPLE, name, 1.0) for name in SCHEDULES} == {
        "fair": pytest.approx(2), "printed": 3, "matched": 2, "bvn": 2,
    }  # fmt: skip


def test_the_printed_schedule_is_cut_by_the_smallest_entry():
    """One byte that is matched late cuts everything before it into bytes."""
    matrix = [[0, 500, 1], [500, 0, 500], [500, 500, 0]]
    assert len(schedule(matrix, "printed")) > 100
    assert len(schedule(matrix, "bvn")) <= 5
    assert len(schedule(matrix, "matched")) <= 5


def test_a_printed_schedule_without_end_is_refused():
    demand = np.array([[0, 10**12, 1], [10**12, 0, 10**12], [10**12, 10**12, 0]])
    with refused("too-large 3 5,000,000,000,001 40"):
        printed_phases(demand, limit=40)


@pytest.mark.parametrize("name", SCHEDULES)
def test_own_data_crosses_no_network(name):
    assert schedule([[7]], name) == []
    assert schedule([[9, 0], [0, 9]], name) == []
    assert seconds([[100, 4], [0, 100]], name, 2.0) == pytest.approx(2)


def test_sizes_beyond_what_floating_point_numbers_hold():
    large = 2**60 + 1
    phases = schedule([[0, large, 1], [1, 0, large], [large, 1, 0]], "bvn")
    assert duration(phases) == large + 1 and len(phases) == 2


@pytest.mark.parametrize("name", SCHEDULES)
def test_seconds_have_a_price_for_every_phase(name):
    matrix = [[0, 6, 2], [4, 0, 2], [2, 2, 0]]
    phases = schedule(matrix, name)
    assert seconds(matrix, name, 10.0, 0.5) == pytest.approx(duration(phases) / 10 + 0.5 * len(phases))
    assert len(phases) > (name != "fair")


def test_a_schedule_is_the_same_every_time():
    matrix = KINDS[0](9, np.random.default_rng(1))
    for name in SCHEDULES:
        for one, other in zip(schedule(matrix, name), schedule(matrix.copy(), name), strict=True):
            assert one.weight == other.weight and (one.peers == other.peers).all() and (one.sizes == other.sizes).all()


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        ([[0, 1.5], [1, 0]], "wrong-type float64"),
        ([[0, 1], [-3, 0]], "value-out-of-range 1 -3 0"),
        ([[0, 1, 2], [3, 0, 1]], "shape-mismatch 2 3"),
        ([1, 2], "shape-mismatch 2"),
        ([[0, 1], [2]], "shape-mismatch"),
        (np.zeros((0, 0), int), "shape-mismatch 0"),
        ([[0, 2**61, 2**61], [0, 0, 0], [0, 0, 0]], "too-large 2^62"),
    ],
)
def test_what_is_no_matrix_is_refused(matrix, sentence):
    with refused(sentence):
        schedule(matrix, "bvn")
    with refused(sentence):
        bound(matrix, 1.0)


def test_other_bad_input():
    with refused("unknown-name matched"):
        schedule([[0]], "match")
    for rate in (0.0, -1.0, float("inf"), float("nan")):
        with refused("value-out-of-range"):
            seconds([[0]], "bvn", rate)
    for overhead in (-1.0, float("nan")):
        with refused("value-out-of-range 0"):
            seconds([[0]], "bvn", 1.0, overhead)


def test_the_package_offers_it():
    assert ps.coflow.schedule is schedule and "coflow" in dir(ps)
    with pytest.raises(AttributeError, match=r"penstock\.coflow.*'nothing'"):
        _ = ps.coflow.nothing
