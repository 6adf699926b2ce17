"""Runs with sampler explained: reproducible, whoever is killed; explanations are in the result."""

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from cluster_runs import (
    at_report_of_epoch,
    cluster_file,
    disturbed_run,
    in_parts,
    losses_of,
    machines,
    recorded_starts,
    run_on,
)
from refusals import refused
from training_graphs import assert_same_state, community_graph, facts_of, newest_checkpoint, typed_graph

EXPLAINED = {
    "sampler": "explained",
    "explain_every": 4,
    "explain_delay": 2,
    "explain_steps": 5,
    "explain_rows": 40,
    "feature_share": 0.5,
    "epochs": 8,
    "checkpoint_steps": 5,
    "seed": 3,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    graph = community_graph().save(folder / "graph")
    cluster = cluster_file(folder, machines=machines(1, 1), partition=in_parts(graph, 2, folder))
    return folder, graph.path, cluster


@pytest.fixture(scope="module")
def whole(place):
    folder, graph, cluster = place
    return run_on(cluster, graph, folder / "whole", **EXPLAINED).path


def explanations_of(run):
    return facts_of(run.path)["result"]["explanations"]


def assert_same_run(run, other):
    assert losses_of(run) == losses_of(other)
    assert_same_state(newest_checkpoint(run)["learned"], newest_checkpoint(other)["learned"])


def test_explanations_are_made(whole):
    result = facts_of(whole)["result"]
    found = result["explanations"]
    assert found["every"] == 4 and found["made"] >= 3 and found["bytes_pulled"] > 0 and found["score_bytes_sent"] > 0
    assert sum(found["scores_histogram"]) == found["explained_rows"] <= 40 < found["halo_rows"]
    sent, every = found["columns_sent"]["node"], found["columns_in_all"]["node"]
    assert sent == (every + 1) // 2
    uses = result["batch_bytes"]
    (batches,) = (each for each in result["coflows"] if each["kind"] == "batch")
    assert uses["rows"] + uses["lists"] == batches["bytes"] and min(uses["rows"], uses["lists"]) > 0
    assert uses["explanations"] > found["bytes_pulled"] + found["score_bytes_sent"] and not uses["blocks"]
    rows, remote = found["rows"], found["vertices"]["remote"]
    assert 0 < rows["pulled"] <= remote <= found["vertices"]["all"]
    assert rows["bytes"] == rows["bytes_as_stored"] // 2


@pytest.mark.long
def test_explanations_save_bytes(place, whole):
    folder, graph, cluster = place
    plain = run_on(cluster, graph, folder / "plain", **{**EXPLAINED, "feature_share": 1.0, "remote_bias": 0.0})
    assert facts_of(whole)["result"]["bytes_received"] < facts_of(plain.path)["result"]["bytes_received"]


@pytest.mark.long
@pytest.mark.parametrize("task", ["worker-0", "worker-1", "store-m1"])
def test_a_task_that_is_killed_changes_nothing(place, whole, task):
    folder, graph, cluster = place
    found = disturbed_run(task, 4, cluster, graph, folder / f"without-{task}", **EXPLAINED)
    assert_same_run(found.path, whole)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_explainer_that_is_killed_or_paused_is_replaced(place, whole, how):
    folder, graph, cluster = place
    hurried = cluster_file(folder, machines=machines(1, 1), partition=in_parts_of(cluster), failure={"patience": 5.0})

    def disturb():
        for handle in handles.values():
            for child in psutil.Process(handle.pid).children():
                if "explainer_process" in " ".join(child.cmdline()):
                    os.kill(child.pid, how)
                    hit.append(child.pid)

    hit = []
    with recorded_starts() as handles, at_report_of_epoch(3, disturb):
        found = run_on(hurried, graph, folder / f"disturbed-{how}", **EXPLAINED)
    assert hit
    assert_same_run(found.path, whole)


@pytest.mark.long
def test_explanations_are_as_rare_as_the_arithmetic_says(place, tmp_path):
    _, graph, cluster = place
    told = explanations_of(run_on(cluster, graph, tmp_path / "rare", **{**EXPLAINED, "explain_every": "auto"}))
    # 15 seeds for each worker, and the 4 that each draws at the first hop: 75 rows, less those that repeat.
    assert 5 * (250 + 40) / (0.03 * 75) < told["every"] < 5 * (250 + 40) / (0.03 * 50)
    assert told["made"] == 0


@pytest.fixture(scope="module")
def typed_place(tmp_path_factory):
    """A graph whose node types all have features, of different widths, in two parts."""
    folder, graph = tmp_path_factory.mktemp("typed"), typed_graph()
    rng = np.random.default_rng(0)
    for width, nodes in enumerate(graph.nodes.values(), 4):
        nodes.fields["x"] = rng.normal(size=(nodes.count, width)).astype(np.float32)
    graph = graph.save(folder / "graph")
    return folder, graph.path, cluster_file(folder, machines=machines(1, 1), partition=in_parts(graph, 2, folder))


@pytest.mark.long
@pytest.mark.parametrize("model", ["gcn", "gat", "rgcn"])
def test_every_model_of_one_type_is_explained(place, tmp_path, model):
    _, graph, cluster = place
    fields = {**EXPLAINED, "model": model, "epochs": 4}
    told = explanations_of(run_on(cluster, graph, tmp_path / "run", **fields))
    assert told["made"] > 0 and told["rows"]["pulled"] > 0 and told["columns_sent"] == {"node": 2}


@pytest.mark.long
@pytest.mark.parametrize("model", ["sage", "gat", "rgcn"])
def test_several_types_are_explained_apart(typed_place, tmp_path, model):
    _, graph, cluster = typed_place
    fields = {**EXPLAINED, "model": model, "epochs": 4}
    told = explanations_of(run_on(cluster, graph, tmp_path / "run", **fields))
    assert told["made"] > 0 and set(told["columns_sent"]) == {"paper", "author"}
    assert all(2 * sent <= told["columns_in_all"][name] + 1 for name, sent in told["columns_sent"].items())


@pytest.mark.long
def test_several_types_are_the_same_after_a_kill(typed_place, tmp_path):
    _, graph, cluster = typed_place
    fields = {**EXPLAINED, "model": "rgcn", "epochs": 6}
    undisturbed = run_on(cluster, graph, tmp_path / "whole", **fields)
    assert_same_run(disturbed_run("worker-1", 4, cluster, graph, tmp_path / "killed", **fields).path, undisturbed.path)


def test_what_is_not_supported_is_said(place):
    folder, graph, cluster = place
    with refused("conflicting-options explain_every"):
        run_on(cluster, graph, folder / "refused", explain_every=5)
    with refused("unsupported-combination"):
        run_on(cluster, graph, folder / "refused", **{**EXPLAINED, "groups": 2})
    drawn = cluster_file(folder, machines=machines(1, 1), partition=in_parts_of(cluster), samplers=1)
    with refused("unsupported-combination samplers"):
        run_on(drawn, graph, folder / "refused", **EXPLAINED)


def in_parts_of(cluster):
    return yaml.safe_load(Path(cluster).read_text())["partition"]
