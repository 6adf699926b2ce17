"""Runs on the whole graph that were interrupted or killed end with the weights of runs that were not."""

import json
import signal
import time

import pytest

from forks import ForkedProgram, forked_command
from penstock.api import train
from penstock.progress import Progress
from penstock.trace.allocations import PeakMemory
from penstock.train.build import make_session
from penstock.train.job import job_of
from penstock.train.whole import execution
from refusals import refused
from training_graphs import (
    assert_same_state,
    best_checkpoint,
    community_graph,
    facts_of,
    lines_of,
    newest_checkpoint,
    scattered_ring,
    trained,
    typed_graph,
)

WHOLE = {"sampler": "whole", "layers": 2, "epochs": 8, "bins": 3}
CASES = {
    "batch norm and dropout": (community_graph, {"norm": "batch", "input_dropout": 0.1, "dropout": 0.4}),
    "several steps, a schedule": (
        community_graph,
        {"steps_per_epoch": 3, "epochs": 3, "schedule": "StepLR", "schedule_options": {"step_size": 1}},
    ),
    "learned rows of several types": (typed_graph, {"model": "rgcn", "embedding": 8}),
    "links": (community_graph, {"task": "link-prediction", "rank_against": 20, "scorer": "mlp"}),
    "in the order of a search": (scattered_ring, {"bins": 5}),
    "computed again": (community_graph, {"keep": "recompute", "layers": 3, "model": "gcn"}),
}


class Interrupting(Progress):
    """Ctrl-C after some steps."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def advance(self, amount):
        self.left -= amount
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


SELDOM = ("links", "computed again", "several steps, a schedule", "in the order of a search")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in SELDOM else ()) for name in CASES],
)
def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path, name):
    make, fields = CASES[name]
    fields = {**WHOLE, **fields}
    whole = trained(make(), tmp_path / "whole", **fields)
    run = trained(make(), tmp_path / "run", **fields, progress=Interrupting(4))
    assert run.state == "interrupted"
    run = train(make(), resume=run.path)
    assert run.state == "finished"
    assert_same_runs(whole, run)


def test_a_checkpoint_holds_the_step(tmp_path):
    fields = {**WHOLE, "steps_per_epoch": 2, "checkpoint_steps": 3, "keep_checkpoints": 100}
    run = trained(community_graph(), tmp_path / "run", **fields)
    steps = sorted(int(file.stem.split("-")[1]) for file in (run.path / "checkpoints").glob("step-*.ckpt"))
    assert steps == [0, 3, 6, 9, 12, 15, 16]
    state = newest_checkpoint(run.path)
    assert state["standing"]["step"] == 16 and [each["bins"] for each in state["room"]] == [[3, 3]] * 2


def test_bins_stay_when_the_free_memory_changes(tmp_path, monkeypatch):
    """With another number of bins sums would be rounded differently."""
    fields = {**WHOLE, "bins": "auto", "model": "gcn"}
    monkeypatch.setattr(execution, "traced_step_memory", lambda *given: PeakMemory((3 << 30) // given[4].bins[0], ""))
    monkeypatch.setattr(execution, "free_bytes", lambda *_: 1 << 30)
    whole = trained(community_graph(), tmp_path / "whole", **fields)
    assert whole.result["bins"][0] > 1
    run = trained(community_graph(), tmp_path / "run", **fields, progress=Interrupting(4))
    monkeypatch.setattr(execution, "free_bytes", lambda *_: 1 << 40)
    run = train(community_graph(), resume=run.path)
    assert run.result["bins"] == whole.result["bins"]
    assert_same_runs(whole, run)


@pytest.mark.parametrize("state", [{}, [{}], [{"bins": [3]}], "x", [1]], ids=str)
def test_a_damaged_division_is_a_sentence(tmp_path, state):
    session = make_session(job_of({**WHOLE, "graph": "", "device": "cpu"}), community_graph())
    with refused("damaged-file bins"):
        session.execution.restore(state)


def test_kill_9(tmp_path):
    graph = community_graph(120, features=False).save(tmp_path / "graph")
    fields = {**WHOLE, "epochs": 60, "embedding": 8, "hidden": 16, "threads": 1, "checkpoint_steps": 5}
    fields = {**fields, "checkpoint_minutes": 0, "evaluate_every": 20}
    whole = train(graph, run=str(tmp_path / "whole"), **fields)
    run = tmp_path / "run"
    flags = [part for name, value in fields.items() for part in ("--" + name.replace("_", "-"), str(value))]
    process = ForkedProgram(["penstock", "train", "--graph", graph.path, "--run", run, *flags, "--json"])
    while max((path.stem for path in (run / "checkpoints").glob("step-*.ckpt")), default="") < "step-000000000010":
        assert process.poll() is None, process.said()
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert facts_of(run)["state"] == "running"
    done = forked_command("train", "--resume", run, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bins"] == [3, 3] and result["keep"] == "host" and result["scope"] == "reached"
    assert_same_runs(whole, train(resume=run))


def assert_same_runs(whole, run):
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(run.path))
    assert_same_state(best_checkpoint(whole.path), best_checkpoint(run.path))
    assert whole.test == run.test
    measured = [
        [(line["step"], line["loss"], line.get("val")) for line in lines_of(each.path) if line["kind"] == "epoch"]
        for each in (whole, run)
    ]
    assert measured[0] == measured[1]
