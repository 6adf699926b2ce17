"""Training on a GPU: the CPU's batches, its weights to rounding, and the same weights after an interruption."""

import numpy as np
import pytest
import torch

from penstock.train import build
from penstock.train import run as run_module
from refusals import refused
from training_graphs import (
    InterruptAfter,
    assert_same_state,
    clusters_by_number,
    community_graph,
    newest_checkpoint,
    trained,
    typed_graph,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
OPTIMISERS = ["RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop"]
FEW = {"fanouts": [5, 3], "hidden": 16, "batch_size": 32, "epochs": 3, "evaluate_every": 0}


def weights(run):
    return {name: values.float() for name, values in newest_checkpoint(run)["learned"].items()}


def assert_close(a, b, tolerance=2e-3):
    for name, mine in weights(a).items():
        theirs = weights(b)[name]
        assert (mine - theirs).norm() <= tolerance * theirs.norm() + 1e-6, name


@pytest.mark.parametrize("model", ["sage", "gcn", "gin", "gat", "gatv2", "mlp"])
def test_learns_what_the_cpu_learns(model, tmp_path):
    graph, job = community_graph(400), {**FEW, "model": model, "heads": 2}
    trained(graph, tmp_path / "cpu", **job, device="cpu")
    ours = trained(graph, tmp_path / "gpu", **job, device="cuda")
    one_by_one = trained(graph, tmp_path / "one", **job, device="cuda", capture=False)
    assert ours.result["device"] == "cuda" and ours.result["placement"]["topology"] == "device"
    assert_close(tmp_path / "gpu", tmp_path / "cpu")
    assert_close(tmp_path / "one", tmp_path / "cpu")
    for each in (ours, one_by_one):
        assert each.result["batches_per_second"] > 0 and each.result["device_peak_mb"] > 0
        assert abs(each.test["accuracy"] - ours.test["accuracy"]) < 0.05


def test_the_same_bits_twice(tmp_path):
    graph = community_graph(400)
    for name in ("a", "b"):
        trained(graph, tmp_path / name, **FEW, device="cuda")
    assert_same_state(newest_checkpoint(tmp_path / "a"), newest_checkpoint(tmp_path / "b"))


@pytest.mark.parametrize("capture", [True, False])
def test_a_resumed_run_ends_with_the_weights_of_one_that_was_not_interrupted(capture, tmp_path, monkeypatch):
    graph, job = community_graph(400), {**FEW, "capture": capture, "checkpoint_steps": 5, "schedule": "StepLR"}
    job["schedule_options"] = {"step_size": 1, "gamma": 0.7}
    trained(graph, tmp_path / "whole", **job, device="cuda")
    monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(3))
    trained(graph, tmp_path / "cut", **job, device="cuda")
    monkeypatch.undo()
    run_module.resume_run(tmp_path / "cut", graph)
    whole, cut = newest_checkpoint(tmp_path / "whole"), newest_checkpoint(tmp_path / "cut")
    assert_same_state(whole["learned"], cut["learned"])
    assert_same_state(whole["optimiser"], cut["optimiser"])


def test_a_batch_that_lacks_room_is_learned_from_all_the_same(tmp_path, monkeypatch):
    from penstock.sampling.device.block import Room
    from penstock.train.device import decision

    graph = community_graph(400)
    trained(graph, tmp_path / "roomy", **FEW, device="cuda")
    monkeypatch.setattr(decision, "presampled_room", lambda *_: Room((32, 96, 200), (128, 256)))
    trained(graph, tmp_path / "tight", **FEW, device="cuda")
    assert_close(tmp_path / "tight", tmp_path / "roomy", 1e-4)


@pytest.mark.parametrize(
    "placement",
    [
        {"features": "pinned"},
        {"features": "pinned", "cache_rows": 150},
        {"features": "pinned", "cache_rows": 150, "cache_by": "degree"},
        {"features": "host"},
        {"topology": "pinned"},
        {"topology": "host"},
        {"topology": "pinned", "features": "pinned"},
    ],
)
def test_where_things_live_changes_nothing_that_is_learned(placement, tmp_path):
    graph = community_graph(400)
    trained(graph, tmp_path / "device", **FEW, device="cuda")
    run = trained(graph, tmp_path / "other", **FEW, device="cuda", placement=placement)
    for name, where in placement.items():
        if name != "cache_by":
            assert run.result["placement"][name] == where
    if "cache_rows" in placement:
        assert 0 < run.result["placement"]["hit_rate"] < 1
    assert_close(tmp_path / "other", tmp_path / "device", 1e-4)


@pytest.mark.parametrize("compute", ["tf32", "bfloat16", "float16"])
@pytest.mark.parametrize("capture", [True, False])
def test_coarser_types_learn_too(compute, capture, tmp_path):
    graph, job = community_graph(400), {**FEW, "epochs": 6, "evaluate_every": 1, "capture": capture}
    exact = trained(graph, tmp_path / "exact", **job, device="cuda")
    run = trained(graph, tmp_path / "coarse", **job, device="cuda", compute_type=compute, feature_type="float16")
    assert abs(run.result["train_loss"] - exact.result["train_loss"]) < 0.1
    assert abs(run.val["accuracy"] - exact.val["accuracy"]) < 0.1


@pytest.mark.parametrize("sample_on", ["host", "device", "hybrid"])
def test_who_draws_changes_nothing(sample_on, tmp_path):
    graph, job = community_graph(400), {**FEW, "sample_threads": 2, "capture": False}
    trained(graph, tmp_path / "a", **job, device="cuda")
    trained(graph, tmp_path / "b", **job, device="cuda", sample_on=sample_on)
    assert_same_state(newest_checkpoint(tmp_path / "a")["learned"], newest_checkpoint(tmp_path / "b")["learned"])


@pytest.mark.parametrize("model", ["rgcn", "gat", "sage"])
def test_graphs_of_several_types(model, tmp_path):
    job = {**FEW, "model": model, "heads": 2}
    trained(typed_graph(), tmp_path / "cpu", **job, device="cpu")
    run = trained(typed_graph(), tmp_path / "gpu", **job, device="cuda")
    assert run.result["placement"]["topology"] == "device"
    assert_close(tmp_path / "gpu", tmp_path / "cpu", 1e-2)


SAMPLERS = {
    "all": {"fanouts": [5, -1]},
    "many": {"fanouts": [40, 3]},
    "labor": {"sampler": "labor"},
    "labor, shared": {"sampler": "labor", "shared_draws": 4},
    "ladies": {"sampler": "ladies", "fanouts": [64, 64]},
    "fastgcn": {"sampler": "fastgcn", "fanouts": [64, 128]},
    **{kind: {"sampler": kind, "batch_size": 40, "layers": 2} for kind in ("saint-vertex", "saint-edge", "saint-walk")},
    "cluster": {"sampler": "cluster", "batch_size": 2, "layers": 2},
}


def fields_of(sampler, graph, folder):
    """A job's fields; a sampler's clusters are written into `folder`, as a GPU machine need not have METIS."""
    own = SAMPLERS[sampler]
    if sampler == "cluster":
        own = {**own, "clusters": clusters_by_number(graph, 8, folder / "clusters")}
    return {name: value for name, value in {**FEW, **own}.items() if name != "fanouts" or "layers" not in own}


@pytest.mark.parametrize("model", ["sage", "gcn"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers(sampler, model, tmp_path):
    graph = community_graph(400)
    job = {**fields_of(sampler, graph, tmp_path), "model": model}
    trained(graph, tmp_path / "cpu", **job, device="cpu")
    run = trained(graph, tmp_path / "gpu", **job, device="cuda", sample_on="device")
    assert "Steps are captured once and replayed." in run.result["placement"]["why"]
    assert_close(tmp_path / "gpu", tmp_path / "cpu", 1e-2)


@pytest.mark.parametrize("sampler", ["labor", "ladies", "saint-walk", "cluster"])
def test_a_resumed_run_of_a_sampler_ends_with_the_same_weights(sampler, tmp_path, monkeypatch):
    graph = community_graph(400)
    job = {**fields_of(sampler, graph, tmp_path), "checkpoint_steps": 1, "sample_on": "device"}
    trained(graph, tmp_path / "whole", **job, device="cuda")
    monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(2))
    trained(graph, tmp_path / "cut", **job, device="cuda")
    monkeypatch.undo()
    run_module.resume_run(tmp_path / "cut", graph)
    whole, cut = newest_checkpoint(tmp_path / "whole"), newest_checkpoint(tmp_path / "cut")
    assert_same_state(whole["learned"], cut["learned"])


class Foreign(torch.nn.Module):
    """A module that knows nothing of Penstock and draws from torch's generator."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 16), torch.nn.Linear(16, 4)

    def forward(self, x, edge_index):
        x = torch.nn.functional.dropout(self.first(x).relu(), 0.2, self.training)
        return self.last(x.index_add(0, edge_index[1], x[edge_index[0]]))


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_every_optimiser_is_captured(optimiser, tmp_path):
    graph, job = community_graph(400), {**FEW, "optimiser": optimiser, "lr": 0.01, "schedule": "StepLR"}
    job["schedule_options"] = {"step_size": 1, "gamma": 0.7}
    trained(graph, tmp_path / "cpu", **job, device="cpu")
    ours = trained(graph, tmp_path / "gpu", **job, device="cuda")
    assert ours.result["placement"]["why"][-1] == "Steps are captured once and replayed."
    assert_close(tmp_path / "gpu", tmp_path / "cpu", 1e-2)


class Reading(Foreign):
    """Reads a number on the host."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) * (1.0 if float(x.sum()) else 2.0)


class Masking(Foreign):
    """Makes a tensor whose size the host must know."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index[:, edge_index[0] != edge_index[1]])


class Making(Foreign):
    """Makes a tensor of Python's numbers on the device."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) * torch.tensor([1.0, 1.0, 1.0, 2.0], device=x.device)


class Tossing(Foreign):
    """Draws on the host."""

    def forward(self, x, edge_index):
        return super().forward(x, edge_index) * (1.0 if float(torch.rand(1)) < 2 else 2.0)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Reading, "waits for numbers of the device (aten._local_scalar_dense"),
        (Masking, "waits for numbers of the device (aten.index"),
        (Making, "copies numbers from the host (aten.lift_fresh"),
        (Tossing, "random numbers on the host"),
    ],
)
def test_a_module_that_cannot_be_captured_is_launched(module, reason, tmp_path):
    torch.manual_seed(1)
    run = trained(community_graph(400), tmp_path / "run", model=module(), **FEW, device="cuda")
    why = run.result["placement"]["why"]
    assert any("launched one by one" in each and reason in each for each in why), why


def test_a_module_of_pygs_is_captured(tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    for name, fields in (("captured", {}), ("launched", {"capture": False}), ("cpu", {"device": "cpu"})):
        torch.manual_seed(1)
        job = {**FEW, "device": "cuda", **fields}
        run = trained(community_graph(400), tmp_path / name, model=pyg.GraphSAGE(4, 16, 2, 4), **job)
        if name == "captured":
            assert run.result["placement"]["why"][-1] == "Steps are captured once and replayed."
        else:
            assert_close(tmp_path / "captured", tmp_path / name)


def test_a_module_of_the_users(tmp_path, monkeypatch):
    graph, job = community_graph(400), {**FEW, "checkpoint_steps": 4}
    for name in ("whole", "cut"):
        torch.manual_seed(1)
        if name == "cut":
            monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(6))
        trained(graph, tmp_path / name, model=Foreign(), **job, device="cuda")
    monkeypatch.undo()
    run_module.resume_run(tmp_path / "cut", graph, Foreign())
    for name, values in weights(tmp_path / "whole").items():
        torch.testing.assert_close(values, weights(tmp_path / "cut")[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("task", ["edge-classification", "edge-regression"])
def test_edges_with_classes_and_numbers(tmp_path, task):
    graph = community_graph(300)
    (edges,) = graph.edges.values()
    edges.fields["y"] = (edges.indices % 3).astype(np.int64)
    job = {**FEW, "task": task, "evaluate_every": 1}
    trained(graph, tmp_path / "cpu", **job, device="cpu")
    trained(graph, tmp_path / "gpu", **job, device="cuda")
    assert_close(tmp_path / "gpu", tmp_path / "cpu", 1e-2)


def test_a_gpus_run_goes_on_on_the_cpu_and_back(tmp_path, monkeypatch):
    graph = community_graph(400)
    run = tmp_path / "run"
    monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(1))
    trained(graph, run, **FEW)
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(build, "chosen_device", lambda _, name=device: torch.device(name))
        if device == "cuda":
            monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(10**9))
        run_module.resume_run(run, graph)
    trained(graph, tmp_path / "whole", **FEW)
    assert_close(run, tmp_path / "whole")


def test_links_and_learnable_rows(tmp_path):
    job = {**FEW, "task": "link-prediction"}
    graph = community_graph(300, features=False)
    trained(graph, tmp_path / "cpu", **job, device="cpu")
    trained(graph, tmp_path / "gpu", **job, device="cuda")
    assert_close(tmp_path / "gpu", tmp_path / "cpu", 1e-2)


def test_multi_label_numbers_and_a_last_batch_that_is_small(tmp_path):
    rng = np.random.default_rng(0)
    for name, labels in (
        ("several", (rng.random((400, 3)) < 0.4).astype(np.float32)),
        ("number", rng.normal(size=400).astype(np.float32)),
    ):
        job = {**FEW, "batch_size": 50, "label": "t", "task": "auto" if name == "several" else "node-regression"}
        graph = community_graph(400, fields={"t": labels})
        trained(graph, tmp_path / name / "cpu", **job, device="cpu")
        trained(graph, tmp_path / name / "gpu", **job, device="cuda")
        assert_close(tmp_path / name / "gpu", tmp_path / name / "cpu", 5e-3)


def test_too_large_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (1 << 20, 1 << 20))
    with refused("out-of-memory"):
        trained(community_graph(400), tmp_path / "run", **FEW, device="cuda")
    assert not (tmp_path / "run").exists()
