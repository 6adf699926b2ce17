"""run.json is checked when a run is opened: what is wrong with it is a sentence, not a traceback later."""

import errno
import json
import os
import stat
import subprocess
from contextlib import suppress

import pytest

from penstock.api import Run, train
from penstock.graph import files
from penstock.progress import Progress
from penstock.train.job import make_job
from penstock.train.run_files import run_folder
from penstock.train.run_files.run_folder import FORMAT, STATES, VERSION, RunFolder
from refusals import refused
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
        ({"state": None}, "damaged-file"),
        ({"state": 3}, "damaged-file 3"),
        ({"state": ["finished"]}, "damaged-file"),
        ({"state": "asleep"}, "damaged-file asleep"),
        ({"result": 5}, "damaged-file result"),
        ({"result": None}, "damaged-file result"),
        ({"result": {"val": 5}}, "damaged-file val"),
        ({"result": {"test": [1]}}, "damaged-file test"),
        ({"graph": [3]}, "damaged-file graph"),
        ({"labels": "y"}, "damaged-file labels"),
        ({"started": 1.5}, "damaged-file started"),
    ],
)
def test_facts_that_are_none_are_refused(changes, said, tmp_path):
    with refused(said) as failure:
        RunFolder.open(written(tmp_path, {**FACTS, **changes}))
    assert str(tmp_path / "run.json") in str(failure.value)


def test_a_state_left_out_is_refused(tmp_path):
    facts = {name: value for name, value in FACTS.items() if name != "state"}
    with refused("damaged-file"):
        RunFolder.open(written(tmp_path, facts), writing=True)


def test_brackets_without_end_are_refused(tmp_path):
    (tmp_path / "run.json").write_text("[" * 100_000)
    with refused("damaged-file"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("name", ["job.yaml", "run.json"])
def test_a_start_on_a_full_disk_leaves_nothing(name, tmp_path, monkeypatch):
    made = files.open_bytes

    def full(path, *given, **more):
        file = made(path, *given, **more)
        if name in path.name:
            file.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return file

    monkeypatch.setattr(files, "open_bytes", full)
    with refused(f"write-failed {name} No space left on device"):
        trained(community_graph(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_metrics_that_cannot_be_written_are_one_sentence(tmp_path, monkeypatch):
    def full(folder, record):
        monkeypatch.undo()
        (folder.path / "metrics.jsonl").mkdir()
        folder.append_metrics(record)

    monkeypatch.setattr(RunFolder, "append_metrics", full)
    with refused("write-failed metrics.jsonl --resume"):
        trained(community_graph(), tmp_path / "run")
    assert facts_of(tmp_path / "run")["state"] == "failed"


@pytest.mark.parametrize(
    "name, checked",
    [(".lock", True), ("metrics.jsonl", True), ("checkpoints", True), (".lock", False), ("events.jsonl", False)],
)
def test_a_run_folder_is_not_written_through_links(name, checked, tmp_path, monkeypatch):
    """Put there before a run goes on, or between that check and the writing."""
    run, target = trained(community_graph(), tmp_path / "run").path, tmp_path / "victim"
    (run / name).rename(target)
    (run / name).symlink_to(target)
    before = _content(target)
    if not checked:
        monkeypatch.setattr(run_folder, "refuse_links", lambda path: None)
    with refused(f"write-failed {name} symbolic link"):
        train(community_graph(), resume=run, epochs=3)
    assert _content(target) == before


def test_nothing_is_appended_through_a_link(tmp_path):
    folder = RunFolder.create(make_job({"run": str(tmp_path / "run")}), "r", False)
    (tmp_path / "victim").write_text("precious")
    for name in ("log.txt", "metrics.jsonl"):
        (folder.path / name).symlink_to(tmp_path / "victim")
    with refused("write-failed metrics.jsonl"):
        folder.append_metrics({"kind": "step", "step": 1})
    folder.record_failure("failed", "it failed", ValueError("odd"))
    folder.close()
    assert (tmp_path / "victim").read_text() == "precious"
    assert facts_of(folder.path)["state"] == "failed"


def test_replacing_a_run_does_not_write_through_its_lock(tmp_path):
    run = trained(community_graph(), tmp_path / "run").path
    (tmp_path / "victim").write_text("precious")
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(tmp_path / "victim")
    with refused("write-failed"):
        trained(community_graph(), run, force=True)
    assert (tmp_path / "victim").read_text() == "precious"
    assert facts_of(run)["state"] == "finished"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "victim"]


def _content(path):
    return path.read_bytes() if path.is_file() else {each.name: each.read_bytes() for each in path.iterdir()}


def test_a_run_folder_is_the_users_own(tmp_path):
    run = trained(community_graph(), tmp_path / "run").path
    assert {stat.S_IMODE(path.stat().st_mode) for path in (run, run / "checkpoints")} == {0o700}
    assert stat.S_IMODE((run / ".lock").stat().st_mode) == 0o600


def test_a_run_folder_named_by_a_link_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "run")
    trained(community_graph(), tmp_path / "link")
    trained(community_graph(), tmp_path / "link", force=True)
    assert (tmp_path / "link").is_symlink() and facts_of(tmp_path / "disk" / "run")["state"] == "finished"


def test_a_run_folder_appears_whole(tmp_path, monkeypatch):
    """Whenever the process is killed there is no folder, or one that can be resumed or replaced."""
    seen = []
    take_place = run_folder._take_place

    def looked_at(temporary, target, force):
        seen.append(sorted(path.name for path in temporary.iterdir()))
        assert not target.exists()
        take_place(temporary, target, force)

    monkeypatch.setattr(run_folder, "_take_place", looked_at)
    job = make_job({"run": str(tmp_path / "run")})
    RunFolder.create(job, "r", False, {"model": "sage"}, {"cluster.json": "{}"}).close()
    assert seen == [[".lock", ".reserve", "checkpoints", "cluster.json", "decided.yaml", "job.yaml", "run.json"]]
    monkeypatch.undo()
    assert RunFolder.open(tmp_path / "run").facts["model"] == "sage"
    RunFolder.create(job, "r", True).close()
    assert "model" not in RunFolder.open(tmp_path / "run").facts
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_room_is_kept_for_telling_of_a_full_disk(tmp_path, monkeypatch):
    folder = RunFolder.create(make_job({"run": str(tmp_path / "run")}), "r", False)
    made = files.open_bytes

    def full_while_reserved(path, *given):
        if (tmp_path / "run" / ".reserve").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return made(path, *given)

    monkeypatch.setattr(files, "open_bytes", full_while_reserved)
    with refused("write-failed run.json"):
        folder.write_facts(state="finished")
    folder.record_failure("failed", "the disk is full", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    folder.close()
    assert facts_of(tmp_path / "run")["state"] == "failed"
    assert "No space left on device" in (tmp_path / "run" / "log.txt").read_text()
    monkeypatch.undo()
    RunFolder.open(tmp_path / "run", writing=True).close()
    assert (tmp_path / "run" / ".reserve").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_disk_that_is_really_full(tmp_path):
    """Nothing more can be written, and yet run.json says that the run failed, and why."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("may not mount here")
    try:

        class Fill(Progress):
            def advance(self, amount):
                with suppress(OSError), (disk / "filling").open("ab", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))

        with refused("write-failed"):
            trained(community_graph(), disk / "run", progress=Fill())
        assert facts_of(disk / "run")["state"] == "failed"
        assert "No space left on device" in facts_of(disk / "run")["message"]
        (disk / "filling").unlink()
        assert train(community_graph(), resume=disk / "run").state == "finished"
    finally:
        subprocess.run(["umount", str(disk)], check=True)
