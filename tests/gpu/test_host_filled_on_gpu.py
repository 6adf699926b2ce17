"""Captured steps whose inputs the host gathers or aggregates, on a GPU: what is learned one by one, and memory."""

import numpy as np
import pytest

from penstock.train import run as run_module
from training_graphs import (
    InterruptAfter,
    assert_same_state,
    community_graph,
    lines_of,
    newest_checkpoint,
    stored_as,
    trained,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
FEW = {"fanouts": [5, 3], "hidden": 16, "batch_size": 32, "epochs": 3, "evaluate_every": 0, "device": "cuda"}


def losses(run):
    return [line["loss"] for line in lines_of(run) if line["kind"] == "epoch"]


@pytest.mark.parametrize(
    ("way", "fields", "dtype"),
    [
        ("gather", {}, np.float16),
        ("gather", {}, np.float32),
        ("aggregate", {}, np.float32),
        ("aggregate", {"aggregate": "sum"}, np.float16),
        ("aggregate", {"compute_type": "bfloat16"}, np.float16),
        ("aggregate", {"model": "gcn"}, np.float16),
        ("aggregate", {"model": "gin"}, np.int8),
        ("divided", {"host_share": 0.5}, np.float16),
        ("divided", {"host_share": 0.5, "placement": {"cache_rows": 100}}, np.float32),
        ("divided", {}, np.float16),
        ("aggregate", {"sample_on": "host", "sample_threads": 4}, np.float16),
        ("gather", {"sample_on": "host", "sample_threads": 4}, np.float32),
    ],
    ids=str,
)
def test_they_learn_what_steps_learn_that_are_launched_one_by_one(way, fields, dtype, tmp_path):
    graph = stored_as(dtype)
    job = {**FEW, "first_layer": way, **fields}
    result = trained(graph, tmp_path / "captured", **job).result
    trained(graph, tmp_path / "launched", **job, capture=False)
    assert any("captured once" in sentence for sentence in result["placement"]["why"])
    close = 3e-2 if "compute_type" in fields else 2e-3
    assert losses(tmp_path / "captured") == pytest.approx(losses(tmp_path / "launched"), rel=close)
    assert set(result["feature_paths"]) <= {"cache", "gathered", "aggregated", "pinned"}


@pytest.mark.parametrize("way", ["gather", "aggregate"])
def test_two_runs_have_the_same_bits_and_an_interrupted_one_too(way, tmp_path, monkeypatch):
    graph, job = stored_as(np.float16), {**FEW, "checkpoint_steps": 5, "first_layer": way}
    for name in ("one", "two"):
        trained(graph, tmp_path / name, **job)
    monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(3))
    trained(graph, tmp_path / "cut", **job)
    monkeypatch.undo()
    run_module.resume_run(tmp_path / "cut", graph)
    one, *others = (newest_checkpoint(tmp_path / name)["learned"] for name in ("one", "two", "cut"))
    for other in others:
        assert_same_state(one, other)


@pytest.mark.parametrize("way", ["gather", "aggregate", "divided"])
def test_a_batch_that_lacks_room_is_filled_again(way, tmp_path, monkeypatch):
    from penstock.sampling.device.block import Room
    from penstock.train.device import decision

    graph, job = stored_as(np.float32), {**FEW, "first_layer": way}
    trained(graph, tmp_path / "roomy", **job)
    monkeypatch.setattr(decision, "presampled_room", lambda *_: Room((32, 96, 200), (128, 256)))
    trained(graph, tmp_path / "tight", **job)
    assert losses(tmp_path / "tight") == pytest.approx(losses(tmp_path / "roomy"), rel=2e-3)


@pytest.mark.parametrize("way", ["gather", "aggregate", "divided"])
def test_device_memory_is_predicted_with_the_slots(way, tmp_path):
    graph = community_graph(20_000, degree=12)
    job = {**FEW, "batch_size": 512, "hidden": 64, "epochs": 1, "first_layer": way}
    result = trained(graph, tmp_path / way, **job).result
    assert result["device_predicted_mb"] == pytest.approx(result["device_peak_mb"], rel=0.25, abs=16)
