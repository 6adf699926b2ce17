"""Gradients of older weights: exactly those of so many updates ago, resumed with equal bits, refused where not done."""

import copy

import pytest
import torch
from test_resume import Trouble, assert_same_runs, interrupt

from penstock.api import train
from penstock.report import write_report
from penstock.train.steps.one_by_one import StaleWeights
from refusals import refused
from training_graphs import community_graph, newest_checkpoint, trained


def test_the_gradient_is_that_of_the_weights_before_the_last_updates():
    torch.manual_seed(0)
    inputs, targets = torch.randn(12, 5, 3), torch.randn(12, 5, 1)
    for updates in (0, 1, 3):
        model = torch.nn.Linear(3, 1)
        plain, before = copy.deepcopy(model), []
        stale = StaleWeights(model, updates)
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in zip(inputs, targets, strict=True):
            optimiser.zero_grad()
            with stale.in_place():
                ((model(x) - y) ** 2).mean().backward()
            optimiser.step()
            # The same by hand: w' = w - lr * gradient at the weights of `updates` steps ago.
            before.append([each.detach().clone() for each in plain.parameters()])
            old = torch.nn.Linear(3, 1)
            with torch.no_grad():
                for own, value in zip(old.parameters(), before[max(0, len(before) - 1 - updates)], strict=True):
                    own.copy_(value)
            ((old(x) - y) ** 2).mean().backward()
            with torch.no_grad():
                for own, other in zip(plain.parameters(), old.parameters(), strict=True):
                    own -= 0.1 * other.grad
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_step_that_fails_leaves_the_newest_weights():
    model = torch.nn.Linear(2, 1)
    stale = StaleWeights(model, 1)
    with stale.in_place():
        pass
    with torch.no_grad():
        model.weight.add_(1.0)
    newest = model.weight.detach().clone()
    with pytest.raises(RuntimeError), stale.in_place():
        assert not torch.equal(model.weight, newest)
        raise RuntimeError("the loss failed")
    assert torch.equal(model.weight, newest) and len(stale.state()) == 1


def test_a_killed_run_ends_with_equal_bits_and_says_how_stale_it_was(tmp_path):
    graph, fields = community_graph(), {"staleness": 2, "epochs": 3, "norm": "batch"}
    whole = trained(graph, tmp_path / "whole", **fields)
    path = tmp_path / "run"
    assert trained(graph, path, **fields, progress=Trouble(5, interrupt)).state == "interrupted"
    assert len(newest_checkpoint(path)["room"]) == 2
    run = train(graph, resume=path)
    assert_same_runs(whole, run)
    assert run.result["staleness"] == 2
    assert "on weights 2 updates old" in write_report(path).read_text()
    fresh = trained(graph, tmp_path / "fresh", **{**fields, "staleness": 0})
    assert fresh.result["train_loss"] != whole.result["train_loss"]


def test_where_it_is_not_done(tmp_path):
    with refused("unsupported-combination whole staleness 1"):
        trained(community_graph(), tmp_path / "a", sampler="whole", layers=2, staleness=1)
    with refused("unsupported-combination embeddings staleness 1"):
        trained(community_graph(features=False), tmp_path / "b", staleness=1)
