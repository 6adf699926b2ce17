"""A new rate policy is one definition and one line in a table."""

import numpy as np
import pytest

from penstock.simulate import POLICIES, simulate, star
from penstock.simulate.state import PRIORITY, Case, RatePolicy, Terms, terms_of
from penstock.simulate.workload import WorkloadBuilder
from refusals import refused


def smallest_first(case: Case) -> Terms:
    """The smallest flow goes first, then the next."""
    return terms_of(case, rank=np.argsort(np.argsort(case.amounts.sizes, axis=1), axis=1))


def test_another_policy_orders_flows(added) -> None:
    added(POLICIES, "smallest-first", RatePolicy("smallest-first", PRIORITY, smallest_first))
    building = WorkloadBuilder()
    sender = building.task("sender", "work", 0.0)
    for size in (4.0, 1.0, 2.0):
        building.flow(sender, building.task(f"gets {size}", "work", 0.0), size, "data")
    load, network, where = building.build(), star([1.0, 1.0], [1.0, 1.0]), np.array([0, 1, 1, 1])
    found = simulate(load, network, where, 1, "smallest-first")
    assert found.ends[0, load.tasks :].tolist() == pytest.approx([7.0, 1.0, 3.0])
    assert simulate(load, network, where, 1, "fair").ends[0, load.tasks :].tolist() == pytest.approx([7.0, 3.0, 5.0])


def test_an_unknown_policy_is_a_sentence() -> None:
    with refused("unknown-name fifoo fifo"):
        POLICIES["fifoo"]
