"""Training on the whole graph among workers: the losses of one, whatever is exchanged when."""

import numpy as np
import pytest
import torch

from training_graphs import assert_same_state, community_graph
from whole_threads import train_in_threads

ROUNDING = 2e-5
WHOLE = {"sampler": "whole", "layers": 2, "hidden": 8, "threads": 1, "dropout": 0.2}
MODELS = [
    {"model": "sage"},
    {"model": "gcn", "layers": 3},
    {"model": "gat", "heads": 2, "attention_dropout": 0.2},
    {"model": "sage", "norm": "batch", "residual": True, "layers": 3},
    {"model": "sage", "jump": "cat", "layers": 3, "input_dropout": 0.2},
]


def losses_of(graph, world, **fields):
    found, hub = train_in_threads(graph, world, **{**WHOLE, **fields})
    assert all(losses == found[0][0] for losses, *_ in found)
    assert not hub.rows
    for _, weights, *_ in found[1:]:
        assert_same_state(dict(found[0][1]), dict(weights))
    return found[0][0]


@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_losses_are_those_of_one_worker(fields):
    graph = community_graph(120)
    expected = losses_of(graph, 1, bins=1, **fields)
    for world, bins in ((1, 3), (2, 1), (2, 17), (4, 3)):
        np.testing.assert_allclose(losses_of(graph, world, bins=bins, **fields), expected, rtol=ROUNDING)


@pytest.mark.parametrize("how", [{"exchange": "layer"}, *({"pipeline": each} for each in ("none", "inter", "intra"))])
@pytest.mark.parametrize("scope", ["reached", "all"])
def test_when_rows_are_exchanged_changes_no_loss(how, scope):
    graph = community_graph(120)
    fields = {"model": "gcn", "layers": 3, "scope": scope}
    expected = losses_of(graph, 1, bins=1, **fields)
    np.testing.assert_allclose(losses_of(graph, 3, bins=4, **how, **fields), expected, rtol=ROUNDING)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_a_worker_without_vertices_takes_part(norm):
    graph = community_graph(60)
    expected = losses_of(graph, 1, bins=1, norm=norm)
    np.testing.assert_allclose(losses_of(graph, 3, bins=2, norm=norm, idle=(1,)), expected, rtol=ROUNDING)


def test_several_steps_an_epoch():
    graph = community_graph(120)
    expected = losses_of(graph, 1, bins=1, steps_per_epoch=3)
    assert len(expected) == 12
    np.testing.assert_allclose(losses_of(graph, 2, bins=3, steps_per_epoch=3), expected, rtol=ROUNDING)


def test_bits_do_not_depend_on_when_messages_come():
    """Threads race: the order of execution differs from run to run, and nothing else."""
    graph = community_graph(150)
    first = losses_of(graph, 4, bins=5, model="gcn", layers=3)
    for _ in range(3):
        assert losses_of(graph, 4, bins=5, model="gcn", layers=3) == first


def test_rows_leave_bin_by_bin_or_a_layer_at_once():
    """A worker receives every halo row once and sends its gradient back once, whatever the groups are."""
    graph, found = community_graph(150), {}
    for pipeline in ("none", "both"):
        workers, hub = train_in_threads(graph, 2, epochs=1, bins=6, **{**WHOLE, "pipeline": pipeline})
        found[pipeline] = len(hub.log), sum(received for *_, received in workers)
        halo = sum(facts["halo_rows"] for _, _, facts, _ in workers)
        assert found[pipeline][1] == 2 * 4 * WHOLE["hidden"] * halo
    assert found["none"][0] == 4
    assert found["both"][0] > 8


def test_facts_say_how_rows_were_exchanged():
    workers, _ = train_in_threads(community_graph(100), 2, epochs=1, bins=3, **WHOLE)
    facts = workers[0][2]
    assert facts["bins"] == [3, 3] and facts["exchange"] == "bins" and facts["pipeline"] == "both"
    assert facts["exposed_communication_s"] >= 0
    assert torch.isfinite(torch.tensor(workers[0][0])).all()
