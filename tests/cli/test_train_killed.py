"""`penstock train` killed without warning, interrupted politely, and resumed: as real processes."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from forks import ForkedProgram, forked_command
from penstock.api import train
from training_graphs import (
    assert_same_state,
    best_checkpoint,
    community_graph,
    facts_of,
    newest_checkpoint,
    trained,
)

JOB = {
    "fanouts": [4, 3],
    "hidden": 16,
    "batch_size": 16,
    "epochs": 60,
    "checkpoint_minutes": 0,
    "checkpoint_steps": 5,
    "evaluate_every": 10,
    "norm": "batch",
    "schedule": "ExponentialLR",
    "schedule_options": {"gamma": 0.99},
    "embedding": 8,
    "threads": 1,
}
FLAGS = [
    part
    for name, value in JOB.items()
    for part in (
        "--" + name.replace("_", "-"),
        json.dumps(value) if isinstance(value, dict) else str(value).strip("[]").replace(" ", ""),
    )
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A graph without features on disk, and the run that nothing happened to."""
    folder = tmp_path_factory.mktemp("killed")
    graph = community_graph(120, features=False).save(folder / "graph")
    return trained(graph, folder / "whole", **JOB)


def started(whole, run, step):
    """A process that trains, once it has written the checkpoint of a step or of a later one."""
    graph = whole.path.parent / "graph"
    process = ForkedProgram(["penstock", "train", "--graph", graph, "--run", run, *FLAGS, "--json"])
    while not any(int(file.stem.removeprefix("step-")) >= step for file in (run / "checkpoints").glob("step-*.ckpt")):
        assert process.poll() is None, process.said()
        time.sleep(0.002)
    return process


def resumed(run):
    """The object that `penstock train --resume` prints."""
    done = forked_command("train", "--resume", run, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kill_9_at_a_random_step(whole, tmp_path):
    steps = newest_checkpoint(whole.path)["standing"]["step"]
    draws = random.Random(os.getpid())
    for number in range(2):
        run = tmp_path / str(number)
        process = started(whole, run, 5 * draws.randrange(1, steps // 20))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.communicate()
        assert facts_of(run)["state"] == "running"
        again = train(resume=run)
        assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(run))
        assert_same_state(best_checkpoint(whole.path), best_checkpoint(run))
        assert again.test == whole.test
        assert facts_of(run)["state"] == "finished"
        assert not list(run.rglob("*.writing-*"))


def test_ctrl_c_keeps_a_checkpoint_and_leaves_no_process(whole, tmp_path):
    run = tmp_path / "run"
    process = started(whole, run, 10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert f"Resume with: penstock train --resume {run}" in err
    printed = json.loads(out)
    assert printed["state"] == "interrupted"
    facts = facts_of(run)
    assert facts["state"] == "interrupted"
    assert facts["message"].startswith("Interrupted at epoch ")
    assert newest_checkpoint(run)["standing"]["step"] >= 10
    assert not _mentioning(run)
    result = resumed(run)
    assert (result["state"], result["test"]) == ("finished", whole.test)
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(run))


def _mentioning(run):
    """Processes that still have the run on their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(run).encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found
