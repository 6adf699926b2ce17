"""Captured steps of tasks on edges, replayed by an interpreter where there is no GPU: what the pipeline learns."""

import importlib.util

import numpy as np
import pytest
import torch

from device_steps import learned, placed_session, schedule_of, weights
from interpreted_kernels import device_with_free_memory
from penstock.pipeline.schedule import START, Position
from penstock.train.build import make_session
from penstock.train.job import job_of
from refusals import refused
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
    graph = community_graph(40)
    (edges,) = graph.edges.values()
    classes = graph.nodes["node"].fields["y"]
    ends = classes[edges.indices], classes[edges.destinations()]
    edges.fields["alike"] = (ends[0] == ends[1]).astype(np.int64)
    edges.fields["heavy"] = 1 + (edges.indices % 3).astype(np.float32)
    edges.fields["apart"] = np.abs(ends[0] - ends[1]).astype(np.float32)
    return graph


def loaded(graph, made=torch.optim.Adam, **fields):
    """What the pipeline learns on the host."""
    session = make_session(job_of({**FEW, **fields}), graph)
    session.optimiser = made(session.learned.parameters(), lr=0.01, fused=True)
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


CASES = {
    "links": {},
    "joint": {"negatives": "joint", "negatives_per_edge": 20, "loss": "softmax", "model": "gcn"},
    "in-batch": {"negatives": "in-batch", "loss": "softmax", "filtered": True, "batch_size": 40, "epochs": 1},
    "both-ends": {"negatives_per_edge": 3, "corrupt": "both", "filtered": True, "scorer": "mlp", "epochs": 1},
    "classes": {"task": "edge-classification", "label": "alike", "class_weights": "balanced"},
    "numbers": {"task": "edge-regression", "label": "apart", "clip": 0.5},
    "whole-lists": {"fanouts": [-1, 33], "sample_on": "device", "epochs": 1, "batch_size": 200},
    "by-weight": {"weight": "heavy", "epochs": 1},
}
SELDOM = ("in-batch", "whole-lists")
"""Whether negatives and lists are the host's is tested of each policy and fan-out by itself."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in SELDOM)) for name in CASES])
def test_they_learn_what_the_pipeline_learns(graph, name):
    fields = {"epochs": 1, **CASES[name]}
    assert_same(learned(session_of(graph, **fields)), loaded(graph, **fields), rtol=1e-3, atol=1e-4)


def test_batch_normalisation_counts_the_ends_of_edges(graph):
    # Adam would follow the rounding of biases, which have no gradient before a normalisation.
    session = session_of(graph, norm="batch", epochs=1)
    session.optimiser = torch.optim.SGD(session.learned.parameters(), lr=0.01, fused=True)
    right = loaded(graph, torch.optim.SGD, norm="batch", epochs=1)
    assert_same(learned(session), right, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def usual(graph):
    """What a session with room for every batch learns, in bursts of three."""
    with pytest.MonkeyPatch.context() as patch:
        device_with_free_memory(patch, lambda: 1 << 40)
        return learned(session_of(graph))


def test_a_batch_that_lacks_room_is_drawn_again_and_nothing_is_learned_twice(graph, usual):
    from penstock.sampling.device.block import Room

    tight = session_of(graph)
    roomy = tight.execution.placed.room
    # The seeds of a batch, the ends of its edges and negatives, lack room first.
    tight.execution.placed.room = Room((100, 40, 50, 60), (roomy.edges[0], 100, 60))
    assert_same(learned(tight), usual, rtol=1e-5, atol=1e-6)
    assert tight.execution.placed.room.rows[1] > 40


def test_they_go_on_from_a_checkpoint_with_its_room(graph, usual):
    session = session_of(graph)
    first, _ = learned(session, steps=4)
    epoch, batch = first[-1].position
    start = Position(epoch + 1, 0) if first[-1].last else Position(epoch, batch + 1)
    state, room = session.execution.state(), session.execution.placed.room
    session.execution.placed.room = None if room is None else room.enlarged(room.sizes, room)
    session.execution.restore(state)
    assert session.execution.placed.room == room
    rest, last = learned(session, start=start)
    assert_same(([*first, *rest], last), usual, rtol=0, atol=0)
    with refused("mismatched-inputs"):
        session.execution.restore([state[0][1:], state[1][1:]])


def test_the_last_batch_of_an_epoch_is_smaller(graph, usual):
    sizes = [step.examples for step in usual[0]]
    assert len(set(sizes)) == 2 and sizes[-1] < 100


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"capture": False}, "a device draws batches of edges for captured steps only"),
        ({"sample_on": "host"}, "sample_on is host"),
        ({"sample_on": "host", "first_layer": "gather"}, "sample_on is host"),
        ({"optimiser": "Adagrad"}, "a device draws batches of edges for captured steps only"),
    ],
)
def test_what_is_not_captured_is_drawn_on_the_host(graph, fields, why):
    session = placed_session(graph, {**FEW, **fields})
    assert session.execution.name == "device" and session.execution.placed.topology is None
    assert any(why in sentence for sentence in session.execution.placed.why)


def test_a_device_that_cannot_capture_is_not_asked_to_draw(graph):
    with refused("unsupported-combination"):
        placed_session(graph, {**FEW, "sample_on": "device", "capture": False})


def test_where_features_cannot_be_captured_the_host_draws(graph):
    """Features of the host that must be converted for each batch."""
    x = graph.nodes["node"].fields["x"]
    graph.nodes["node"].fields["x"] = x.astype(np.float64)
    try:
        session = placed_session(graph, {**FEW, "placement": {"features": "host"}})
        with refused("unsupported-combination"):
            placed_session(graph, {**FEW, "placement": {"features": "host"}, "sample_on": "device"})
    finally:
        graph.nodes["node"].fields["x"] = x
    placed = session.execution.placed
    assert session.execution.name == "device" and placed.topology is None
    assert "Batches are drawn on the host: a device draws batches of edges for captured steps only." in placed.why
