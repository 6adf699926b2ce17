"""Captured steps of tasks on edges, replayed by an interpreter where there is no GPU: what the pipeline learns."""

import importlib.util

import numpy as np
import pytest
import torch

from device_steps import learned, placed_session, schedule_of, weights
from interpreted_kernels import device_with_free_memory
from penstock.pipeline.schedule import START
from penstock.train.build import make_session
from penstock.train.job import job_of
from training_graphs import community_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_edges_on_gpu"),
]
FEW = {
    "task": "link-prediction", "fanouts": [3, 2], "hidden": 8, "batch_size": 100, "epochs": 2, "device": "cpu",
    "threads": 1, "dropout": 0.3, "held_out": [0.1, 0.1],
}  # fmt: skip


@pytest.fixture(autouse=True)
def device_memory(monkeypatch):
    """A device with much free memory."""
    device_with_free_memory(monkeypatch, lambda: 1 << 40)


@pytest.fixture(scope="module")
def graph():
    """Communities with a class and a number on each edge."""
    graph = community_graph(60)
    (edges,) = graph.edges.values()
    classes = graph.nodes["node"].fields["y"]
    ends = classes[edges.indices], classes[edges.destinations()]
    edges.fields["alike"] = (ends[0] == ends[1]).astype(np.int64)
    edges.fields["apart"] = np.abs(ends[0] - ends[1]).astype(np.float32)
    return graph


def loaded(graph, **fields):
    """What the pipeline learns on the host."""
    session = make_session(job_of({**FEW, **fields}), graph)
    session.optimiser = torch.optim.Adam(session.learned.parameters(), lr=0.01, fused=True)
    done = []
    with session.execution.steps(schedule_of(session), START, lambda _: 1, lambda *_: None) as steps:
        for some in steps:
            done += some
    return done, weights(session)


def session_of(graph, **fields):
    session = placed_session(graph, {**FEW, **fields})
    assert session.execution.name == "captured"
    return session


def assert_same(a, b, **close):
    assert [(s.position, s.examples, s.last) for s in a[0]] == [(s.position, s.examples, s.last) for s in b[0]]
    torch.testing.assert_close(*(torch.tensor([step.loss for step in done]) for done, _ in (a, b)), **close)
    for name, values in a[1].items():
        torch.testing.assert_close(values, b[1][name], **close)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"negatives": "joint", "negatives_per_edge": 20, "link_loss": "softmax", "model": "gcn"},
        {"negatives": "in-batch", "link_loss": "softmax", "filtered": True, "batch_size": 40, "epochs": 1},
        {"negatives_per_edge": 3, "corrupt": "both", "filtered": True, "scorer": "mlp", "epochs": 1},
        {"task": "edge-classification", "label": "alike", "class_weights": "balanced"},
        {"task": "edge-regression", "label": "apart", "clip": 0.5},
    ],
    ids=["links", "joint", "in-batch", "both-ends", "classes", "numbers"],
)
def test_they_learn_what_the_pipeline_learns(graph, fields):
    assert_same(learned(session_of(graph, **fields)), loaded(graph, **fields), rtol=1e-3, atol=1e-4)
