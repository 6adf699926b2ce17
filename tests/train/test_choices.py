"""Whatever can be named trains: samplers, optimisers, schedules, models. Patience and the best model work as said."""

import numpy as np
import pytest
import torch
import yaml

from penstock.graph.csr import build_lists
from penstock.partition import Cut, cut
from penstock.store.embedding import EmbeddingTable
from penstock.train.job import Job, JobFields, make_job
from penstock.train.optimisers import make_optimiser, make_schedule, step_schedule
from penstock.train.run_files.checkpoints import read_state, write_state
from refusals import refused
from training_graphs import best_checkpoint, community_graph, lines_of, newest_checkpoint, trained, typed_graph


@pytest.fixture(scope="module")
def graph():
    return community_graph()


@pytest.mark.parametrize(
    "fields",
    [
        {"sampler": "neighbour", "replace": True},
        {"sampler": "neighbour", "fanouts": [-1, 3]},
        {"sampler": "labor"},
        {"sampler": "fastgcn", "fanouts": [80, 80]},
        {"sampler": "ladies", "fanouts": [40, 40]},
        {"sampler": "saint-vertex", "batch_size": 60, "layers": 2},
        {"sampler": "saint-edge", "batch_size": 60, "layers": 2},
        {"sampler": "saint-walk", "batch_size": 20, "walk_length": 3, "layers": 2},
        {"sampler": "cluster", "clusters": 8, "batch_size": 2, "layers": 2},
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_samplers(fields, graph, tmp_path):
    run = trained(graph, tmp_path / "run", **{"epochs": 8, "lr": 0.02, **fields})
    losses = [record["loss"] for record in lines_of(run.path) if record["kind"] == "epoch"]
    assert losses[-1] < losses[0]
    assert run.test["accuracy"] > 0.5


def test_a_partition_as_clusters(graph, tmp_path):
    saved = graph.save(tmp_path / "graph")
    cut(saved, Cut(4), tmp_path / "parts")
    fields = {"sampler": "cluster", "clusters": str(tmp_path / "parts"), "batch_size": 2, "layers": 2}
    assert trained(saved, tmp_path / "run", epochs=8, lr=0.02, **fields).test["accuracy"] > 0.5


def test_weights_and_times(tmp_path):
    graph = community_graph(fields={"t": np.arange(200)})
    edges = graph.edges["node", "to", "node"]
    edges.fields["w"] = np.random.default_rng(0).random(edges.count).astype(np.float32)
    edges.fields["t"] = np.arange(edges.count) % 200
    assert trained(graph, tmp_path / "w", weight="w", epochs=6, lr=0.02).test["accuracy"] > 0.5
    run = trained(graph, tmp_path / "t", time="t", epochs=6, lr=0.02)
    assert run.test["accuracy"] > 0.4
    featureless = community_graph(features=False, fields={"t": np.arange(200)})
    lists = featureless.edges["node", "to", "node"]
    lists.fields["t"] = np.arange(lists.count) % 200
    run = trained(featureless, tmp_path / "e", time="t", embedding=8)
    assert not np.array_equal(newest_checkpoint(run.path)["tables"]["node"]["moment0"], 0)


def test_fanouts_a_relation(tmp_path):
    fanouts = [{"author__writes__paper": 3, "paper__cites__paper": 2}, 4]
    assert trained(typed_graph(), tmp_path / "run", model="rgcn", fanouts=fanouts, embedding=8).test["accuracy"] > 0.3
    with refused("unknown-name writs"):
        trained(typed_graph(), tmp_path / "none", model="rgcn", fanouts=[{"writs": 3}, 4])


def every(module, base):
    """Names of the classes of a torch module that a job may name."""
    return sorted(name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, base))


NOT_FOR_JOBS = {"Optimizer", "LBFGS", "SparseAdam", "Muon"}


@pytest.mark.parametrize("name", [n for n in every(torch.optim, torch.optim.Optimizer) if n not in NOT_FOR_JOBS])
def test_optimisers_step_and_come_back_from_a_file(name, tmp_path):
    def steps(optimiser, model, count):
        for _ in range(count):
            optimiser.zero_grad()
            model(torch.arange(12.0).reshape(3, 4)).square().sum().backward()
            optimiser.step()

    job = make_job({"optimiser": name, "lr": 0.01})
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimiser = make_optimiser(model.parameters(), job)
    before = model.weight.detach().clone()
    steps(optimiser, model, 2)
    assert not torch.equal(before, model.weight)
    write_state(tmp_path / "a.ckpt", {"model": model.state_dict(), "optimiser": optimiser.state_dict()})
    state = read_state(tmp_path / "a.ckpt")
    other = torch.nn.Linear(4, 2)
    other.load_state_dict(state["model"])
    resumed = make_optimiser(other.parameters(), job)
    resumed.load_state_dict(state["optimiser"])
    steps(optimiser, model, 3)
    steps(resumed, other, 3)
    assert torch.equal(model.weight, other.weight)


SCHEDULES = {
    "ConstantLR": {},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": 0.001, "max_lr": 0.1, "cycle_momentum": False},
    "ExponentialLR": {"gamma": 0.9},
    "LinearLR": {},
    "MultiStepLR": {"milestones": [2, 4]},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 9},
    "PolynomialLR": {},
    "ReduceLROnPlateau": {"patience": 0},
    "StepLR": {"step_size": 2},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_step_and_come_back_from_a_file(name, tmp_path):
    job = make_job({"schedule": name, "schedule_options": SCHEDULES[name], "lr": 0.01})

    def made():
        optimiser = make_optimiser(torch.nn.Linear(2, 2).parameters(), job)
        return optimiser, make_schedule(optimiser, job)

    def stepped(optimiser, schedule, count):
        rates = []
        for _ in range(count):
            optimiser.step()
            step_schedule(schedule, 0.5, "higher")
            rates.append(optimiser.param_groups[0]["lr"])
        return rates

    optimiser, schedule = made()
    first = stepped(optimiser, schedule, 3)
    write_state(tmp_path / "a.ckpt", {"o": optimiser.state_dict(), "s": schedule.state_dict()})
    state = read_state(tmp_path / "a.ckpt")
    again, resumed = made()
    again.load_state_dict(state["o"])
    resumed.load_state_dict(state["s"])
    rest = stepped(optimiser, schedule, 4)
    assert rest == stepped(again, resumed, 4)
    assert len(set(first + rest)) > 1


def test_a_plateau_lowers_the_rate_by_the_validation_metric(graph, tmp_path):
    options = {"patience": 0, "factor": 0.5}
    job = {"schedule": "ReduceLROnPlateau", "schedule_options": options, "lr": 0.016, "epochs": 10}
    run = trained(graph, tmp_path / "run", **job)
    records = [record for record in lines_of(run.path) if record["kind"] == "epoch"]
    rate, best, expected = 0.016, -1.0, []
    for value in (record["val"]["accuracy"] for record in records):
        rate, best = (rate, value) if value > best else (rate / 2, best)
        expected.append(rate)
    assert [record["lr"] for record in records] == expected
    assert len(set(expected)) > 1
    with refused("conflicting-options"):
        trained(graph, tmp_path / "none", **{**job, "schedule_options": {"mode": "max"}})


def test_options_reach_the_optimiser():
    job = make_job({"optimiser": "SGD", "lr": 0.5, "weight_decay": 0.1, "optimiser_options": {"momentum": 0.9}})
    group = make_optimiser(torch.nn.Linear(2, 2).parameters(), job).param_groups[0]
    assert (group["lr"], group["weight_decay"], group["momentum"]) == (0.5, 0.1, 0.9)


def test_patience_stops_and_the_best_model_is_the_best_epochs(graph, tmp_path):
    run = trained(graph, tmp_path / "run", epochs=40, patience=3, lr=0.05)
    assert run.state == "stopped-early"
    values = [record["val"]["accuracy"] for record in lines_of(run.path) if record["kind"] == "epoch"]
    best = int(np.argmax(values))
    assert len(values) == best + 4 == run.result["epochs"]
    assert run.result["best_epoch"] == best + 1
    kept = best_checkpoint(run.path)
    assert (run.path / "checkpoints" / f"best-{best + 1:06d}.ckpt").exists()
    assert run.val["accuracy"] == values[best]
    shorter = trained(graph, tmp_path / "shorter", epochs=best + 1, lr=0.05)
    for name, values in newest_checkpoint(shorter.path)["learned"].items():
        assert torch.equal(values, kept["learned"][name]), name


def test_a_metric_that_should_be_low(tmp_path):
    graph = community_graph()
    graph.nodes["node"].fields["y"] = np.random.default_rng(0).random(200).astype(np.float32)
    run = trained(graph, tmp_path / "run", epochs=6, metric="rmse", lr=0.05)
    values = [record["val"]["rmse"] for record in lines_of(run.path) if record["kind"] == "epoch"]
    assert run.result["best_epoch"] == int(np.argmin(values)) + 1


@pytest.mark.parametrize("every", [0, 2])
def test_validations_are_as_frequent_as_asked_for(every, graph, tmp_path):
    run = trained(graph, tmp_path / "run", epochs=5, evaluate_every=every)
    validated = [record["epoch"] for record in lines_of(run.path) if record["kind"] == "epoch" and "val" in record]
    assert validated == ([] if every == 0 else [1, 3, 4])
    assert run.val and run.test


def test_checkpoints_by_steps_and_how_many_are_kept(graph, tmp_path):
    run = trained(graph, tmp_path / "run", checkpoint_steps=4, keep_checkpoints=3)
    names = sorted(file.name for file in (run.path / "checkpoints").iterdir())
    assert names[-3:] == [f"step-{step:012d}.ckpt" for step in (8, 12, 14)]
    assert f"best-{run.result['best_epoch']:06d}.ckpt" in names[:-3]
    assert len(names) <= 6


def test_checkpoints_by_minutes(graph, tmp_path):
    run = trained(graph, tmp_path / "run", checkpoint_minutes=1e-9, keep_checkpoints=100)
    assert len(list((run.path / "checkpoints").glob("step-*.ckpt"))) == 15


def test_clipping_limits_gradients(graph, tmp_path):
    job = {"optimiser": "SGD", "lr": 1.0, "epochs": 1, "batch_size": 1000, "dropout": 0.0}
    runs = [trained(graph, tmp_path / str(clip), **job, clip=clip, checkpoint_steps=1) for clip in (0.0, 1e-3)]
    moved = []
    for run in runs:
        first, last = (read_state(file)["learned"] for file in sorted((run.path / "checkpoints").glob("step-*")))
        moved.append(float(sum((last[name] - first[name]).square().sum() for name in first).sqrt()))
    assert moved[1] == pytest.approx(1e-3, rel=1e-3)
    assert moved[0] > 1e-2


def test_rows_of_features_can_be_scaled(tmp_path):
    graph = community_graph()
    graph.nodes["node"].fields["x"] = np.abs(graph.nodes["node"].x) * 100
    scaled = community_graph()
    x = graph.nodes["node"].x
    scaled.nodes["node"].fields["x"] = (x / x.sum(1, keepdims=True)).astype(np.float32)
    a = trained(graph, tmp_path / "a", scale_features="rows")
    b = trained(scaled, tmp_path / "b")
    for name, values in newest_checkpoint(a.path)["learned"].items():
        torch.testing.assert_close(values, newest_checkpoint(b.path)["learned"][name], rtol=1e-3, atol=1e-4)


def test_models_of_the_zoo(graph, tmp_path):
    for model in ("sage", "gcn", "gat", "gatv2", "gin", "rgcn", "mlp"):
        run = trained(graph, tmp_path / model, model=model, epochs=6, lr=0.02)
        assert run.test["accuracy"] > 0.35, model
    alone = community_graph()
    indptr, indices, _ = build_lists(np.empty(0, np.int64), np.empty(0, np.int64), 200, 200)
    alone.edges["node", "to", "node"].indptr, alone.edges["node", "to", "node"].indices = indptr, indices
    assert trained(alone, tmp_path / "alone", model="sage", epochs=6, lr=0.02).test["accuracy"] > 0.35


def test_a_job_is_written_with_every_field(graph, tmp_path):
    from penstock.train.job import read_job

    run = trained(graph, tmp_path / "run")
    job = read_job(run.path / "job.yaml")
    assert set(job.model_fields_set) == set(Job.model_fields)
    assert set(yaml.safe_load((run.path / "job.yaml").read_text())) == set(JobFields.model_fields)
    assert (job.fanouts, job.hidden) == ([4, 3], 16)


def test_clipping_counts_embeddings_too(tmp_path, monkeypatch):
    norms = []
    push = EmbeddingTable.push
    monkeypatch.setattr(
        EmbeddingTable, "push", lambda table, ids, rows: (norms.append(np.linalg.norm(rows)), push(table, ids, rows))
    )
    trained(community_graph(features=False), tmp_path / "run", clip=1e-3)
    assert norms and max(norms) <= 1.01e-3


def test_rates_are_of_all_examples_and_all_training_seconds(graph, tmp_path):
    run = trained(graph, tmp_path / "run", epochs=3)
    examples = 3 * len(graph.split("train"))
    assert run.result["seeds_per_second"] == pytest.approx(examples / sum(run.result["epoch_seconds"]), rel=0.01)
