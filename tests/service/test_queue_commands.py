"""The service and its commands as a user meets them: real processes, a real port, and kills."""

import json
import os
import signal
import stat
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml

import penstock as ps
from forks import ForkedProgram
from in_process import answer, command, refusal
from penstock.service.client import _plain
from penstock.service.folder import ServiceFolder, default_folder
from refusals import refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

JOB = {
    "fanouts": [4, 3],
    "hidden": 16,
    "batch_size": 16,
    "epochs": 30,
    "checkpoint_minutes": 0,
    "checkpoint_steps": 5,
    "threads": 1,
}
PATIENCE_S = 120


class Service:
    """`penstock serve` as a process of its own."""

    def __init__(self, folder, *words):
        self.folder = folder
        self.words = ["penstock", "serve", "--folder", folder / "queue", *words]
        self.process = None

    def start(self):
        self.process = ForkedProgram(self.words, cwd=self.folder)
        end = time.monotonic() + PATIENCE_S
        while "Serving the queue" not in self.process.said()[1]:
            assert self.process.poll() is None and time.monotonic() < end, self.process.said()
            time.sleep(0.02)
        return ps.Queue(self.folder / "queue")

    def stop(self, number=signal.SIGTERM):
        """Its exit status and what it has said."""
        self.process.send_signal(number)
        said = self.process.communicate(PATIENCE_S)[1]
        return self.process.returncode, said


@pytest.fixture
def service(tmp_path):
    graph = community_graph(120).save(tmp_path / "graph")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"graph": "graph", **JOB, "epochs": 2}))
    found = Service(tmp_path)
    found.graph = graph
    yield found
    if found.process is not None and found.process.poll() is None:
        found.stop(signal.SIGKILL)


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_commands_from_submitting_to_draining(service, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_QUEUE", str(tmp_path / "queue"))
    assert "penstock serve" in refusal(monkeypatch, capsys, "queue")
    queue = service.start()
    asked = ["submit", "job.yaml", "--sweep", "lr=0.01,0.003", "hidden=8,16", "--priority", "3"]
    assert answer(monkeypatch, capsys, *asked) == {"jobs": [1, 2, 3, 4]}
    waited = answer(monkeypatch, capsys, "wait", "1", "2", "3", "4")
    assert [job["state"] for job in waited["jobs"]] == ["ended"] * 4
    listed = answer(monkeypatch, capsys, "queue", "--state", "ended", "--limit", "2")
    assert ([job["id"] for job in listed["jobs"]], listed["next"], listed["counts"]) == ([4, 3], 3, {"ended": 4})
    written = [tmp_path / "queue", *(tmp_path / "queue").rglob("*")]
    assert not [path for path in written if path.stat().st_mode & 0o077], "others could read them"
    assert "training" in answer(monkeypatch, capsys, "logs", "-f", "1")["text"]
    assert "".join(queue.logs(1)) == answer(monkeypatch, capsys, "logs", "1")["text"]
    assert refusal(monkeypatch, capsys, "cancel", "1").code == "closed"
    assert {(job["metric"]["name"], job["sweep"]) for job in waited["jobs"]} == {("accuracy", 1)}
    (best,) = [job for job in waited["jobs"] if job["best"]]
    assert best["metric"]["val"] == max(job["metric"]["val"] for job in waited["jobs"])
    assert 0 <= best["metric"]["test"] <= 1
    table = command(monkeypatch, capsys, "queue")[1].splitlines()
    (marked,) = [line for line in table if "(best)" in line]
    assert marked.split()[0] == str(best["id"]) and best["name"] in marked and "graph sage, lr=0.0" in marked
    assert "tries" not in table[0] and "reason" not in table[0]
    assert refusal(monkeypatch, capsys, "submit", "job.yaml", "other.yaml").code == "usage"
    assert refusal(monkeypatch, capsys, "submit").code == "usage"
    assert refusal(monkeypatch, capsys, "submit", "gone.yaml").code == "file-not-found"
    assert refusal(monkeypatch, capsys, "queue", "--state", "sleeping").code == "unknown-name"
    flags = ["--epochs", "100000", "--no-reuse-batches", "--checkpoint-steps", "0", "--name", "a long one"]
    (long,) = answer(monkeypatch, capsys, "submit", "job.yaml", *flags)["jobs"]
    until(lambda: queue.job(long)["state"] == "running" and queue.job(long)["metric"])
    assert queue.job(long)["name"] == "a long one" and queue.job(long)["document"]["epochs"] == 100_000
    assert answer(monkeypatch, capsys, "queue")["jobs"][0]["seconds"] > 0
    assert answer(monkeypatch, capsys, "serve", "--drain") == {"running": 1}
    with refused("closed"):
        queue.submit("job.yaml")
    assert answer(monkeypatch, capsys, "cancel", str(long))["id"] == long
    said = service.process.communicate(PATIENCE_S)[1]
    assert (service.process.returncode, "cancelled" in said) == (0, True)
    assert not (tmp_path / "queue" / "service.json").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--seed", "-1"],
        ["--model", "gnn"],
        ["--epochs", "many"],
        ["--reuse-batches", "false"],
        ["--model", "embedding", "--layers", "2"],
    ],
)
def test_wrong_flags_get_the_errors_of_train_without_a_service(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"graph": "graph", **JOB}))
    files = [] if "false" in flags else ["job.yaml"]
    queued = ["submit", *files, *flags, "--folder", tmp_path / "queue"]
    expected = refusal(monkeypatch, capsys, "train", *files, *flags)
    assert refusal(monkeypatch, capsys, *queued) == expected
    assert refusal(monkeypatch, capsys, *queued, "--sweep", "lr=0.01,0.003") == expected
    assert "wrong-file" in refusal(monkeypatch, capsys, "submit", tmp_path, "--seed", "1").code


def test_a_second_service_is_refused_and_the_token_is_private(service, tmp_path, monkeypatch, capsys):
    service.start()
    token = tmp_path / "queue" / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "queue").stat().st_mode) == 0o700
    assert refusal(monkeypatch, capsys, "serve", "--folder", tmp_path / "queue").code == "in-use"
    secret = token.read_text().strip()
    said = "".join(service.process.said())
    assert secret not in said
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            assert secret.encode() not in (place / "cmdline").read_bytes()
            if os.getsid(int(place.name)) == service.process.pid:
                assert secret.encode() not in (place / "environ").read_bytes()
    assert service.stop()[0] == 0


def test_a_killed_service_loses_nothing_and_its_jobs_go_on(service, tmp_path):
    alone = trained(service.graph, tmp_path / "alone", **JOB)
    queue = service.start()
    numbers = queue.submit({"graph": str(service.graph.path), **JOB}, sweep={"seed": [0, 1]})
    checkpoints = tmp_path / "queue" / "jobs" / "1" / "run" / "checkpoints"
    until(lambda: any(int(file.stem[5:]) >= 20 for file in checkpoints.glob("step-*.ckpt")))
    service.stop(signal.SIGKILL)
    with refused("not-available penstock"):
        queue.jobs()
    queue = service.start()
    found = queue.wait(*numbers)
    assert [job["state"] for job in found] == ["ended"] * 2
    assert found[0]["tries"] >= 2
    assert_same_state(newest_checkpoint(alone.path), newest_checkpoint(found[0]["run"]))
    assert service.stop()[0] == 0


def test_a_wrong_folder_policy_or_number_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert refusal(monkeypatch, capsys, "serve", "--folder", tmp_path / "file").code == "write-failed"
    folder = ["--folder", tmp_path / "queue"]
    assert refusal(monkeypatch, capsys, "serve", *folder, "--policy", "fot").code == "unknown-name"
    assert refusal(monkeypatch, capsys, "serve", *folder, "--concurrent", "none").code == "invalid-value"
    assert refusal(monkeypatch, capsys, "serve", *folder, "--host", "256.1.1.1").code == "in-use"
    assert refusal(monkeypatch, capsys, "retry", *folder, "7").code == "not-available"


def test_a_token_that_others_could_have_read_is_replaced(tmp_path):
    folder = ServiceFolder(tmp_path / "queue")
    folder.hold()
    first = folder.make_token()
    assert folder.make_token() == first
    (tmp_path / "queue" / "token").chmod(0o644)
    assert folder.make_token() != first
    folder.close()


def test_nothing_is_sent_to_whoever_listens_where_a_service_was(tmp_path):
    folder = ServiceFolder(tmp_path / "queue")
    folder.hold()
    folder.make_token()
    folder.close()
    (tmp_path / "queue" / "service.json").write_text(json.dumps({"host": "127.0.0.1", "port": 9}))
    with refused("not-available"):
        ps.Queue(tmp_path / "queue").jobs()


@pytest.mark.parametrize(
    ("given", "fields", "expected"),
    [
        (None, {}, "missing-data"),
        (3, {}, "invalid-value int"),
        ({"graph": "cora"}, {"sweep": {"lr": 0.1}}, "invalid-value sweep"),
        ({"graph": "cora"}, {"sweep": [1]}, "invalid-value sweep"),
    ],
)
def test_what_cannot_be_queued_is_told_before_a_service_is_asked(tmp_path, given, fields, expected):
    with refused(expected):
        ps.Queue(tmp_path / "queue").submit(given, **fields)


def test_numbers_of_numpy_and_ranges_are_sent_as_lists(tmp_path, monkeypatch):
    sent = []

    def noted(queue, method, path, body=None):
        sent.append(json.loads(json.dumps(body, default=_plain)))
        return {"jobs": []}

    monkeypatch.setattr(ps.Queue, "_ask", noted)
    fields = {"hidden": np.int64(8), "sweep": {"lr": np.array([0.5, 0.25]), "seed": range(2)}}
    ps.Queue(tmp_path).submit({"graph": "cora"}, **fields)
    assert sent[0]["changes"]["hidden"] == 8 and sent[0]["sweep"] == {"lr": [0.5, 0.25], "seed": [0, 1]}


def test_the_folder_is_that_of_the_environment_or_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_QUEUE", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("PENSTOCK_QUEUE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_folder() == tmp_path / "state" / "penstock" / "queue"
