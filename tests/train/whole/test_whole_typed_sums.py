"""Sums of rows that workers send instead of rows in graphs of several types: one for each vertex and relation."""

from dataclasses import replace

import numpy as np
import pytest
from test_whole_exact import in_float64

from penstock import Graph, NodeSet
from penstock.partition.bins import count_bins, levels_reached
from penstock.partition.problem import merged_relations, whole_of
from penstock.train.whole.shared.steps import EXCHANGES
from training_graphs import assert_same_state, lists_of
from whole_threads import train_in_threads

EXACT, ROUNDING = 1e-9, 2e-5
WHOLE = {"sampler": "whole", "layers": 3, "hidden": 8, "threads": 1, "dropout": 0.2, "epochs": 2}
COUNTS = {"paper": 150, "author": 60}
LINEAR = [
    {"model": "rgcn", "bases": 2, "aggregate": "sum", "norm": "layer", "residual": True},
    pytest.param({"model": "rgcn", "blocks": 4}, marks=pytest.mark.long),
    {"model": "sage", "weight": "w"},
    pytest.param({"model": "rgcn"}, marks=pytest.mark.long),
    pytest.param({"model": "sage", "jump": "cat"}, marks=pytest.mark.long),
]


def relation(rng, source, target, hubs, others=300):
    """Random edges, and hubs that read and are read by many; with weights."""
    sources, targets = COUNTS[source], COUNTS[target]
    src, dst = [rng.integers(0, sources, others)], [rng.integers(0, targets, others)]
    for _ in range(hubs):
        src += [rng.integers(0, sources, 40), np.full(40, rng.integers(sources))]
        dst += [np.full(40, rng.integers(targets)), rng.integers(0, targets, 40)]
    pairs = np.unique(np.stack([np.concatenate(src), np.concatenate(dst)]), axis=1)
    return lists_of(*pairs, sources, targets, w=rng.uniform(0.5, 2, pairs.shape[1]).astype(np.float32))


@pytest.fixture(scope="module")
def graph():
    """Papers and authors; two relations join the same types, and one leads back."""
    rng = np.random.default_rng(0)
    nodes = {name: NodeSet(count, {"x": rng.random((count, 4), np.float32)}) for name, count in COUNTS.items()}
    nodes["paper"].fields["y"] = rng.integers(0, 3, COUNTS["paper"])
    nodes["paper"].splits |= {"train": np.arange(0, 150, 2), "val": np.arange(1, 150, 4), "test": np.arange(3, 150, 4)}
    kinds = [("author", "writes", "paper"), ("author", "reads", "paper"), ("paper", "by", "author")]
    kinds += [("paper", "cites", "paper")]
    return Graph(nodes, {kind: relation(rng, kind[0], kind[2], 3) for kind in kinds}, "typed hubs")


def trained(graph, world, **fields):
    return train_in_threads(graph, world, prepare=in_float64, **{**WHOLE, **fields})[0]


@pytest.mark.parametrize("fields", LINEAR, ids=str)
def test_losses_are_those_of_one_worker(graph, fields):
    expected = trained(graph, 1, bins=1, **fields)[0][0]
    workers = trained(graph, 4, bins=3, **fields)
    np.testing.assert_allclose(workers[0][0], expected, rtol=EXACT)
    assert sum(facts["received_sums"] for _, _, facts, _ in workers) > 0


@pytest.mark.parametrize("exchange", ["bins", "layer"])
def test_attention_over_all_relations_is_one_workers(graph, exchange):
    fields = {"model": "hgt", "heads": 2, "attention_dropout": 0.2}
    expected = trained(graph, 1, bins=1, **fields)[0][0]
    np.testing.assert_allclose(trained(graph, 3, bins=2, exchange=exchange, **fields)[0][0], expected, rtol=EXACT)


@pytest.mark.long
def test_rows_that_are_normalised_over_the_graph(graph):
    fields = {**WHOLE, "model": "rgcn", "norm": "batch"}
    (expected, *_), *_ = train_in_threads(graph, 1, bins=1, **fields)[0]
    (losses, _, facts, _), *_ = train_in_threads(graph, 3, bins=2, **fields)[0]
    np.testing.assert_allclose(losses, expected, rtol=ROUNDING)
    assert facts["received_sums"]


@pytest.mark.long
@pytest.mark.parametrize("how", [{"exchange": "layer"}, {"pipeline": "inter", "keep": "disk"}, {"idle": (1,)}], ids=str)
def test_when_sums_are_sent_changes_no_loss(graph, how):
    expected = trained(graph, 1, bins=1, model="rgcn")[0][0]
    np.testing.assert_allclose(trained(graph, 3, bins=4, model="rgcn", **how)[0][0], expected, rtol=EXACT)


def test_one_type_with_several_relations(graph):
    rng = np.random.default_rng(1)
    kinds = {("paper", name, "paper"): relation(rng, "paper", "paper", 4, 40) for name in ("cites", "extends")}
    several = Graph({"paper": graph.nodes["paper"]}, kinds, "relations")
    expected = trained(several, 1, bins=1, model="rgcn")[0][0]
    workers = trained(several, 2, bins=2, model="rgcn")
    np.testing.assert_allclose(workers[0][0], expected, rtol=EXACT)
    assert all(facts["received_sums"] for _, _, facts, _ in workers)


def test_bits_do_not_depend_on_when_sums_come(graph):
    first, *others = (train_in_threads(graph, 2, **WHOLE, model="rgcn", bins=2)[0] for _ in range(2))
    for each in others:
        assert each[0][0] == first[0][0]
        assert_same_state(dict(each[0][1]), dict(first[0][1]))


def test_fewer_rows_travel_and_a_plan_counts_them(graph, monkeypatch):
    """Received are one row for each of the rows and sums, forward and backward: as many as counting finds."""
    found = {}
    for sums in (False, True):
        monkeypatch.setitem(EXCHANGES, "bins", replace(EXCHANGES["bins"], sums=sums))
        workers = train_in_threads(graph, 3, **{**WHOLE, "epochs": 1}, model="rgcn", bins=3)[0]
        rows = sum(facts["halo_rows"] for _, _, facts, _ in workers)
        found[sums] = sum(received for *_, received in workers)
        assert found[sums] == 2 * 4 * WHOLE["hidden"] * rows
        assert rows == counted_rows(graph, 3, sums)
    assert found[True] < 0.9 * found[False]


def counted_rows(graph, world, sums):
    """Rows and sums that a plan finds between workers which own equal ranges of each type's vertices."""
    whole = whole_of(graph)
    owner = np.concatenate([np.arange(nodes.count) * world // nodes.count for nodes in graph.nodes.values()])
    last = levels_reached(whole.indptr, whole.indices, graph.split("train", "paper") + whole.offsets["paper"], 3)
    counts = count_bins(
        whole.indptr,
        whole.indices,
        owner.astype(np.int32),
        world,
        last,
        3,
        sums=sums,
        relations=merged_relations(whole),
    )
    return sum(int(layer.sent.sum()) for layer in counts.layers)


def test_entries_of_merged_lists_have_their_relations(graph):
    whole = whole_of(graph)
    relations = merged_relations(whole)
    for number, (kind, edges) in enumerate(graph.edges.items()):
        to = np.repeat(np.arange(whole.count), np.diff(whole.indptr))
        here = relations == number
        pairs = np.stack([whole.indices[here] - whole.offsets[kind[0]], to[here] - whole.offsets[kind[2]]])
        np.testing.assert_array_equal(pairs, edges.edge_index())


def test_replicas_are_in_no_sum(graph, monkeypatch):
    from penstock.train.whole.shared import execution

    def some(lengths, missing):
        return (lengths < 30) & (np.arange(len(lengths)) % 4 == 0)

    monkeypatch.setattr(execution, "cheaper_than", lambda *_: some)
    expected = trained(graph, 1, bins=1, model="rgcn")[0][0]
    workers = trained(graph, 3, bins=3, model="rgcn", exchange="replicate")
    np.testing.assert_allclose(workers[0][0], expected, rtol=EXACT)
    assert all(facts["replicated_rows"] and facts["received_sums"] for _, _, facts, _ in workers)


@pytest.mark.parametrize("fields", [{"model": "gat", "heads": 2}, {"model": "rgcn", "aggregate": "max"}], ids=str)
def test_layers_that_must_see_every_row_read_no_sum(graph, fields):
    workers = train_in_threads(graph, 2, **{**WHOLE, **fields, "epochs": 1})[0]
    assert all(facts["received_sums"] == 0 for _, _, facts, _ in workers)
