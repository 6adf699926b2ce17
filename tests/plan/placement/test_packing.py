"""The packing over counts answers as trying everything does."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.placement.packing import most_of_commonest, pack, packs

small = st.integers(0, 4).map(float)


@st.composite
def packings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    classes, machines = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    demands = np.array(draw(st.lists(st.tuples(small, small), min_size=classes, max_size=classes)))
    wanted = np.array(draw(st.lists(st.integers(0, 3), min_size=classes, max_size=classes)))
    free = np.array(draw(st.lists(st.tuples(small, small), min_size=machines, max_size=machines))) * 2
    return demands, wanted, free


def by_trying(demands: np.ndarray, wanted: np.ndarray, free: np.ndarray) -> bool:
    """Whether some choice of a machine for every task keeps the limits."""
    tasks = np.repeat(np.arange(len(wanted)), wanted)
    for machines in product(range(len(free)), repeat=len(tasks)):
        used = np.zeros_like(free)
        np.add.at(used, list(machines), demands[tasks])
        if (used <= free).all():
            return True
    return False


@given(packings())
def test_a_packing_is_found_exactly_where_one_exists(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    demands, wanted, free = case
    counts = pack(demands, wanted, free)
    assert (counts is not None) == by_trying(demands, wanted, free)
    assert packs(demands, wanted, free) == (counts is not None)
    if counts is not None:
        assert (counts.sum(axis=0) == wanted).all()
        assert (counts @ demands <= free + 1e-9).all()


def test_first_machines_are_filled_and_the_rest_stay_empty() -> None:
    counts = pack(np.array([[1.0]]), np.array([3]), np.array([[2.0], [2.0], [2.0]]))
    assert counts is not None
    assert counts[:, 0].tolist() == [1, 2, 0]


def test_how_many_of_the_commonest_fit() -> None:
    demands, free = np.array([[2.0], [3.0]]), np.array([[4.0], [4.0]])
    assert most_of_commonest(demands, np.array([4, 1]), free) == 2
    assert most_of_commonest(demands, np.array([4, 3]), free) == -1


def test_decimals_that_add_up_to_the_capacity_fit() -> None:
    assert packs(np.array([[0.1]]), np.array([3]), np.array([[0.3]]))
