"""Clusters whose workers compute on a GPU: by NCCL, alone and in pairs, or sharing one; and those that are killed."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from cluster_runs import (
    JOB,
    assert_same_losses,
    at_report_of_epoch,
    cluster_file,
    disturbed_run,
    in_parts,
    losses_of,
    machines,
    one_gpu_for_all,
    recorded_starts,
    result_of,
    run_on,
)
from penstock import train
from refusals import refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained, typed_graph

pytestmark = [
    pytest.mark.gpu,
    # Not by a fixture: those of the module come first, and start whole runs.
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

LONG = {"device": "cuda", "epochs": 8, "checkpoint_steps": 3, "evaluate_every": 2}
"""Long enough for a worker to be missed."""
ROUNDING = 1e-4
"""Losses of a few steps: sums of 32-bit numbers in another order."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A graph in two parts, and clusters: a worker with a GPU, a pair with one each, and two that share one."""
    folder = tmp_path_factory.mktemp("gpus")
    graph = community_graph().save(folder / "graph")
    parts = in_parts(graph, 2, folder)
    failure = {"patience": 15}
    own = [*machines(1, gpus=1), {"name": "bare", "workers": 0}]
    clusters = {
        "own": cluster_file(folder, machines=own, partition=parts),
        "pair": cluster_file(folder, machines=machines(1, 1, gpus=1), partition=parts, failure=failure),
        "shared": cluster_file(folder, machines=machines(2, gpus=1), partition=parts, share_gpus=True),
    }
    return folder, graph, clusters


@pytest.fixture(scope="module")
def whole(place):
    """The run that nothing happened to, by cluster; `one` is of one machine."""
    folder, graph, clusters = place

    @cache
    def run(name: str) -> Path:
        if name == "one":
            return Path(trained(graph, folder / "one", **{**JOB, **LONG, "capture": False}).path)
        with one_gpu_for_all():
            return run_on(clusters[name], graph.path, folder / name, **LONG).path

    return run


@pytest.mark.parametrize("cluster", ["own", "pair", "shared"])
def test_a_cluster_loses_as_one_gpu_does(whole, cluster):
    run, one = whole(cluster), whole("one")
    assert_same_losses(run, one, ROUNDING)
    result = result_of(run)
    assert result["device"] == "cuda" and result["device_peak_mb"] > 0 and result["device_predicted_mb"] > 0
    # Parts of other machines stay there; where all are here, the worker has the graph on its GPU.
    where = "device" if cluster == "shared" else "host"
    assert result["placement"]["features"] == result["placement"]["topology"] == where and result["placement"]["why"]
    assert result["test"] == pytest.approx(result_of(one)["test"], abs=0.02)


@pytest.mark.parametrize("capture", [True, False])
def test_a_worker_has_the_graph_on_its_gpu(place, whole, tmp_path, capture):
    """Asked for, it is brought from the parts of other machines too; a lost worker brings it again."""
    _, graph, clusters = place
    asked = {"placement": {"topology": "device", "features": "device"}, "capture": capture}
    with one_gpu_for_all():
        calm = run_on(clusters["pair"], graph.path, tmp_path / "calm", **{**LONG, **asked})
        hit = disturbed_run("worker-1", 3, clusters["pair"], graph.path, tmp_path / "hit", **{**LONG, **asked})
    assert_same_losses(calm.path, whole("one"), ROUNDING)
    placement = result_of(calm.path)["placement"]
    assert placement["topology"] == placement["features"] == "device"
    assert any("captured" in sentence for sentence in placement["why"]) == capture
    assert_same_state(newest_checkpoint(hit.path), newest_checkpoint(calm.path))


@pytest.mark.parametrize("count", [2, 4])
def test_gpus_of_one_host_are_as_one(place, whole, tmp_path, count):
    """The graph's own folder is opened by all; each GPU has all of it, draws its share and captures its steps."""
    _, graph, _ = place
    with one_gpu_for_all(), patch("torch.cuda.device_count", lambda: count):
        calm = train(graph, gpus=count, run=str(tmp_path / "calm"), **{**JOB, **LONG})
        with recorded_starts() as handles:
            lost = at_report_of_epoch(3, lambda: os.kill(handles["worker-1"].pid, signal.SIGKILL))
            with lost:
                hit = train(graph, gpus=count, run=str(tmp_path / "hit"), **{**JOB, **LONG})
    assert_same_losses(calm.path, whole("one"), ROUNDING)
    placement = result_of(calm.path)["placement"]
    assert placement["topology"] == placement["features"] == "device"
    assert any("captured" in sentence for sentence in placement["why"])
    assert [path.name for path in (calm.path / "parts").rglob("*.npy")] == ["original.npy"]
    assert_same_state(newest_checkpoint(hit.path), newest_checkpoint(calm.path))
    assert len(result_of(hit.path)["recoveries"]) == 1


def test_pinned_tables_are_shared(place, whole, tmp_path):
    """Lists and features in one pinned copy for all, which a worker that was lost finds again."""
    _, graph, _ = place
    asked = {"placement": {"topology": "pinned", "features": "pinned", "cache_rows": 20}}
    cluster = cluster_file(tmp_path, machines=machines(2, gpus=2), method="none", failure={"patience": 15})
    with one_gpu_for_all():
        calm = run_on(cluster, graph.path, tmp_path / "calm", **{**LONG, **asked})
        hit = disturbed_run("worker-1", 3, cluster, graph.path, tmp_path / "hit", **{**LONG, **asked})
    assert_same_losses(calm.path, whole("one"), ROUNDING)
    placement = result_of(calm.path)["placement"]
    assert placement["topology"] == placement["features"] == "pinned" and placement["hit_rate"] > 0
    assert any("captured" in sentence for sentence in placement["why"])
    assert_same_state(newest_checkpoint(hit.path), newest_checkpoint(calm.path))


def test_gpus_of_their_own_are_taken_by_themselves(place, whole, tmp_path, monkeypatch):
    """The same bits twice; summed by NCCL, as the log says."""
    _, graph, clusters = place
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")
    with one_gpu_for_all():
        run = run_on(clusters["pair"], graph.path, tmp_path / "run", **{**LONG, "device": "auto"})
    assert result_of(run.path)["device"] == "cuda"
    assert "NCCL version" in (run.path / "logs" / "worker-0.log").read_text()
    assert_same_state(newest_checkpoint(run.path), newest_checkpoint(whole("pair")))


MANY = {**LONG, "batch_size": 3, "epochs": 4, "placement": {"topology": "device", "features": "device"}}
"""Forty batches in an epoch: captured steps come in bursts of four."""


@pytest.mark.parametrize("fields", [{}, {"clip": 0.5, "optimiser": "SGD", "lr": 0.05}])
def test_the_only_worker_is_as_a_gpu_alone(place, tmp_path, fields):
    """The same bits, also after it was lost; what the last evaluation finds is the same number."""
    _, graph, _ = place
    one = trained(graph, tmp_path / "one", **{**JOB, **MANY, **fields})
    cluster = cluster_file(tmp_path, machines=machines(1, gpus=1))
    calm = run_on(cluster, graph.path, tmp_path / "calm", **{**MANY, **fields})
    hit = disturbed_run("worker-0", 2, cluster, graph.path, tmp_path / "hit", **{**MANY, **fields})
    for each in (calm, hit):
        ours, theirs = newest_checkpoint(each.path), newest_checkpoint(one.path)
        assert_same_state([ours["learned"], ours["optimiser"]], [theirs["learned"], theirs["optimiser"]])
        assert losses_of(each.path) == losses_of(one.path)
        assert (result_of(each.path)["val"], result_of(each.path)["test"]) == (one.val, one.test)
    assert len(result_of(hit.path)["recoveries"]) == 1


@pytest.mark.parametrize(
    "cluster, how", [("pair", signal.SIGKILL), ("pair", signal.SIGSTOP), ("shared", signal.SIGKILL)]
)
def test_bursts_of_steps_survive_a_lost_worker(place, tmp_path, cluster, how):
    """Sums of several steps may be on their way when it is lost."""
    _, graph, clusters = place
    one = trained(graph, tmp_path / "one", **{**JOB, **MANY})
    with one_gpu_for_all():
        calm = run_on(clusters[cluster], graph.path, tmp_path / "calm", **MANY)
        hit = disturbed_run("worker-1", 2, clusters[cluster], graph.path, tmp_path / "hit", how, **MANY)
    assert_same_losses(calm.path, one.path, ROUNDING)
    assert any("captured" in sentence for sentence in result_of(calm.path)["placement"]["why"])
    assert_same_state(newest_checkpoint(hit.path), newest_checkpoint(calm.path))
    assert result_of(hit.path)["test"] == result_of(calm.path)["test"]
    assert len(result_of(hit.path)["recoveries"]) == 1


def test_a_cache_of_rows_changes_nothing_that_is_learned(place, whole, tmp_path):
    """The rows that a worker reads most are on its GPU, the others come from the stores."""
    _, graph, clusters = place
    with one_gpu_for_all():
        run = run_on(clusters["pair"], graph.path, tmp_path / "run", **LONG, placement={"cache_rows": 50})
    placement = result_of(run.path)["placement"]
    assert placement["cache_rows"] == 50 and 0.25 < placement["hit_rate"] < 1 and placement["features"] == "host"
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(whole("pair"))["learned"])


def test_lists_that_exceed_the_gpu_are_not_read():
    """The size of the lists is held against the GPU's free memory before any is asked for."""
    from penstock.cluster.worker.cut_graph import CutGraph, RemoteEdges
    from penstock.cluster.worker.device_placement import against_whole_graph
    from penstock.train.build import make_session
    from penstock.train.job import make_job

    graph = community_graph()
    session = make_session(make_job({**JOB, "device": "cuda"}), graph)
    parts = SimpleNamespace(owned={0: None}, partition=SimpleNamespace(parts=1, is_uncut=False))
    (kind,), none = graph.edges, np.empty(0, np.int64)
    for edges, exceeds in ((graph.num_edges, False), (torch.cuda.mem_get_info()[1] // 4 + 1, True)):
        remote = {kind: RemoteEdges(none, none, total=edges)}
        session.graph = CutGraph(graph.nodes, remote, {}, "cut", 0)
        reasons = against_whole_graph(session, parts)
        assert len(reasons) == exceeds and all("neighbour lists alone exceed" in reason for reason in reasons)


def test_profile_and_plan_of_steps_on_a_gpu(place, tmp_path):
    _, graph, _ = place
    job, profile, plan = (tmp_path / name for name in ("job.yaml", "profile.json", "plan.json"))
    job.write_text(json.dumps({**JOB, "graph": str(graph.path), "device": "cuda"}))

    def call(*words):
        command = [sys.executable, "-c", "from penstock.cli import main; raise SystemExit(main())"]
        done = subprocess.run([*command, *map(str, words)], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]

    call("profile", job, "--cluster", "1x1", "--iterations", 6, "-o", profile)
    found = json.loads(profile.read_text())
    assert {each["device"] for each in found["operators"] if each["name"] == "step"} == {"cuda"}
    assert any(each["device"] == "cuda" and each["gb"] > 0 for each in found["memory"])
    cluster = cluster_file(tmp_path, machines=machines(2, gpus=2, nic_gbps=10))
    call("plan", job, "--cluster", cluster, "--profile", profile, "-o", plan)
    assert json.loads(plan.read_text())["job"]["device"] == "cuda"


@pytest.mark.parametrize(
    "cluster, task, how",
    [
        ("own", "worker-0", signal.SIGKILL),
        ("pair", "worker-0", signal.SIGKILL),
        ("pair", "worker-1", signal.SIGKILL),
        # Its connections stay open: the other one waits in a sum until it is called off.
        ("pair", "worker-1", signal.SIGSTOP),
        ("shared", "worker-1", signal.SIGKILL),
    ],
)
def test_lost_worker_comes_back_to_its_gpu(place, whole, tmp_path, cluster, task, how):
    _, graph, clusters = place
    with one_gpu_for_all():
        run = disturbed_run(task, 3, clusters[cluster], graph.path, tmp_path / "run", how, **LONG)
    assert [each["task"] for each in result_of(run.path)["recoveries"]] == [task]
    assert_same_state(newest_checkpoint(run.path), newest_checkpoint(whole(cluster)))
    assert result_of(run.path)["test"] == result_of(whole(cluster))["test"]


def test_servers_and_learned_rows(tmp_path):
    """Gradients travel as the host's arrays, those of vertices' rows to their owners; a worker is lost as well."""
    graph = typed_graph().save(tmp_path / "graph")
    fields = {"dropout": 0.0, "embedding": 8, **LONG}
    trained(graph, tmp_path / "one", **{**JOB, **fields})
    spread = {"machines": machines(2, gpus=1), "partition": in_parts(graph, 2, tmp_path), "share_gpus": True}
    cluster = cluster_file(tmp_path, **spread, reduce="servers")
    run = disturbed_run("worker-1", 3, cluster, graph.path, tmp_path / "run", **fields)
    assert_same_losses(run.path, tmp_path / "one", 1e-3)
    assert result_of(run.path)["device"] == "cuda" and len(result_of(run.path)["recoveries"]) == 1


def test_shares_of_several_types(tmp_path):
    """Each worker has the whole graph on its GPU, and draws its share of every batch there."""
    graph = typed_graph()
    authors = graph.nodes["author"]
    authors.fields["x"] = np.random.default_rng(0).normal(size=(authors.count, 5)).astype(np.float32)
    graph = graph.save(tmp_path / "graph")
    fields = {**LONG, "model": "rgcn", "dropout": 0.0}
    trained(graph, tmp_path / "one", **{**JOB, **fields})
    spread = {"machines": machines(2, gpus=1), "partition": in_parts(graph, 2, tmp_path), "share_gpus": True}
    with one_gpu_for_all():
        run = run_on(cluster_file(tmp_path, **spread), graph.path, tmp_path / "run", **fields)
    assert_same_losses(run.path, tmp_path / "one", 1e-3)
    assert result_of(run.path)["placement"]["topology"] == "device"


@pytest.mark.parametrize("cluster", ["own", "pair", "shared"])
def test_batches_are_normalised_as_on_one_gpu(place, tmp_path, cluster):
    """By sums of NCCL, or of the hosts; and a worker that is lost moves no running figure twice."""
    _, graph, clusters = place
    fields = {**LONG, "norm": "batch", "jump": "cat", "optimiser": "SGD", "lr": 0.05}
    one = trained(graph, tmp_path / "one", **{**JOB, **fields, "capture": False})
    victim = "worker-0" if cluster == "own" else "worker-1"
    with one_gpu_for_all():
        calm = run_on(clusters[cluster], graph.path, tmp_path / "calm", **fields)
        hit = disturbed_run(victim, 3, clusters[cluster], graph.path, tmp_path / "hit", **fields)
    assert_same_losses(calm.path, one.path, ROUNDING)
    assert_same_state(newest_checkpoint(hit.path), newest_checkpoint(calm.path))


@pytest.mark.parametrize("kind, norm", [("bfloat16", "none"), ("float16", "none"), ("bfloat16", "batch")])
def test_half_precision_learns(place, tmp_path, kind, norm):
    _, graph, clusters = place
    run = run_on(clusters["shared"], graph.path, tmp_path / "run", device="cuda", compute_type=kind, norm=norm)
    losses = [loss for _, _, loss in losses_of(run.path)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_more_gpus_than_the_host_has(place, tmp_path):
    """The cluster file is believed until a worker looks for its GPU."""
    _, graph, _ = place
    there = torch.cuda.device_count()
    parts = in_parts(graph, 1, tmp_path)
    cluster = cluster_file(tmp_path, machines=machines(there + 1, gpus=there + 1), partition=parts)
    with refused(f"device-not-found worker-{there} GPU {there} m0") as caught:
        run_on(cluster, graph.path, tmp_path / "run", device="cuda")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_nccl_does_not_wait_for_a_worker_that_never_comes():
    script = Path(__file__).parent / "lost_partner.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    said = [line for line in done.stdout.splitlines() if line.startswith(("summed", "joining"))]
    expected = ["summed [0.0, 1.0, 2.0]", "joining called off", "summed [0.0, 1.0, 2.0]"]
    assert said == expected, done.stdout + done.stderr[-2000:]
