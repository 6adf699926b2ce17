"""Long steps tell which bin they have come to."""

import pytest

from penstock.progress import Progress
from penstock.train.job import make_job
from penstock.train.run import start_run
from penstock.train.whole import steps
from training_graphs import SMALL, community_graph
from whole_threads import train_in_threads

WHOLE = {"sampler": "whole", "layers": 2, "bins": 3, "hidden": 8, "threads": 1}


class Told(Progress):
    def __init__(self):
        super().__init__()
        self.lines = []

    def status(self, line):
        self.lines.append(line)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(steps, "_SOON", 0.0)
    monkeypatch.setattr(steps, "_OFTEN", 0.0)


def every_bin(epoch, step=""):
    where = f"epoch {epoch}/2{step}"
    forward = [f"{where}: forward, layer {layer}/2, bin {place}/3" for layer in (1, 2) for place in (1, 2, 3)]
    return forward + [f"{where}: backward, layer {layer}/2, bin {place}/3" for layer in (2, 1) for place in (1, 2, 3)]


def test_every_bin_is_told_on_one_machine(tmp_path, at_once):
    told = Told()
    fields = {**SMALL, **WHOLE, "epochs": 2, "steps_per_epoch": 2, "evaluate_every": -1}
    fields.pop("fanouts")
    job = make_job({"graph": "g", "run": str(tmp_path / "run"), **fields})
    start_run(job, community_graph(), progress=told)
    bins = [line for line in told.lines if "bin " in line]
    expected = [line for epoch in (1, 2) for step in (1, 2) for line in every_bin(epoch, f", step {step}/2")]
    assert bins == expected


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_every_bin_is_told_among_workers(at_once, norm):
    told = Told()
    workers, _ = train_in_threads(
        community_graph(90), 2, 2, prepare=lambda session: setattr(session, "progress", told), norm=norm, **WHOLE
    )
    assert len(workers) == 2 and {*told.lines} == {*every_bin(1), *every_bin(2)}


def test_short_steps_tell_nothing():
    told = Told()
    train_in_threads(community_graph(90), 1, 2, prepare=lambda session: setattr(session, "progress", told), **WHOLE)
    assert not told.lines
