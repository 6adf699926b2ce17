"""Rows in the order in which other workers want them, and in which the rows that they read arrive."""

import numpy as np
import pytest

from penstock.train.whole.shared import execution
from penstock.train.whole.shared.levels import in_wanted_order
from training_graphs import community_graph, scattered_ring
from whole_threads import train_in_threads


def test_vertices_are_ordered_by_the_least_rank_and_then_by_place():
    own, places = np.array([2, 4, 6, 8]), np.array([3, 2, 1, 0])
    asked = [(np.array([2, 4, 8]), np.array([5, 0, 5])), (np.array([2, 6]), np.array([0, 7]))]
    assert in_wanted_order(own, places, asked).tolist() == [4, 2, 8, 6]


@pytest.fixture
def plans(monkeypatch):
    """The plans of all workers, as they are made."""
    found, make = [], execution.make_cut_plan

    def made(*given):
        found.append(make(*given))
        return found[-1]

    monkeypatch.setattr(execution, "make_cut_plan", made)
    return found


def test_bins_of_the_last_layer_wait_for_later_and_later_messages(plans):
    fields = {"sampler": "whole", "layers": 2, "scope": "all", "threads": 1, "bins": 6}
    workers, _ = train_in_threads(community_graph(240, degree=2), 3, epochs=1, **fields)
    assert len(workers) == 3 and len(plans) == 3
    for plan in plans:
        level = plan.levels[1]
        number = {
            row: group.number
            for group in level.received
            for some in group.rows.values()
            for row in range(some.start, some.stop)
        }
        read = [np.concatenate(list(work.inputs.values())).tolist() for work in plan.bins[1]]
        last = [max(number.get(row, -1) for row in rows) for rows in read]
        assert last == sorted(last) and last[0] < last[-1]


def test_gradients_of_border_rows_leave_first_in_every_layer(plans):
    """Vertices of a ring read few remote rows, which are read by rows that others read: these come first forward."""
    fields = {"sampler": "whole", "layers": 4, "scope": "all", "threads": 1, "bins": 5, "model": "gcn"}
    train_in_threads(scattered_ring(200, scattered=False), 2, epochs=1, **fields)
    assert len(plans) == 2
    for plan in plans:
        first, *middle, last = plan.backward_order
        assert first == last == [4, 3, 2, 1, 0] and middle == [[0, 1, 2, 3, 4]] * 2
        for number in (1, 2, 3):
            order = plan.backward_order[number]
            assert [group.bin for group in plan.levels[number].returned] == [order[0]]


def test_gradients_sent_a_layer_at_once_leave_after_the_last_bin(plans):
    fields = {"sampler": "whole", "layers": 3, "scope": "all", "threads": 1, "bins": 4, "pipeline": "none"}
    train_in_threads(community_graph(120), 2, epochs=1, **fields)
    for plan in plans:
        assert all(order == [3, 2, 1, 0] for order in plan.backward_order)
        assert {group.bin for level in plan.levels for group in level.returned} == {0}
