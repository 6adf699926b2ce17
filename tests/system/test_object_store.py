"""A run at an address of a real S3 server over HTTP: killed, it goes on from another machine as if nothing had been."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyarrow import fs

import penstock as ps
from object_store import HAS_MOTO, s3_server, use_cache
from penstock.train.run_files.checkpoints import read_best, read_state
from training_graphs import community_graph

pytestmark = pytest.mark.skipif(not HAS_MOTO, reason="moto with flask, which speaks S3 over HTTP, is not installed")
RUN = "s3://bucket/runs/one"
FLAGS = ["--fanouts", "3", "--hidden", "8", "--batch-size", "20", "--checkpoint-steps", "5", "--threads", "1"]


@pytest.fixture(scope="module")
def bucket():
    """A bucket on a server, with what programs need to reach it."""
    with s3_server() as port:
        reach = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "of-a-test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in reach.items():
                patch.setenv(name, value)
            store = fs.S3FileSystem(
                endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
            )
            store.create_dir("bucket")
            yield store


def _train(cache: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock", "train", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PENSTOCK_CACHE": str(cache)})


def test_a_killed_run_goes_on_from_another_machine(bucket, tmp_path, monkeypatch):
    use_cache(monkeypatch, tmp_path / "here")
    graph = community_graph(400)
    graph.save("s3://bucket/graph")
    first = _train(tmp_path / "first", "--graph", "s3://bucket/graph", "--run", RUN, "--epochs", "100000", *FLAGS)
    checkpoints = fs.FileSelector("bucket/runs/one/checkpoints", allow_not_found=True)
    while len([info for info in bucket.get_file_info(checkpoints) if info.base_name.startswith("step")]) < 2:
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed = ps.Run.open(RUN)
    assert killed.state == "running"
    newest = max((killed.path / "checkpoints").glob("step-*.ckpt"))
    epochs = read_state(newest)["standing"]["epoch"] + 2
    use_cache(monkeypatch, tmp_path / "second")
    resumed = ps.train(resume=RUN, epochs=epochs)
    fields = {"epochs": epochs, "fanouts": [3], "hidden": 8, "batch_size": 20, "threads": 1, "checkpoint_steps": 5}
    whole = ps.train(graph, run=tmp_path / "whole", **fields)
    assert resumed.result["run"] == RUN and resumed.history["train_loss"] == whole.history["train_loss"]
    weights, others = (read_best(run.path / "checkpoints")["learned"] for run in (whole, resumed))
    assert weights.keys() == others.keys() and all((weights[name] == others[name]).all() for name in weights)
