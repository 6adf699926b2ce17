"""Workers whose computation is replaced by sleeps and whose links take a time for each row: what the schedule hides."""

import time
from collections import defaultdict

import pytest

import whole_threads
from penstock.train.whole.steps import LayerPasses
from training_graphs import community_graph

ROW = 2e-4
"""Seconds that a row takes on a link between two workers, and that a worker takes to compute one in a forward pass."""


class SlowLinks(whole_threads.ThreadWorkers):
    """Messages from one worker to another follow each other."""

    def __init__(self, *given):
        super().__init__(*given)
        self._free = defaultdict(float)

    def post(self, rank, tag, rows):
        with self._hub.changed:
            arrival = self._free[rank] = max(time.monotonic(), self._free[rank]) + ROW * sum(map(len, rows))
            self._hub.rows[self._position, self.rank, rank, tag] = arrival, [each.copy() for each in rows]

    def take(self, rank, tag):
        with self._hub.changed:
            key = self._position, rank, self.rank, tag
            if key not in self._hub.rows or self._hub.rows[key][0] > time.monotonic():
                return None
            return self._hub.rows.pop(key)[1]

    def wait(self):
        time.sleep(0.0005)


@pytest.mark.long
def test_both_levels_of_the_pipeline_hide_most_of_the_exchange(monkeypatch):
    compute, backward = LayerPasses.compute, LayerPasses.backward

    def slow_compute(passes, number, work, x):
        time.sleep(ROW * work.num_rows)
        return compute(passes, number, work, x)

    def slow_backward(passes, number, work, *more):
        time.sleep(2 * ROW * work.num_rows)
        return backward(passes, number, work, *more)

    monkeypatch.setattr(LayerPasses, "compute", slow_compute)
    monkeypatch.setattr(LayerPasses, "backward", slow_backward)
    monkeypatch.setattr(whole_threads, "ThreadWorkers", SlowLinks)
    graph, exposed = community_graph(1000, degree=3), {}
    fields = {"sampler": "whole", "layers": 3, "hidden": 8, "threads": 1, "model": "gcn", "scope": "all", "bins": 8}
    for pipeline in ("none", "both"):
        workers, _ = whole_threads.train_in_threads(graph, 2, epochs=2, pipeline=pipeline, **fields)
        exposed[pipeline] = workers[0][2]["exposed_communication_s"]
    assert exposed["both"] < 0.5 * exposed["none"], exposed
