"""Tasks on edges, trained on the whole graph: losses are those of one batch of the supervised edges."""

import numpy as np
import pytest

from penstock import Graph, NodeSet
from penstock.sampling.links import find_reverse, supervise
from penstock.train.dataset.prepared_graph import choose_edge_type
from penstock.train.tasks import task
from penstock.train.whole import execution
from refusals import refused
from training_graphs import (
    community_graph,
    facts_of,
    labelled_edges,
    lines_of,
    lists_of,
    numbered_edges,
    trained,
    typed_graph,
)

ROUNDING = 2e-5
WHOLE = {"sampler": "whole", "layers": 2, "epochs": 3, "evaluate_every": 0, "hidden": 16, "rank_against": 20}
LINKS = {"task": "link-prediction"}
EDGES = {"task": "edge-classification", "label": "kind"}
NUMBERS = {"task": "edge-regression", "label": "score"}


def losses(run):
    return [line["loss"] for line in lines_of(run) if line["kind"] == "epoch"]


def supervised_edges(run):
    return facts_of(run)["result"]["supervised_edges"]


def reference(graph, run, monkeypatch, seed=0, **fields):
    """One mini-batch of the supervised edges with whole neighbourhoods; it leaves out its edges and their reverses."""
    share, make = fields.pop("supervision", 0.3), task.make_batch_source

    def supervised(job, graph, training, excluding=False):
        kind = choose_edge_type(graph, job, None if job.task == "link-prediction" else job.label)
        found = supervise(graph, kind, training, share, seed, find_reverse(graph, kind))
        return make(job, graph, found.positions, excluding)

    layers = fields.get("layers", 2)
    with monkeypatch.context() as patch:
        patch.setattr(task, "make_batch_source", supervised)
        changed = {"sampler": "neighbour", "fanouts": [-1] * layers, "batch_size": 1 << 20}
        return trained(graph, run, seed=seed, **{**WHOLE, **fields, **changed})


@pytest.mark.parametrize(
    "fields",
    [
        {"bins": 1},
        {"bins": 4, "supervision": 0.6, "seed": 7},
        {"bins": 3, "negatives_per_edge": 3, "corrupt": "both", "loss": "softmax", "scope": "all"},
        {"bins": 2, "model": "gcn", "layers": 3, "scorer": "mlp", "supervision": 1.0},
        {"bins": 2, "model": "gat", "heads": 2, "attention_dropout": 0.2, "jump": "cat"},
        {"bins": 2, "norm": "batch", "filtered": False, "keep": "recompute"},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [community_graph, pytest.param(labelled_edges, marks=pytest.mark.long)])
def test_links_on_the_whole_graph(tmp_path, monkeypatch, make, fields):
    graph, what = make(), LINKS if make is community_graph else EDGES
    how = {name: fields[name] for name in ("bins", "scope", "keep") if name in fields}
    fields = {name: value for name, value in fields.items() if name not in how}
    if what is EDGES:
        fields = {name: value for name, value in fields.items() if name not in ("scorer", "loss")}
    expected = losses(reference(graph, tmp_path / "one", monkeypatch, **what, **fields).path)
    found = losses(trained(graph, tmp_path / "whole", **{**WHOLE, **what, **fields, **how}).path)
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found, expected, rtol=ROUNDING)


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "author__writes__paper"},
        {"target": "paper__cites__paper", "supervision": 0.5, "bins": 3},
        {"target": "author__writes__paper", "supervision": 1.0, "bins": 2, "model": "rgcn", "corrupt": "both"},
    ],
    ids=str,
)
def test_links_between_several_types(tmp_path, monkeypatch, fields):
    graph = typed_graph()
    bins = fields.get("bins", 1)
    fields = {**{name: each for name, each in fields.items() if name != "bins"}, "embedding": 8, **LINKS}
    expected = losses(reference(graph, tmp_path / "one", monkeypatch, **fields).path)
    found = losses(trained(graph, tmp_path / "whole", **{**WHOLE, **fields, "bins": bins}).path)
    np.testing.assert_allclose(found, expected, rtol=ROUNDING)


@pytest.mark.parametrize("loss, bins", [("mse", 1), ("huber", 3)])
def test_numbers_of_edges(tmp_path, monkeypatch, loss, bins):
    fields = {**NUMBERS, "loss": loss}
    expected = losses(reference(numbered_edges(), tmp_path / "one", monkeypatch, **fields).path)
    found = losses(trained(numbered_edges(), tmp_path / "whole", **{**WHOLE, **fields, "bins": bins}).path)
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found, expected, rtol=ROUNDING)


def test_several_steps_have_supervised_edges_each(tmp_path):
    run = trained(community_graph(), tmp_path / "run", **{**WHOLE, **LINKS, "steps_per_epoch": 3, "bins": 2})
    assert max(line["step"] for line in lines_of(run.path) if line["kind"] == "epoch") == 9


def test_what_was_supervised_is_in_the_result(tmp_path):
    graph = community_graph()
    run = trained(graph, tmp_path / "run", **{**WHOLE, **LINKS, "supervision": 0.4})
    result = facts_of(run.path)["result"]
    count = result["supervised_edges"] + result["message_edges"]
    assert 0.3 < result["supervised_edges"] / count < 0.5
    assert count < graph.num_edges


def test_supervised_pairs_and_their_reverses_carry_no_messages():
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, 20, 200), rng.integers(0, 30, 200)
    nodes = {"a": NodeSet(20), "b": NodeSet(30)}
    edges = {("a", "to", "b"): lists_of(src, dst, 20, 30), ("b", "from", "a"): lists_of(dst, src, 30, 20)}
    graph = Graph(nodes, edges, "both")
    kind, turned = graph.edges
    found = supervise(graph, kind, np.arange(150), 0.5, 1, turned)
    supervised = set(pairs_of(graph.edges[kind], found.positions))
    assert 0 < len(found.positions) < 150
    for each, order in ((kind, 1), (turned, -1)):
        before, after = ({pair[::order] for pair in pairs_of(some.edges[each])} for some in (graph, found.messages))
        assert after == before - supervised
    again = supervise(graph, kind, np.arange(150), 0.5, 1, turned)
    np.testing.assert_array_equal(again.positions, found.positions)
    assert len(supervise(graph, kind, np.arange(150), 0.5, 2, turned).positions) != 0


def test_too_small_a_share_is_a_sentence(tmp_path):
    with refused("missing-data supervision"):
        trained(community_graph(60), tmp_path / "run", **{**WHOLE, **LINKS, "supervision": 1e-9})


def test_a_loss_that_does_not_fit_is_a_sentence(tmp_path, monkeypatch):
    """Every edge of a step against every other one: as many pairs as the square."""
    monkeypatch.setattr(execution, "free_bytes", lambda *_: 60_000_000)
    fields = {**WHOLE, **LINKS, "epochs": 1}
    trained(community_graph(), tmp_path / "uniform", **fields)
    with refused("out-of-memory loss supervision"):
        trained(community_graph(), tmp_path / "in-batch", **fields, negatives="in-batch")


def pairs_of(edges, positions=None):
    targets = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    chosen = np.arange(edges.count) if positions is None else positions
    return list(zip(edges.indices[chosen].tolist(), targets[chosen].tolist(), strict=True))
