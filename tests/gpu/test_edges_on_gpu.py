"""Tasks on edges on a GPU: captured steps learn what the CPU learns, with the same bits again and when interrupted."""

import numpy as np
import pytest

from penstock.train import run as run_module
from training_graphs import InterruptAfter, assert_same_state, community_graph, newest_checkpoint, trained

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
FEW = {"task": "link-prediction", "fanouts": [5, 3], "hidden": 16, "batch_size": 100, "epochs": 2, "evaluate_every": 0}
TASKS = {
    "links": {"held_out": [0.1, 0.1]},
    "joint": {"negatives": "joint", "negatives_per_edge": 32, "loss": "softmax", "model": "gcn"},
    "in-batch": {"negatives": "in-batch", "loss": "softmax", "filtered": True},
    "both-ends": {"negatives_per_edge": 3, "corrupt": "both", "filtered": True, "scorer": "mlp"},
    "classes": {"task": "edge-classification", "label": "alike", "class_weights": "balanced"},
    "numbers": {"task": "edge-regression", "label": "apart"},
}


@pytest.fixture(scope="module")
def graph():
    """Communities with a class and a number on each edge."""
    graph = community_graph(300)
    (edges,) = graph.edges.values()
    classes = graph.nodes["node"].fields["y"]
    ends = classes[edges.indices], classes[edges.destinations()]
    edges.fields["alike"] = (ends[0] == ends[1]).astype(np.int64)
    edges.fields["apart"] = np.abs(ends[0] - ends[1]).astype(np.float32)
    return graph


def assert_close(a, b, tolerance=2e-3):
    theirs = newest_checkpoint(b)["learned"]
    for name, mine in newest_checkpoint(a)["learned"].items():
        assert (mine - theirs[name]).norm() <= tolerance * theirs[name].norm() + 1e-5, name


@pytest.mark.parametrize("name", TASKS)
def test_they_learn_what_the_cpu_learns(graph, name, tmp_path):
    job = {**FEW, **TASKS[name]}
    cpu = trained(graph, tmp_path / "cpu", **job, device="cpu")
    run = trained(graph, tmp_path / "gpu", **job, device="cuda")
    assert run.result["placement"]["topology"] == "device"
    assert "Steps are captured once and replayed." in run.result["placement"]["why"]
    assert run.result["train_loss"] == pytest.approx(cpu.result["train_loss"], rel=1e-3)
    assert_close(tmp_path / "gpu", tmp_path / "cpu")
    predicted, peak = run.result["device_predicted_mb"], run.result["device_peak_mb"]
    assert predicted == pytest.approx(peak, rel=0.03, abs=4)


@pytest.mark.parametrize("name", ["links", "in-batch"])
def test_the_same_bits_twice_and_after_an_interrupt(graph, name, tmp_path, monkeypatch):
    job = {**FEW, **TASKS[name], "checkpoint_steps": 5}
    for again in ("a", "b"):
        trained(graph, tmp_path / again, **job, device="cuda")
    whole = newest_checkpoint(tmp_path / "a")
    assert_same_state(whole, newest_checkpoint(tmp_path / "b"))
    monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(3))
    trained(graph, tmp_path / "cut", **job, device="cuda")
    monkeypatch.undo()
    run_module.resume_run(tmp_path / "cut", graph)
    assert_same_state(whole["learned"], newest_checkpoint(tmp_path / "cut")["learned"])


def test_a_batch_that_lacks_room_is_learned_from_all_the_same(graph, tmp_path, monkeypatch):
    from penstock.sampling.device.block import Room
    from penstock.train.device import decision

    trained(graph, tmp_path / "roomy", **FEW, device="cuda")
    monkeypatch.setattr(decision, "presampled_room", lambda *_: Room((100, 120, 200, 250), (300, 256, 256)))
    trained(graph, tmp_path / "tight", **FEW, device="cuda")
    assert_close(tmp_path / "tight", tmp_path / "roomy", 1e-4)
