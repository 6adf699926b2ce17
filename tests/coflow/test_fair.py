"""Everything at once under max-min sharing, against closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.coflow import bound, schedule, seconds
from penstock.simulate.traces import simulate_trace
from penstock.simulate.traces.coflows import coflows_from

RATE = 4.0


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_equal_sizes_take_the_bound(ranks):
    matrix = np.full((ranks, ranks), 5)
    assert seconds(matrix, "fair", RATE) == pytest.approx(5 * (ranks - 1) / RATE)


def test_an_incast_takes_its_receivers_time():
    assert seconds([[0, 0, 0], [8, 0, 0], [2, 0, 0]], "fair", RATE) == pytest.approx(10 / RATE)


def test_a_flow_alone_takes_the_line_rate():
    assert seconds([[0, 12], [0, 0]], "fair", RATE) == pytest.approx(3)


def test_a_freed_port_is_taken_at_once():
    """0 sends 1 to 1 and 3 to 2; 1 sends 2 to 2: halves until 0->1 ends (2), then 2's port is shared for what is left.

    At a line rate of 1: 0->1 and 0->2 at 1/2, 1->2 at 1/2. At 2 there are 2 left of 0->2 and 1 of 1->2, sharing 2's
    port: 1->2 ends at 4, 0->2 has 1 left and ends at 5, when 2 has received its 5 bytes.
    """
    assert seconds([[0, 1, 3], [0, 0, 2], [0, 0, 0]], "fair", 1.0) == pytest.approx(5)


def test_sharing_can_take_longer_than_the_bound():
    """Three ports with three flows each give a third; 0->1 gets the rest of its ports, two thirds.

    So 0->1 and all flows of 1 byte end at 3, when 1 has a byte left for 0 and one for 3: they share its port until 5.
    """
    matrix = [[0, 2, 0, 1], [2, 0, 0, 2], [1, 0, 0, 1], [1, 2, 1, 0]]
    assert bound(matrix, 1.0) == 4
    assert seconds(matrix, "fair", 1.0) == pytest.approx(5)
    assert seconds(matrix, "bvn", 1.0) == 4


@given(arrays.arrays(np.int64, (4, 4), elements=st.integers(0, 9)))
def test_fair_is_one_phase_between_the_bound_and_twice_that(matrix):
    """A flow always has a full port, and its two ports have at most twice the bound to carry."""
    phases = schedule(matrix, "fair")
    np.fill_diagonal(matrix, 0)
    assert len(phases) == bool(matrix.any())
    for phase in phases:
        assert (matrix[phase.senders, phase.peers] == phase.sizes).all() and phase.sizes.sum() == matrix.sum()
        assert bound(matrix, 1.0) * (1 - 1e-9) <= phase.weight <= 2 * bound(matrix, 1.0) * (1 + 1e-9)


@given(arrays.arrays(np.int64, (5, 5), elements=st.integers(0, 9)))
def test_fair_is_the_simulator_s(matrix):
    np.fill_diagonal(matrix, 0)
    sizes = {(int(i), int(j)): float(matrix[i, j]) for i, j in np.argwhere(matrix)}
    if sizes:
        found = simulate_trace(coflows_from(5, [(0.0, sizes)]), "fair", RATE)
        assert seconds(matrix, "fair", RATE) == pytest.approx(found.makespan_s, rel=1e-9)
