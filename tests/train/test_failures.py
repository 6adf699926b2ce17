"""What goes wrong inside a run: one sentence, the whole story in log.txt, and nothing left running or open."""

import errno
import gc
import os
import signal

import pytest
import torch

from penstock import PenstockError
from penstock.api import Run, train
from penstock.progress import Progress
from penstock.store.source import ArraySource
from penstock.train.tasks.node import NodeTask
from refusals import refused
from training_graphs import (
    assert_same_state,
    community_graph,
    facts_of,
    newest_checkpoint,
    open_files,
    stage_threads,
    trained,
)


@pytest.fixture
def graph():
    return community_graph()


def failing(method, after):
    """The method, which breaks after some calls."""
    calls = 0

    def work(*arguments, **more):
        nonlocal calls
        calls += 1
        if calls > after:
            raise LookupError("the third shelf\nis empty")
        return method(*arguments, **more)

    return work


# Trying a small batch first samples once; training pulls its features once a batch.
@pytest.mark.parametrize(
    "stage, owner, name",
    [("sample", NodeTask, "sample"), ("gather", ArraySource, "fill"), ("gather", NodeTask, "label")],
)
def test_an_exception_in_a_stage(stage, owner, name, graph, tmp_path, monkeypatch):
    run = tmp_path / "run"
    trained(graph, tmp_path / "before", first_layer="gather")
    # What earlier tests have left open is closed when it is collected.
    gc.collect()
    files = open_files()
    monkeypatch.setattr(owner, name, failing(getattr(owner, name), 4))
    with pytest.raises(PenstockError) as failure:
        trained(graph, run, sample_threads=2, first_layer="gather")
    sentence = str(failure.value)
    assert f"in stage {stage!r}" in sentence
    assert "LookupError: the third shelf is empty" in sentence
    assert str(run / "log.txt") in sentence
    log = (run / "log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert "in work" in log
    assert "the third shelf" in log
    assert facts_of(run)["state"] == "failed"
    assert facts_of(run)["message"] == "the third shelf is empty"
    assert stage_threads() == []
    del failure
    gc.collect()
    assert open_files() == files
    monkeypatch.undo()
    assert train(graph, resume=run).state == "finished"
    assert_same_state(newest_checkpoint(tmp_path / "before"), newest_checkpoint(run))


class Module(torch.nn.Module):
    """Right in shape; raises when its third batch comes, or at once."""

    def __init__(self, out=4, breaks_at=None):
        super().__init__()
        self.linear, self.breaks_at, self.calls = torch.nn.Linear(4, out), breaks_at, 0

    def forward(self, x, edge_index):
        self.calls += 1
        if self.calls == self.breaks_at:
            raise ZeroDivisionError("my own mistake")
        return self.linear(x)


def test_a_module_of_the_wrong_width(graph, tmp_path):
    with refused("shape-mismatch 4 5"):
        trained(graph, tmp_path / "run", model=Module(out=5))
    assert not (tmp_path / "run").exists()


def test_a_module_that_raises(graph, tmp_path):
    with refused("user-code-failed"):
        trained(graph, tmp_path / "run", model=Module(breaks_at=1))
    assert not (tmp_path / "run").exists()
    with refused("unexpected-failure log.txt"):
        trained(graph, tmp_path / "run", model=Module(breaks_at=3))
    assert "in forward" in (tmp_path / "run" / "log.txt").read_text()
    assert facts_of(tmp_path / "run")["state"] == "failed"
    assert stage_threads() == []


def test_modules_that_give_something_else(graph, tmp_path):
    class Tuple(Module):
        def forward(self, x, edge_index):
            return (self.linear(x),)

    class Few(Module):
        def forward(self, x):
            return self.linear(x)

    for module, said in ((Tuple(), "user-code-failed tuple"), (Few(), "user-code-failed")):
        with refused(said):
            trained(graph, tmp_path / "run", model=module)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_at_a_checkpoint_keeps_the_one_before(graph, tmp_path, monkeypatch):
    run, sync = tmp_path / "run", os.fsync
    written = []

    def full_at_the_third(descriptor):
        written.append(descriptor)
        if len(written) >= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_the_third)
    with pytest.raises(PenstockError) as failure:
        trained(graph, run, checkpoint_steps=3, evaluate_every=0)
    sentence = str(failure.value)
    assert "No space left on device" in sentence
    assert "the last good one is step-000000000003.ckpt" in sentence
    assert f"penstock train --resume {run}" in sentence
    assert sorted(file.name for file in (run / "checkpoints").iterdir()) == [
        "step-000000000000.ckpt",
        "step-000000000003.ckpt",
    ]
    assert facts_of(run)["state"] == "failed"
    assert facts_of(run)["message"] == sentence
    assert stage_threads() == []
    monkeypatch.undo()
    whole = trained(graph, tmp_path / "whole", evaluate_every=0)
    assert train(graph, resume=run).state == "finished"
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(run))


def test_a_disk_so_full_that_not_even_the_failure_can_be_told(graph, tmp_path, monkeypatch):
    from penstock.train.run_files.run_folder import RunFolder

    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class FullLater(Progress):
        def advance(self, amount):
            monkeypatch.setattr(RunFolder, "append_metrics", full)
            monkeypatch.setattr(RunFolder, "write_facts", full)
            monkeypatch.setattr(RunFolder, "log", full)

    with refused("unexpected-failure"):
        trained(graph, tmp_path / "run", progress=FullLater())
    assert stage_threads() == []


class Signal(Progress):
    """Sends signals after some steps."""

    def __init__(self, step, *numbers):
        super().__init__()
        self.left, self.numbers = step, numbers

    def advance(self, amount):
        self.left -= amount
        if self.left == 0:
            for number in self.numbers:
                signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_stop(number, graph, tmp_path):
    run = trained(graph, tmp_path / "run", progress=Signal(5, number))
    assert run.state == "interrupted"
    assert run.message == "Interrupted at epoch 1, batch 6."
    assert newest_checkpoint(run.path)["standing"]["step"] == 5
    assert run.result["train_loss"] is None
    assert run.result["limiting_stage"]
    assert facts_of(run.path)["result"] == run.result
    assert (run.path / "report.html").exists()
    assert stage_threads() == []


def test_a_second_ctrl_c_is_heard_at_once(graph, tmp_path):
    with pytest.raises(KeyboardInterrupt, match="resume with `penstock train --resume"):
        trained(graph, tmp_path / "run", progress=Signal(5, signal.SIGINT, signal.SIGINT), checkpoint_steps=2)
    assert Run.open(tmp_path / "run").state == "interrupted"
    assert newest_checkpoint(tmp_path / "run")["standing"]["step"] == 4
    assert stage_threads() == []
    assert train(graph, resume=tmp_path / "run").state == "finished"


def test_ctrl_c_while_the_best_model_is_tested(graph, tmp_path, monkeypatch):
    evaluate = NodeTask.evaluate

    def impatient(self, inference, splits, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(NodeTask, "evaluate", lambda *a: impatient(*a) if len(a) == 4 else evaluate(*a))
    with pytest.raises(KeyboardInterrupt):
        trained(graph, tmp_path / "run")
    assert Run.open(tmp_path / "run").state == "interrupted"
    monkeypatch.undo()
    run = train(graph, resume=tmp_path / "run")
    assert run.state == "finished"
    assert run.test == trained(graph, tmp_path / "whole").test
