"""A device that is full in the middle of a run: the command says one sentence and exits with 2."""

import torch

from in_process import refusal
from penstock.train.session import Session
from training_graphs import community_graph, facts_of


def test_command_exits_with_two(tmp_path, monkeypatch, capsys):
    graph, encode, calls = community_graph().save(tmp_path / "graph").path, Session.encode, []

    def full(session, batch, x):
        calls.append(batch)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return encode(session, batch, x)

    monkeypatch.setattr(Session, "encode", full)
    flags = ["train", "--graph", graph, "--run", tmp_path / "run", "--fanouts=4,3", "--threads=1", "--batch-size=16"]
    said = refusal(monkeypatch, capsys, *flags)
    assert "at epoch 1, batch 2 (step 2)" in said and "lower batch_size, fanouts or hidden" in said
    assert facts_of(tmp_path / "run")["state"] == "failed"
