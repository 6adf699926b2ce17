"""Several types and learned embeddings on a GPU: drawn and learned there, with the CPU's weights to rounding."""

import gc

import numpy as np
import pytest
import torch

from penstock.train import build
from penstock.train import run as run_module
from training_graphs import (
    InterruptAfter,
    assert_same_state,
    community_graph,
    newest_checkpoint,
    trained,
    typed_graph,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
FEW = {"fanouts": [5, 3], "hidden": 16, "batch_size": 32, "epochs": 3, "evaluate_every": 0, "embedding": 8}
GRAPHS = {"typed": lambda: typed_graph(), "learned": lambda: community_graph(300, features=False)}
CASES = [
    ("typed", {"model": "rgcn"}),
    ("typed", {"model": "sage", "aggregate": "sum"}),
    ("typed", {"model": "gat", "heads": 2, "attention_dropout": 0.2}),
    ("typed", {"model": "hgt", "heads": 2, "attention_dropout": 0.2}),
    ("typed", {"model": "rgcn", "placement": {"topology": "pinned", "features": "pinned"}}),
    ("typed", {"model": "rgcn", "task": "link-prediction", "target": "author__writes__paper", "corrupt": "both"}),
    (
        "typed",
        {
            "model": "hgt",
            "task": "link-prediction",
            "target": "paper__cites__paper",
            "negatives": "joint",
            "heads": 2,
            "loss": "softmax",
            "filtered": True,
        },
    ),
    ("learned", {"model": "sage"}),
    ("learned", {"model": "gcn", "embedding_optimiser": "adagrad", "clip": 0.5}),
]


def assert_close(ours, theirs, tolerance=1e-2):
    mine, right = newest_checkpoint(ours), newest_checkpoint(theirs)
    for name, values in right["learned"].items():
        assert (mine["learned"][name].float().cpu() - values.cpu()).norm() <= tolerance * values.norm() + 1e-6, name
    for name, table in right["tables"].items():
        assert mine["tables"][name]["steps"] == table["steps"]
        rows, wanted = (np.asarray(each["rows"]) for each in (mine["tables"][name], table))
        assert np.linalg.norm(rows - wanted) <= tolerance * np.linalg.norm(wanted)


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("graph, fields", CASES)
def test_learns_what_the_cpu_learns(graph, fields, capture, tmp_path):
    job = {**FEW, **fields}
    on_cpu = {name: value for name, value in job.items() if name != "placement"}
    trained(GRAPHS[graph](), tmp_path / "cpu", **on_cpu, device="cpu")
    gc.collect()
    before = torch.cuda.memory_allocated() / (1 << 20)
    drawn = "device" if capture or "task" not in fields else "auto"
    run = trained(GRAPHS[graph](), tmp_path / "gpu", **job, device="cuda", capture=capture, sample_on=drawn)
    said = " ".join(run.result["placement"]["why"])
    placed = fields.get("placement", {}).get("topology", "device" if drawn == "device" else "host")
    assert run.result["placement"]["topology"] == placed
    assert ("Steps are captured" in said) == capture, said
    assert_close(tmp_path / "gpu", tmp_path / "cpu")
    assert run.result["device_peak_mb"] - before <= 1.01 * run.result["device_predicted_mb"] + 1


@pytest.mark.parametrize("graph, fields", [CASES[0], CASES[3], CASES[5], CASES[7]])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(graph, fields, tmp_path, monkeypatch):
    job = {**FEW, **fields, "checkpoint_steps": 2, "device": "cuda"}
    trained(GRAPHS[graph](), tmp_path / "whole", **job)
    monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(3))
    trained(GRAPHS[graph](), tmp_path / "cut", **job)
    monkeypatch.undo()
    run_module.resume_run(tmp_path / "cut", GRAPHS[graph]())
    whole, cut = newest_checkpoint(tmp_path / "whole"), newest_checkpoint(tmp_path / "cut")
    for part in ("learned", "optimiser", "tables"):
        assert_same_state(whole[part], cut[part])


def test_a_run_goes_on_on_the_cpu_and_back(tmp_path, monkeypatch):
    graph, job, run = typed_graph(), {**FEW, "model": "rgcn"}, tmp_path / "run"
    monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(1))
    trained(graph, run, **job)
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(build, "chosen_device", lambda _, name=device: torch.device(name))
        if device == "cuda":
            monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(10**9))
        run_module.resume_run(run, graph)
    trained(graph, tmp_path / "whole", **job)
    assert_close(run, tmp_path / "whole")
