"""Rows in the order in which other workers want them, and in which the rows that they read arrive."""

import numpy as np

from penstock.train.whole.shared import execution
from penstock.train.whole.shared.row_order import in_wanted_order
from training_graphs import community_graph
from whole_threads import train_in_threads


def test_vertices_are_ordered_by_the_least_rank_and_then_by_place():
    own, places = np.array([2, 4, 6, 8]), np.array([3, 2, 1, 0])
    asked = [(np.array([2, 4, 8]), np.array([5, 0, 5])), (np.array([2, 6]), np.array([0, 7]))]
    assert in_wanted_order(own, places, asked).tolist() == [4, 2, 8, 6]


def test_bins_of_the_last_layer_wait_for_later_and_later_messages(monkeypatch):
    plans, make = [], execution.make_cut_plan

    def made(*given):
        plans.append(make(*given))
        return plans[-1]

    monkeypatch.setattr(execution, "make_cut_plan", made)
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
