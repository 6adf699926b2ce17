"""On one machine bins stand in the order of a search, where they read fewer rows so."""

import numpy as np
import pytest

from penstock.pipeline.schedule import START, Schedule
from penstock.train.build import make_session
from penstock.train.job import job_of
from penstock.train.whole import execution
from training_graphs import scattered_ring, typed_graph

ROUNDING = 2e-5
WHOLE = {"sampler": "whole", "layers": 3, "hidden": 8, "threads": 1, "dropout": 0.2, "bins": 5}


def losses_of(graph, **fields):
    job = job_of({"graph": "g", "run": "r", "epochs": 5, **WHOLE, **fields})
    session = make_session(job, graph)
    schedule = Schedule(session.task.items, session.task.batch_size, job.seed, 5)
    with session.execution.steps(schedule, START, lambda _: 1, lambda *_: None) as steps:
        losses = [step.loss for each in steps for step in each]
    return losses, session.execution._prepared[0]


def num_inputs(step):
    return sum(work.num_inputs for layer in step.bins for work in layer)


@pytest.mark.parametrize("scope", ["all", "reached"])
def test_neighbours_share_bins_and_losses_are_the_same(monkeypatch, scope):
    graph = scattered_ring()
    found, step = losses_of(graph, scope=scope)
    assert step.decision.searched
    monkeypatch.setattr(execution, "in_search_order", lambda graph, order, counts: order)
    expected, by_number = losses_of(graph, scope=scope)
    assert not by_number.decision.searched and num_inputs(step) < 0.85 * num_inputs(by_number)
    np.testing.assert_allclose(found, expected, rtol=ROUNDING)


def test_every_level_is_a_prefix_still():
    graph = typed_graph()
    step = losses_of(graph, model="rgcn", embedding=8, steps_per_epoch=4)[1]
    plan = step.plan
    for name, vertices in plan.order.items():
        assert len(np.unique(vertices)) == len(vertices)
        sizes = [level[name] for level in plan.counts]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] <= len(vertices)


def test_one_bin_keeps_the_order_of_numbers():
    step = losses_of(scattered_ring(), bins=1, scope="all")[1]
    assert not step.decision.searched
    np.testing.assert_array_equal(step.plan.order["node"], np.arange(200))
