"""Entries that installed packages offer to registries: used by their names, imported when used, named when broken."""

import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from forks import run_forked
from in_process import command
from penstock import registry
from penstock.graph.schema import TASK_FACTS
from penstock.hardware.cluster import LAUNCHER_FACTS
from penstock.nn.layer_table import LAYERS
from penstock.partition.methods import METHODS
from penstock.service import POLICIES
from penstock.train.job import make_job
from refusals import refused
from training_graphs import SMALL, community_graph

TESTS = Path(__file__).parent
CODE = """
from pathlib import Path

import numpy as np

from averaging_layer import AVERAGING
from first_neighbours import FIRST
from penstock.nn.scorers import DotScorer
from penstock.partition.methods import METHODS
from penstock.service import POLICIES

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


OWN_TESTS = """
import valve
from penstock.conformance import check_callback, check_layer, check_partitioner, check_queue_policy, check_sampler
from penstock.conformance import check_scorer


def test_all_of_valve():
    check_layer(valve.AVERAGING)
    check_sampler(valve.FIRST)
    check_scorer(valve.Scorer)
    check_partitioner(valve.assign)
    check_queue_policy(valve.Last)
    check_callback(valve.count)


def test_a_broken_one():
    check_partitioner(lambda problem: valve.np.zeros(3))
"""
TABLES = {
    "penstock.cli.main": ["COMMANDS"],
    "penstock.cluster.launch": ["LAUNCHERS"],
    "penstock.coflow": ["SCHEDULES"],
    "penstock.cost.operators": ["OPERATORS"],
    "penstock.nn.layer_table": ["LAYERS"],
    "penstock.nn.scorer_table": ["SCORERS"],
    "penstock.partition.methods": ["METHODS"],
    "penstock.paths": ["SELECTORS"],
    "penstock.plan.placement": ["PLACEMENTS"],
    "penstock.plan.workloads": ["WORKLOADS"],
    "penstock.sampling.sampler_table": ["SAMPLERS"],
    "penstock.service": ["POLICIES", "SHARING"],
    "penstock.simulate.rates": ["POLICIES"],
    "penstock.simulate.shop.schedulers": ["SCHEDULERS"],
    "penstock.simulate.traces": ["TRACE_POLICIES"],
    "penstock.train.callbacks": ["CALLBACKS"],
    "penstock.train.execution_modes": ["EXECUTION_MODES"],
    "penstock.train.first_layer.ways": ["WAYS"],
    "penstock.train.tasks": ["TASKS"],
}
"""Every registry that has a group of its own."""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The folder of an installed distribution `valve`, which can be imported."""
    folder = tmp_path / "site"
    install(folder, "valve", POINTS)
    (folder / "valve.py").write_text(CODE)
    for each in (folder, TESTS / "nn", TESTS / "sampling"):
        monkeypatch.syspath_prepend(each)
    registry.look_again()
    yield folder
    registry.look_again()
    sys.modules.pop("valve", None)


def install(folder, name, points):
    """A distribution is known by its .dist-info."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def started(installed, program):
    """The end of a program that finds the installed distribution as any other."""
    found = list(map(str, (installed, TESTS / "nn", TESTS / "sampling")))
    return run_forked(["python", f"import sys\nsys.path[:0] = {found!r}\n{program}"], cwd=installed)


def test_a_command_trains_with_them(installed, tmp_path):
    """In a process of its own."""
    community_graph(80).save(tmp_path / "graph")
    few = ["--fanouts", "3,2", "--hidden", "8", "--epochs", "1", "--threads", "1", "--device", "cpu"]
    own = ["--model", "averaging", "--sampler", "first", "--callbacks", "count"]
    given = ["train", "--graph", tmp_path / "graph", "--run", tmp_path / "run", *few, *own]
    words = ["penstock", *map(str, given)]
    done = started(installed, f"from penstock.cli import main\nsys.argv = {words!r}\nmain()")
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

    assert METHODS["valve"].__name__ == "assign_chunk" and POLICIES["last"]().name == "last"
    links = {**SMALL, "task": "link-prediction", "scorer": "own-dot", "epochs": 1, "batch_size": 200}
    assert train(community_graph(80), run=str(tmp_path / "run"), **links).state == "finished"


def test_every_registry_has_a_group(tmp_path, monkeypatch):
    """A name that a package offers is found in each of them, and facts are taken from the entry that has them."""
    tables = [getattr(import_module(home), name) for home, names in TABLES.items() for name in names]
    assert len({table.group for table in tables}) == len(tables)
    pairs = [(table, next(iter(table))) for table in tables]
    everything = SimpleNamespace(**{f"ENTRY_{number}": table[name] for number, (table, name) in enumerate(pairs)})
    points = [f"[{table.group}]\nborrowed = everything:ENTRY_{number}\n" for number, table in enumerate(tables)]
    install(tmp_path, "everything", "\n".join(points))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "everything", everything)
    registry.look_again()
    try:
        for table, name in pairs:
            assert "borrowed" in table and "borrowed" in table.names() and "borrowed" not in list(table)
            assert table["borrowed"] is table[name]
            with refused("unknown-name borowed borrowed"):
                table["borowed"]
        assert TASK_FACTS["borrowed"] is TASK_FACTS[next(iter(TASK_FACTS))]
        assert LAUNCHER_FACTS["borrowed"] is LAUNCHER_FACTS["local"]
    finally:
        registry.look_again()


def test_an_author_runs_the_checks_that_ship(installed):
    (installed / "test_valve.py").write_text(OWN_TESTS)
    words = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, str(installed / "test_valve.py")]
    done = started(installed, f"import pytest\nsys.exit(pytest.main({words!r}))")
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout
    assert "120 vertices have (3,) parts" in done.stdout


def test_a_broken_one_is_a_sentence_with_its_name(installed):
    with refused("user-code-failed 'absent' valve valve_absent:ENTRY"):
        LAYERS["absent"]
    with refused("user-code-failed 'number' int LayerEntry"):
        LAYERS["number"]
    with refused("invalid-document averagin"):
        make_job({"model": "averagin"})


def test_two_packages_with_one_name(installed):
    install(installed, "other", "[penstock.samplers]\nfirst = other:FIRST\n")
    registry.look_again()
    with refused("duplicate first valve other"):
        make_job({"sampler": "first"})
