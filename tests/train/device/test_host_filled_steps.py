"""Captured steps whose inputs the host gathers or aggregates: what is learned without capturing, by an interpreter."""

import importlib.util

import numpy as np
import pytest
import torch

from device_steps import learned, placed_session
from interpreted_kernels import device_with_free_memory
from penstock.pipeline.schedule import Position
from penstock.train.build import make_session
from penstock.train.job import job_of
from training_graphs import community_graph, stored_as

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_host_filled_on_gpu"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 16, "epochs": 2, "device": "cpu", "threads": 2, "dropout": 0.2}


@pytest.fixture(autouse=True)
def _made_device(monkeypatch):
    """The host stands for a device with plenty of memory."""
    device_with_free_memory(monkeypatch, lambda: 1 << 40)


def session_of(graph, capture=True, **fields):
    session = placed_session(graph, {**FEW, "capture": capture, **fields})
    assert session.execution.placed.is_captured == capture
    return session


def assert_same(a, b, **close):
    assert [step.position for step in a[0]] == [step.position for step in b[0]]
    losses = (torch.tensor([step.loss for step in done]) for done, _ in (a, b))
    torch.testing.assert_close(*losses, **close)
    for name, values in a[1].items():
        torch.testing.assert_close(values, b[1][name], **close)


@pytest.mark.parametrize(
    ("way", "fields", "dtype"),
    [
        ("gather", {}, np.float16),
        # Means of float32 are computed by the tests below, sums by `divided`.
        pytest.param("aggregate", {}, np.float32, marks=pytest.mark.long),
        pytest.param("aggregate", {"aggregate": "sum"}, np.float16, marks=pytest.mark.long),
        pytest.param("aggregate", {"model": "gcn"}, np.float16, marks=pytest.mark.long),
        ("aggregate", {"placement": {"features": "pinned"}, "feature_type": "bfloat16"}, np.float32),
        ("aggregate", {"model": "gin"}, np.float32),
        # Sums of int8 are those of a kernel that tests/nn compares with gathered rows.
        pytest.param("aggregate", {"model": "gin"}, np.int8, marks=pytest.mark.long),
        pytest.param(
            "divided", {"host_share": 0.5, "placement": {"cache_rows": 0}}, np.float16, marks=pytest.mark.long
        ),
        ("divided", {"aggregate": "sum", "placement": {"cache_rows": 30}}, np.float32),
    ],
    ids=str,
)
def test_they_learn_what_steps_learn_that_are_launched_one_by_one(way, fields, dtype):
    graph, job = stored_as(dtype, 100), {"first_layer": way, "epochs": 1, **fields}
    session = session_of(graph, **job)
    found = learned(session)
    assert_same(found, learned(session_of(graph, False, **job)), rtol=2e-3, atol=2e-4)
    facts = session.execution.facts()
    assert facts["placement"]["features"] == ("pinned" if way == "divided" or "placement" in fields else "host")
    paths = {"gather": {"gathered"}, "aggregate": {"aggregated"}, "divided": {"aggregated", "pinned"}}[way]
    assert set(facts["feature_paths"]) - {"cache"} == paths
    assert all(each["rows"] and each["bytes"] for each in facts["feature_paths"].values())


@pytest.mark.long
@pytest.mark.parametrize("way", ["gather", "aggregate"])
def test_a_batch_that_lacks_room_is_drawn_and_filled_again(way, monkeypatch):
    from penstock.sampling.device.block import Room
    from penstock.train.device import decision

    graph = community_graph(100)
    usual = learned(session_of(graph, first_layer=way))
    monkeypatch.setattr(decision, "presampled_room", lambda *_: Room((16, 40, 60), (48, 50)))
    tight = session_of(graph, first_layer=way)
    assert_same(learned(tight), usual, rtol=1e-5, atol=1e-6)
    assert tight.execution.placed.room.edges[-1] > 50


@pytest.mark.parametrize(
    ("way", "fields"),
    [
        ("gather", {}),
        pytest.param("aggregate", {}, marks=pytest.mark.long),
        pytest.param("aggregate", {"aggregate": "sum"}, marks=pytest.mark.long),
        ("aggregate", {"model": "gcn"}),
    ],
    ids=str,
)
def test_batches_that_threads_of_the_host_draw_are_learned_from_in_captured_steps(way, fields):
    graph, job = stored_as(np.float16, 100), {"first_layer": way, "sample_on": "host", "sample_threads": 2, **fields}
    session = session_of(graph, **job)
    assert session.execution.placed.topology is None
    found = learned(session)
    assert_same(found, learned(session_of(graph, False, **job)), rtol=2e-3, atol=2e-4)


def test_a_batch_of_the_host_that_lacks_room_is_drawn_again(monkeypatch):
    from penstock.sampling.device.block import Room
    from penstock.train.device import decision

    graph, job = community_graph(100), {"first_layer": "aggregate", "sample_on": "host", "sample_threads": 2}
    usual = learned(session_of(graph, **job))
    monkeypatch.setattr(decision, "presampled_room", lambda *_: Room((16, 40, 60), (48, 50)))
    tight = session_of(graph, **job)
    assert_same(learned(tight), usual, rtol=1e-5, atol=1e-6)
    assert tight.execution.placed.room.edges[-1] > 50


def test_steps_go_on_from_the_middle_of_an_epoch():
    graph = community_graph(100)
    whole = learned(session_of(graph, first_layer="aggregate"))
    session = session_of(graph, first_layer="aggregate")
    first, _ = learned(session, steps=3)
    rest = learned(session, start=Position(0, len(first)))
    assert_same(([*first, *rest[0]], rest[1]), whole, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"first_layer": "transform"}, "computes in every step"),
        ({"first_layer": "divided", "model": "gcn"}, "degrees"),
        ({"first_layer": "divided", "sample_on": "host"}, "sample_on is host"),
        ({"first_layer": "aggregate", "sample_on": "host", "optimiser": "Adagrad"}, "counts its steps on the host"),
    ],
    ids=str,
)
def test_the_reason_is_said_where_steps_are_not_captured(fields, reason):
    from penstock.train.device.placement import place

    placed = place(make_session(job_of({**FEW, **fields}), community_graph(100)), True)
    assert not placed.is_captured and any(reason in sentence for sentence in placed.why)


def test_features_that_must_be_converted_are_gathered_by_the_pipeline():
    from penstock.train.device.placement import place

    placed = place(make_session(job_of({**FEW, "first_layer": "gather"}), stored_as(np.float64, 100)), True)
    assert not placed.is_captured and any("float64" in sentence for sentence in placed.why)
