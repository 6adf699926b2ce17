"""Jobs and clusters that cannot work: one sentence, and nothing left behind."""

import json
import os

import pytest

from cluster_runs import cluster_file, machines, recorded_starts, run_on
from forks import forked_command
from refusals import refused
from training_graphs import community_graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A small graph on disk."""
    return community_graph(80).save(tmp_path_factory.mktemp("refusals") / "graph").path


@pytest.mark.parametrize(
    "fields, sentence",
    [
        pytest.param(
            {"sampler": "ladies", "weight": "w"}, "unsupported-combination ladies weight", marks=pytest.mark.long
        ),
        pytest.param({"time": "node:when"}, "field-missing when", marks=pytest.mark.long),
        pytest.param(
            {"sampler": "labor", "time": "node:y"}, "unsupported-combination labor time", marks=pytest.mark.long
        ),
        ({"task": "link-prediction", "time": "t"}, "field-missing t"),
        ({"features": "colour"}, "field-missing colour"),
    ],
)
def test_job_that_is_not_for_clusters(graph, tmp_path, fields, sentence):
    with refused(sentence) as caught:
        run_on("1x1", graph, tmp_path / "run", **fields)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_servers_cannot_see_whole_matrices(graph, tmp_path):
    cluster = cluster_file(tmp_path, machines=machines(1), reduce="servers")
    with refused("unsupported-combination Adafactor"):
        run_on(cluster, graph, tmp_path / "run", optimiser="Adafactor")
    assert not (tmp_path / "run").exists()


def test_partition_that_is_not_there(graph, tmp_path):
    cluster = cluster_file(tmp_path, machines=machines(1), partition="nowhere")
    with refused("wrong-file nowhere"):
        run_on(cluster, graph, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_task_that_always_dies(graph, tmp_path):
    """The run gives up, says where to look, and can be resumed."""
    cluster = cluster_file(tmp_path, machines=machines(1), failure={"restarts": 2})
    said = "peer-lost m0 3 (last: signal 9)"  # of whichever task is looked at first
    with recorded_starts(lambda handle: os.kill(handle.pid, 9)), refused(said):
        run_on(cluster, graph, tmp_path / "run")
    assert (tmp_path / "run" / "logs" / "store-m0.log").exists()


@pytest.mark.long
def test_what_a_sampler_refuses_is_said(graph, tmp_path):
    """By whoever comes first, it or its worker; and nothing is started again."""
    cluster = cluster_file(tmp_path, machines=machines(1), samplers=1)
    with recorded_starts() as handles, refused("value-out-of-range [64, 0]"):
        run_on(cluster, graph, tmp_path / "run", sampler="ladies", fanouts=[64, 0])
    assert "sampler-0-0" in handles and not (tmp_path / "run").exists()


def test_command_says_one_sentence(graph, tmp_path):
    flags = [
        f"--graph={graph}",
        f"--run={tmp_path / 'run'}",
        "--fanouts=64,0",
        "--sampler=ladies",
        "--cluster=1x1",
        "--json",
    ]
    done = forked_command("train", *flags, timeout=100)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and json.loads(done.stderr)["code"] == "value-out-of-range"
    assert done.stdout == "" and not (tmp_path / "run").exists()
