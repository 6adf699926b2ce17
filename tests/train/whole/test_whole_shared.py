"""Training on the whole graph among workers: the losses of one, whatever is exchanged when."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.train.tasks import NodeTask
from penstock.train.whole.shared import execution, passes
from penstock.train.whole.shared.execution import cheaper_than
from penstock.train.whole.shared.steps import EXCHANGES
from refusals import refused
from training_graphs import assert_same_state, community_graph
from whole_threads import ThreadWorkers, train_in_threads

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


@pytest.mark.long
@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_losses_in_many_bins_are_those_of_one_worker(fields):
    graph = community_graph(120)
    expected = losses_of(graph, 1, bins=1, **fields)
    np.testing.assert_allclose(losses_of(graph, 2, bins=17, **fields), expected, rtol=ROUNDING)


@pytest.mark.parametrize(
    # Workers that share GCN are those of the tests below.
    "fields",
    [pytest.param(fields, marks=[pytest.mark.long] * (fields["model"] == "gcn")) for fields in MODELS],
    ids=str,
)
def test_losses_are_those_of_one_worker(fields):
    graph = community_graph(120)
    expected = losses_of(graph, 1, bins=1, **fields)
    for world, bins in ((1, 3), (2, 1), (4, 3)):
        np.testing.assert_allclose(losses_of(graph, world, bins=bins, **fields), expected, rtol=ROUNDING)


@pytest.mark.covering(1)
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


def test_boundary_with_all_rows_is_exact(monkeypatch):
    """Equal to the bit where the others send every row as well."""
    monkeypatch.setitem(EXCHANGES, "bins", replace(EXCHANGES["bins"], sums=False))
    graph = community_graph(120)
    fields = {"model": "gcn", "layers": 3, "bins": 3}
    assert losses_of(graph, 3, exchange="boundary", boundary_share=1.0, **fields) == losses_of(graph, 3, **fields)


def test_boundary_is_unbiased(monkeypatch):
    """The last layer is linear in the rows that it reads: outputs have the exact ones as their mean over draws."""
    graph, found = community_graph(80), {}
    loss = NodeTask.loss

    def recorded(task, out, batch):
        found.setdefault(tuple(batch.seeds["node"][:3].tolist()), []).append(out.detach().clone())
        return loss(task, out, batch)

    monkeypatch.setattr(NodeTask, "loss", recorded)
    still = {**WHOLE, "dropout": 0.0, "lr": 1e-30, "optimiser": "SGD", "model": "gcn", "bins": 2}
    train_in_threads(graph, 2, epochs=1, **still)
    exact = {key: outs[-1] for key, outs in found.items() if len(outs[-1]) > 4}
    found.clear()
    workers, _ = train_in_threads(graph, 2, epochs=100, exchange="boundary", boundary_share=0.5, **still)
    for key, expected in exact.items():
        drawn = torch.stack(found[key][1:])
        error = drawn.std(0) / len(drawn) ** 0.5
        assert float(error.max()) > 0
        assert bool(((drawn.mean(0) - expected).abs() <= 5 * error + 1e-5).all())
    halo = sum(facts["halo_rows"] for _, _, facts, _ in workers)
    received = sum(received for *_, received in workers)
    assert 0.4 < received / (100 * 2 * 4 * WHOLE["hidden"] * halo) < 0.6


@pytest.mark.parametrize(
    "share, model",
    [
        pytest.param(share, model, marks=() if share == "some" or model == "gcn" else pytest.mark.long)
        for share in ("none", "some", "all")
        for model in ("gcn", "sage", "gat")
    ],
)
def test_replicas_change_no_loss(monkeypatch, share, model):
    """Of all levels but the last; where all are computed here nothing is received."""
    graph = community_graph(120)
    fields = {"model": model, "layers": 3, "bins": 3, "heads": 2}
    expected = losses_of(graph, 1, **fields)
    chosen = {
        "none": lambda lengths, missing: np.zeros(len(lengths), np.bool_),
        "some": lambda lengths, missing: lengths < np.median(lengths),
        "all": lambda lengths, missing: np.ones(len(lengths), np.bool_),
    }[share]
    monkeypatch.setattr(execution, "cheaper_than", lambda *_: chosen)
    np.testing.assert_allclose(losses_of(graph, 3, exchange="replicate", **fields), expected, rtol=ROUNDING)
    workers, _ = train_in_threads(graph, 2, epochs=1, exchange="replicate", **{**WHOLE, **fields})
    facts = workers[0][2]
    assert (facts["replicated_rows"] > 0) == (share != "none") and (facts["halo_rows"] > 0) == (share != "all")
    assert facts["replicated_by"] == "stated rates"


def test_long_lists_are_received_and_short_ones_computed():
    slow = cheaper_than(1e6, 100, 256, constant=False, learned=False)
    assert slow(np.array([1, 10**6]), np.zeros(2)).tolist() == [True, False]
    assert not cheaper_than(1e12, 100, 256, constant=False, learned=False)(np.array([1]), np.zeros(1)).any()


def test_rows_that_would_be_received_for_a_replica_count_and_so_do_measured_costs():
    """A row and its gradient take 4 ms, and so does each that is missing."""
    assert cheaper_than(128e3, 64, 64, False, True)(np.array([3, 3]), np.array([0, 1])).tolist() == [True, False]
    measured = cheaper_than(128e3, 64, 64, False, True, [1e-3, 1e-3])
    assert measured(np.array([2, 3]), np.zeros(2)).tolist() == [True, False]


@pytest.mark.parametrize("world", [2, 4])
def test_deeper_rows_are_replicated_by_cost_where_links_are_slow(monkeypatch, world):
    """Vertices without missing inputs first: fewer rows travel than with replicas of the first layer alone."""
    graph, fields = community_graph(150), {**WHOLE, "model": "gcn", "layers": 3, "bins": 2, "exchange": "replicate"}
    monkeypatch.setattr(ThreadWorkers, "bandwidth", 1e5)
    deep = train_in_threads(graph, world, epochs=2, **fields)[0]
    costly = [1e-9, 1e-9, 1.0, 1.0, 1.0, 1.0]
    shallow = train_in_threads(graph, world, epochs=2, **fields, replicate_costs=costly)[0]
    np.testing.assert_allclose(deep[0][0], shallow[0][0], rtol=ROUNDING)
    assert shallow[0][2]["replicated_by"] == "measured costs"
    halo, fewer = (sum(worker[2]["halo_rows"] for worker in workers) for workers in (shallow, deep))
    assert 0 < fewer < halo


def test_lists_of_inputs_that_never_change_cost_nothing_and_gradients_of_learned_ones_do():
    longest = {}
    for constant, learned in ((True, False), (False, False), (False, True)):
        cheaper = cheaper_than(1e8, 100, 64, constant, learned)
        longest[constant, learned] = int(cheaper(np.arange(1, 10**4), np.zeros(10**4 - 1)).sum())
    assert longest[True, False] == 10**4 - 1 > longest[False, False] > longest[False, True] > 0


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"exchange": "boundary", "model": "gat", "heads": 2}, "gat"),
        ({"exchange": "boundary", "model": "sage", "aggregate": "max"}, "sage"),
        ({"exchange": "replicate", "norm": "batch"}, "batch"),
        ({"keep": "recompute"}, "recompute"),
    ],
    ids=str,
)
def test_what_workers_cannot_do_is_refused(fields, why):
    with refused(f"unsupported-combination {why}"):
        train_in_threads(community_graph(60), 2, epochs=1, **{**WHOLE, **fields})


def test_several_steps_an_epoch():
    graph = community_graph(120)
    expected = losses_of(graph, 1, bins=1, steps_per_epoch=3)
    assert len(expected) == 9
    np.testing.assert_allclose(losses_of(graph, 2, bins=3, steps_per_epoch=3), expected, rtol=ROUNDING)


def test_where_rows_wait_changes_no_loss():
    """On a disk nothing else is kept either: bins are computed again in the backward pass."""
    graph = community_graph(120)
    fields = {"model": "gcn", "layers": 3, "bins": 4}
    expected = losses_of(graph, 2, **fields)
    np.testing.assert_allclose(losses_of(graph, 2, keep="disk", **fields), expected, rtol=ROUNDING)


def test_bits_do_not_depend_on_when_messages_come():
    """Threads race: the order of execution differs from run to run, and nothing else."""
    graph = community_graph(150)
    first = losses_of(graph, 4, bins=5, model="gcn", layers=3)
    for _ in range(2):
        assert losses_of(graph, 4, bins=5, model="gcn", layers=3) == first


@pytest.mark.covering(1)
@pytest.mark.parametrize("idle", [(), (1,)])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_gradients_of_layers_may_be_summed_while_earlier_ones_run(monkeypatch, norm, idle):
    """To the bit, where workers' gradients are added in the order of ranks."""
    graph, fields = community_graph(120), {"model": "gcn", "layers": 3, "bins": 3, "norm": norm, "idle": idle}
    expected, begun, start = losses_of(graph, 3, **fields), [], ThreadWorkers.start_sum
    monkeypatch.setattr(passes, "_WORTH", 0)
    monkeypatch.setattr(ThreadWorkers, "start_sum", lambda *given: (begun.append(len(given[1])), start(*given)))
    assert losses_of(graph, 3, **fields) == expected
    # Of the last two layers, whose weights and biases come with two numbers for each column where rows are normalised.
    assert sorted(set(begun)) == ([2] if norm == "none" else [2, 4]) and len(begun) == 3 * 2 * 3


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
