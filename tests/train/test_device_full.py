"""A device without memory left, in a step, a stage or an evaluation: one sentence, and a run that says it failed."""

import pytest
import torch

from penstock.pipeline.batch_rows import HostCarrier
from penstock.pipeline.stages import StageError
from penstock.train.layerwise.inference import Inference
from penstock.train.run_context import DeviceFull, device_memory
from penstock.train.session import Session
from refusals import refused
from training_graphs import community_graph, facts_of, stage_threads, trained

FULL = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 4.00 GiB.\nSee documentation."
)


class Nth:
    """Does what another does, until it is called for the n-th time."""

    def __init__(self, function, number):
        self._function, self.left = function, number

    def __call__(self, *given):
        self.left -= 1
        if self.left == 0:
            raise FULL
        return self._function(*given)


def fail_at(monkeypatch, kind, name, number):
    """Let the n-th call of a method find the device full."""
    later = Nth(getattr(kind, name), number)
    monkeypatch.setattr(kind, name, lambda *given: later(*given))


def assert_failed(tmp_path, words):
    with refused(f"out-of-memory {words}") as caught:
        trained(community_graph(), tmp_path / "run")
    assert "\n" not in str(caught.value) and "2.50 GiB" in str(caught.value)
    facts = facts_of(tmp_path / "run")
    assert facts["state"] == "failed" and facts["message"] == str(caught.value)
    assert "OutOfMemoryError" in (tmp_path / "run" / "log.txt").read_text() and stage_threads() == []


def test_in_a_step(tmp_path, monkeypatch):
    """The first batch is tried before the run begins; an epoch has seven."""
    fail_at(monkeypatch, Session, "encode", 10)
    assert_failed(tmp_path, "epoch 2, batch 2 (step 9) batch_size")


def test_on_the_way_to_the_device(tmp_path, monkeypatch):
    fail_at(monkeypatch, HostCarrier, "transfer", 10)
    assert_failed(tmp_path, "epoch batch batch_size")


def test_in_a_validation(tmp_path, monkeypatch):
    fail_at(monkeypatch, Inference, "_by_layers", 2)
    assert_failed(tmp_path, "Validation epoch 2 (step 14) inference hidden")


def test_before_a_run_begins(tmp_path, monkeypatch):
    fail_at(monkeypatch, Session, "encode", 1)
    with refused("out-of-memory", DeviceFull):
        trained(community_graph(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_not_memory_is_left_alone():
    other = StageError("sample", 3)
    other.__cause__ = ValueError("a list is damaged")
    with pytest.raises(StageError) as caught, device_memory(lambda: "there", "mend"):
        raise other
    assert caught.value is other
    with (
        refused("out-of-memory", DeviceFull),
        device_memory(lambda: "there", "mend"),
    ):
        raise torch.OutOfMemoryError("no room")
