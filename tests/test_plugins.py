"""Entries that installed packages offer to registries: used by their names, imported when used, named when broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import command
from penstock import imports
from penstock.nn.layer_table import layer_entry
from penstock.partition.methods import method_named
from penstock.service.policies import policy_named
from penstock.train.job import make_job
from refusals import refused
from training_graphs import PENSTOCK, SMALL, community_graph

TESTS = Path(__file__).parent
CODE = """
from pathlib import Path

import numpy as np

from averaging_layer import AVERAGING
from first_neighbours import FIRST
from penstock.nn.scorers import DotScorer
from penstock.partition.methods import METHODS
from penstock.service.policies import POLICIES

Path(__file__).with_name("was-imported").touch()
assign = METHODS["chunk"]


class Last(POLICIES["base"]):
    name = "last"


class Scorer(DotScorer):
    pass


def count(result):
    Path(result.run, "counted").write_text(str(result.epoch))


NUMBER = 3
"""
POINTS = """
[penstock.models]
averaging = valve:AVERAGING
number = valve:NUMBER
absent = valve_absent:ENTRY

[penstock.samplers]
first = valve:FIRST

[penstock.scorers]
own-dot = valve:Scorer

[penstock.partitioners]
valve = valve:assign

[penstock.policies]
last = valve:Last

[penstock.callbacks]
count = valve:count
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The folder of an installed distribution `valve`, which can be imported."""
    folder = tmp_path / "site"
    install(folder, "valve", POINTS)
    (folder / "valve.py").write_text(CODE)
    for each in (folder, TESTS / "nn", TESTS / "sampling"):
        monkeypatch.syspath_prepend(each)
    imports.plugins.cache_clear()
    yield folder
    imports.plugins.cache_clear()
    sys.modules.pop("valve", None)


def install(folder, name, points):
    """A distribution is known by its .dist-info."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def test_a_command_trains_with_them(installed, tmp_path):
    """In a process of its own, which finds the package as any other."""
    community_graph(80).save(tmp_path / "graph")
    few = ["--fanouts", "3,2", "--hidden", "8", "--epochs", "1", "--threads", "1", "--device", "cpu"]
    own = ["--model", "averaging", "--sampler", "first", "--callbacks", "count"]
    given = ["train", "--graph", tmp_path / "graph", "--run", tmp_path / "run", *few, *own]
    paths = os.pathsep.join(map(str, (installed, TESTS / "nn", TESTS / "sampling", *sys.path)))
    done = subprocess.run(
        [*PENSTOCK, *map(str, given)], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "counted").read_text() == "1"
    job = (tmp_path / "run" / "job.yaml").read_text()
    assert "model: averaging" in job and "sampler: first" in job


def test_help_imports_none_of_them(installed, monkeypatch, capsys):
    code, *_ = command(monkeypatch, capsys, "train", "--help")
    assert code == 0 and not (installed / "was-imported").exists()
    make_job({"model": "sage"})
    assert not (installed / "was-imported").exists()


def test_other_registries_look_there_too(installed, tmp_path):
    from penstock.api import train

    assert method_named("valve").__name__ == "assign_chunk" and policy_named("last").name == "last"
    links = {**SMALL, "task": "link-prediction", "scorer": "own-dot", "epochs": 1, "batch_size": 200}
    assert train(community_graph(80), run=str(tmp_path / "run"), **links).state == "finished"


def test_a_broken_one_is_a_sentence_with_its_name(installed):
    with refused("user-code-failed 'absent' valve valve_absent:ENTRY"):
        layer_entry("absent")
    with refused("user-code-failed 'number' int LayerEntry"):
        layer_entry("number")
    with refused("invalid-document averagin"):
        make_job({"model": "averagin"})


def test_two_packages_with_one_name(installed):
    install(installed, "other", "[penstock.samplers]\nfirst = other:FIRST\n")
    imports.plugins.cache_clear()
    with refused("duplicate first valve other"):
        make_job({"sampler": "first"})
