"""Code that a run folder or a plan names is run only when the user has said so."""

import sys
from types import SimpleNamespace

import pytest

from forks import forked_command
from penstock.api import train
from penstock.train.run_files import run_folder
from penstock.train.use import embed_run, evaluate_run, predict_run
from refusals import refused
from training_graphs import SMALL, community_graph, facts_of

CODE = """
import torch
from pathlib import Path
from beside import WIDTH
Path(__file__).with_name("was-run").touch()

class Net(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = torch.nn.Linear(inputs, outputs)

    def forward(self, x, edge_index):
        return self.inner(x)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A graph, and a module with another one beside it; its import path ends with the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    community_graph(80).save(tmp_path / "graph")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(CODE)
    (tmp_path / "code" / "beside.py").write_text("WIDTH = 3\n")
    yield tmp_path
    sys.modules.pop("beside", None)


@pytest.fixture
def received(place):
    """A run folder as it comes from somebody else: this process knows nothing of it."""
    run = train(str(place / "graph"), module=str(place / "code" / "mine.py:Net"), run=str(place / "run"), **SMALL)
    assert run.state == "finished"
    assert evaluate_run(run.path, ["test"])["test"] == pytest.approx(run.test)
    run_folder._started_here.clear()
    (place / "code" / "was-run").unlink()
    return run.path


def uses(run):
    """Everything that opens a run's model."""
    out = run.parent / "out.parquet"
    return {
        "evaluate": lambda **more: evaluate_run(run, ["test"], **more),
        "predict": lambda **more: predict_run(run, out, force=True, **more),
        "embed": lambda **more: embed_run(run, out, force=True, **more),
        "resume": lambda **more: train(resume=run, epochs=3, **more),
    }


@pytest.mark.parametrize("use", ["evaluate", "predict", "embed", "resume"])
def test_a_received_run_asks_first(use, received):
    with refused("untrusted-code mine.py:Net --trust-module"):
        uses(received)[use]()
    assert not (received.parent / "code" / "was-run").exists()
    assert facts_of(received)["state"] == "finished"
    assert uses(received)[use](trust_module=True)
    assert (received.parent / "code" / "was-run").exists()


def test_who_resumes_may_name_the_module_again(received):
    module = str(received.parent / "code" / "mine.py:Net")
    with refused("mismatched-inputs torch.nn:Linear"):
        train(resume=received, epochs=3, module="torch.nn:Linear")
    assert train(resume=received, epochs=3, module=module).state == "finished"


@pytest.mark.parametrize("cluster", [{}, {"machines": [{"name": "m0"}]}])
def test_a_plan_asks_first(cluster, place, monkeypatch):
    """A plan of one machine, and one of a cluster."""
    from penstock.api import training

    job = {"module": str(place / "code" / "mine.py:Net"), "graph": str(place / "graph")}
    monkeypatch.setattr(training, "read_plan", lambda path: SimpleNamespace(job=job, cluster=cluster, given=[]))
    with refused("untrusted-code plan.json"):
        train(plan=place / "plan.json")


@pytest.mark.parametrize("command", [["evaluate"], ["predict", "--out", "p.parquet"], ["train", "--resume"]])
def test_the_command_asks_first(command, received):
    name, *more = command
    given = [name, str(received), *more] if name != "train" else [name, *more, str(received)]
    done = forked_command(*given, cwd=received.parent, timeout=200)
    assert done.returncode == 2 and "--trust-module" in done.stderr and "Traceback" not in done.stderr
    assert not (received.parent / "code" / "was-run").exists()
