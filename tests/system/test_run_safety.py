"""Whole runs on clusters of this host: killed while the graph is cut, on a full disk, among hostile files."""

import os
import subprocess
import sys

import pytest

from cluster_runs import JOB, assert_same_losses, cluster_file, machines, run_on
from forks import forked_command, run_forked
from penstock.api import train
from penstock.progress import Progress
from penstock.train.job import make_job
from penstock.train.run_files.run_folder import RunFolder
from refusals import refused
from training_graphs import PENSTOCK, community_graph, facts_of, typed_graph

KILLED = """
import os, signal
from penstock.cluster.run import start_cluster_run
from penstock.partition import assignment
from penstock.train.job import make_job
assignment.trainer_balance = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
start_cluster_run(make_job({job!r}), "2x1")
"""


class Noted(Progress):
    """Remembers what the user is told."""

    def __init__(self):
        super().__init__()
        self.said = []

    def note(self, sentence):
        self.said.append(sentence)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A small graph on disk."""
    return community_graph(80).save(tmp_path_factory.mktemp("safety") / "graph").path


def test_killed_while_the_graph_is_cut(graph, tmp_path):
    run_on("2x1", graph, tmp_path / "whole")
    job = {**JOB, "graph": str(graph), "run": str(tmp_path / "run")}
    done = run_forked(["python", KILLED.format(job=job)], timeout=120)
    assert done.returncode == -9, done.stderr
    assert list((tmp_path / "run").glob(".parts.unfinished"))
    # What --force accepts is decided when the folder is made.
    forced = make_job({**job, "run": str(tmp_path / "forced")})
    subprocess.run(["cp", "-a", str(tmp_path / "run"), forced.run], check=True)
    RunFolder.create(forced, "r", force=True).close()
    progress = Noted()
    assert train(resume=tmp_path / "run", progress=progress).state == "finished"
    assert any("it is cut again" in said for said in progress.said)
    assert_same_losses(tmp_path / "run", tmp_path / "whole", 0)
    assert not list((tmp_path / "run").glob(".parts.unfinished"))


def test_a_full_disk_is_one_sentence_and_no_running_run(graph, tmp_path):
    """Any user can have a disk of their own in the kernel's memory, if not here."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount here")
    try:
        job = {**JOB, "graph": str(graph), "run": str(disk / "run"), "epochs": 50, "checkpoint_steps": 1}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in job.items() if name != "fanouts"]
        filling = subprocess.Popen([sys.executable, "-c", FILL, str(disk)])
        done = forked_command("train", *flags, "--fanouts=4,3", "--cluster=1x2", "--json", timeout=140)
        filling.wait(20)
        assert done.returncode == 2, done.stderr
        assert "No space left on device" in done.stderr and "no file named" not in done.stderr
        assert str(disk / "run") in done.stderr
        assert facts_of(disk / "run")["state"] == "failed"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


FILL = """
import sys, time
from pathlib import Path
disk = Path(sys.argv[1])
while not list(disk.glob("run/checkpoints/step-*.ckpt")):
    time.sleep(0.02)
with open(disk / "filling", "ab", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
"""

HOSTILE = ("msgpack", "zmq", "numba", "torch", "yaml", "logging")
MINE = """
import torch
import beside

class Net(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = torch.nn.Linear(inputs, outputs)

    def forward(self, x, edge_index):
        return self.inner(x) * beside.FACTOR
"""


def hostile(folder):
    """Files that stand in for installed modules where the working folder is searched first."""
    folder.mkdir()
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / 'was-run')!r}, 'a').write('{name}')\nraise SystemExit(9)\n"
        )
    return folder


EVERY_KIND = {"samplers": 1, "reduce": "servers"}


@pytest.mark.parametrize(
    "cluster",
    [
        {"launcher": "local"},
        pytest.param({"launcher": "local", **EVERY_KIND}, marks=pytest.mark.long),
        pytest.param({"launcher": "ray", **EVERY_KIND}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_what_lies_in_the_working_folder_is_not_imported(cluster, graph, tmp_path):
    """By no task; a module named by its file works, and so does what lies beside it."""
    folder = hostile(tmp_path / "work")
    (folder / "mine.py").write_text(MINE)
    (folder / "beside.py").write_text("FACTOR = 2.0\n")
    cluster = cluster_file(tmp_path, machines=machines(1), **cluster)
    job = {**JOB, "graph": graph, "run": tmp_path / "run", "epochs": 1, "module": "mine.py:Net", "dropout": 0}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in job.items() if name != "fanouts"]
    command = [sys.executable, "-P", *PENSTOCK[1:], "train", *flags, "--fanouts=4,3", f"--cluster={cluster}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=145)
    assert not (folder / "was-run").exists()
    assert done.returncode == 0, done.stderr
    assert facts_of(tmp_path / "run")["state"] == "finished"


@pytest.mark.long
def test_damaged_files_of_tasks_and_checkpoints(tmp_path):
    """Resumed, a run takes the newest whole checkpoint, and servers and owners of embeddings take what is in it."""
    graph = typed_graph(60).save(tmp_path / "graph").path
    cluster = cluster_file(tmp_path, machines=machines(2), reduce="servers")
    fields = {"model": "rgcn", "checkpoint_steps": 1, "keep_checkpoints": 3, "dropout": 0}
    run_on(cluster, graph, tmp_path / "whole", epochs=4, **fields)
    run_on(cluster, graph, tmp_path / "run", epochs=3, **fields)
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*.ckpt"))
    states = [*(tmp_path / "run" / "servers").glob("*.state"), *(tmp_path / "run" / "embeddings").rglob("journal")]
    assert len(states) >= 2
    for file in [newest, *states]:
        file.write_bytes(file.read_bytes()[:40])
    progress = Noted()
    assert train(resume=tmp_path / "run", epochs=4, progress=progress).state == "finished"
    assert sum("taken from the checkpoint instead" in said for said in progress.said) == len(states)
    assert any(newest.name in said for said in progress.said)
    assert_same_losses(tmp_path / "run", tmp_path / "whole", 0)


def test_all_tasks_of_a_run_refuse_links(graph, tmp_path):
    """A log in the run folder of a run that goes on leads elsewhere: nothing is appended there."""
    run_on("1x1", graph, tmp_path / "run", epochs=1)
    (tmp_path / "victim").write_text("precious")
    log = tmp_path / "run" / "logs" / "worker-0.log"
    log.unlink()
    log.symlink_to(tmp_path / "victim")
    with refused("write-failed worker-0.log"):
        train(resume=tmp_path / "run", epochs=2)
    assert (tmp_path / "victim").read_text() == "precious"
