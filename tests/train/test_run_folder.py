"""run.json is checked when a run is opened: what is wrong with it is a sentence, not a traceback later."""

import errno
import json
import os
from pathlib import Path

import pytest

from penstock import PenstockError
from penstock.api import Run
from penstock.train.run_folder import FORMAT, STATES, VERSION, RunFolder
from training_graphs import community_graph, facts_of, trained

FACTS = {"format": FORMAT, "version": VERSION, "state": "finished", "started": "2025-01-01", "graph": {}, "result": {}}


def written(folder, facts):
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


@pytest.mark.parametrize("state", STATES)
def test_known_states_are_opened(state, tmp_path):
    assert Run.open(written(tmp_path, {**FACTS, "state": state})).state == state


def test_a_run_that_died_early_has_no_result(tmp_path):
    facts = {name: FACTS[name] for name in ("format", "version", "state")}
    run = Run.open(written(tmp_path, facts))
    assert (run.result, run.val, run.test) == ({}, {}, {})


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"state": None}, "state None"),
        ({"state": 3}, "state 3"),
        ({"state": ["finished"]}, "state"),
        ({"state": "asleep"}, "'asleep', which is none of running, finished"),
        ({"result": 5}, "'result' that is not a mapping"),
        ({"result": None}, "'result' that is not a mapping"),
        ({"result": {"val": 5}}, "'val' that is not a mapping"),
        ({"result": {"test": [1]}}, "'test' that is not a mapping"),
        ({"graph": [3]}, "'graph' that is not a mapping"),
        ({"labels": "y"}, "'labels' that is not a mapping"),
        ({"started": 1.5}, "'started' that is not text"),
    ],
)
def test_facts_that_are_none_are_refused(changes, said, tmp_path):
    with pytest.raises(PenstockError, match=said) as failure:
        RunFolder.open(written(tmp_path, {**FACTS, **changes}))
    assert str(tmp_path / "run.json") in str(failure.value)


def test_a_state_left_out_is_refused(tmp_path):
    facts = {name: value for name, value in FACTS.items() if name != "state"}
    with pytest.raises(PenstockError, match="state None"):
        RunFolder.open(written(tmp_path, facts), writing=True)


def test_brackets_without_end_are_refused(tmp_path):
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(PenstockError, match="cannot be read"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("name", ["job.yaml", "run.json"])
def test_a_start_on_a_full_disk_leaves_nothing(name, tmp_path, monkeypatch):
    write = Path.write_text

    def full(path, *given, **more):
        if name in path.name:
            write(path, "")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, *given, **more)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(PenstockError, match=rf"Could not write .*{name}: No space left on device\. Free space"):
        trained(community_graph(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_metrics_that_cannot_be_written_are_one_sentence(tmp_path, monkeypatch):
    def full(folder, record):
        monkeypatch.undo()
        (folder.path / "metrics.jsonl").mkdir()
        folder.append_metrics(record)

    monkeypatch.setattr(RunFolder, "append_metrics", full)
    with pytest.raises(PenstockError, match=r"Could not write .*metrics\.jsonl: .*--resume"):
        trained(community_graph(), tmp_path / "run")
    assert facts_of(tmp_path / "run")["state"] == "failed"
