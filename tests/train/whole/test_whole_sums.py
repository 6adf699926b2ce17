"""Sums of rows that workers send instead of rows: fewer bytes, and the losses of one worker."""

from dataclasses import replace

import numpy as np
import pytest
from test_whole_exact import in_float64

from penstock import Graph
from penstock.train.whole.shared.steps import EXCHANGES
from training_graphs import assert_same_state, community_graph, lists_of
from whole_threads import train_in_threads

EXACT = 1e-9
WHOLE = {"sampler": "whole", "layers": 3, "hidden": 8, "threads": 1, "dropout": 0.2}
LINEAR = [
    {"model": "gcn"},
    {"model": "sage"},
    {"model": "sage", "aggregate": "sum", "norm": "layer", "residual": True},
    {"model": "gin", "jump": "cat"},
    {"model": "gcn", "weight": "w"},
    {"model": "sage", "weight": "w"},
]
OFTEN = [LINEAR[2], LINEAR[4]]


@pytest.fixture(scope="module")
def graph():
    """Few vertices of one half read many of the other, and the other way round."""
    known, rng = community_graph(200, degree=2), np.random.default_rng(0)
    indptr, indices = known.indptr, known.indices
    src, dst = [np.asarray(indices)], [np.repeat(np.arange(200), np.diff(indptr))]
    for hub in (3, 60, 110, 170):
        others = rng.choice(200, 40, replace=False)
        src += [others, np.full(40, hub)]
        dst += [np.full(40, hub), others]
    pairs = np.unique(np.stack([np.concatenate(src), np.concatenate(dst)]), axis=1)
    edges = lists_of(*pairs, 200, 200, w=rng.uniform(0.5, 2, pairs.shape[1]).astype(np.float32))
    return Graph(known.nodes, {("node", "to", "node"): edges}, "hubs")


def trained(graph, world, **fields):
    return train_in_threads(graph, world, prepare=in_float64, **{**WHOLE, **fields})[0]


@pytest.mark.parametrize(
    "fields",
    [pytest.param(each, marks=() if each in OFTEN else pytest.mark.long, id=str(each)) for each in LINEAR],
)
def test_losses_are_those_of_one_worker(graph, fields):
    expected = trained(graph, 1, bins=1, **fields)[0][0]
    for world, bins in ((2, 1), (2, 5), (4, 3)):
        workers = trained(graph, world, bins=bins, **fields)
        np.testing.assert_allclose(workers[0][0], expected, rtol=EXACT)
        assert sum(facts["received_sums"] for _, _, facts, _ in workers) > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("how", [{"exchange": "layer"}, {"pipeline": "inter"}, {"pipeline": "intra"}], ids=str)
@pytest.mark.parametrize("keep", ["auto", "disk"])
def test_when_sums_are_sent_changes_no_loss(graph, how, keep):
    expected = trained(graph, 1, bins=1, model="gcn")[0][0]
    workers = trained(graph, 3, bins=4, model="gcn", keep=keep, **how)
    np.testing.assert_allclose(workers[0][0], expected, rtol=EXACT)


def test_bits_do_not_depend_on_when_sums_come(graph):
    first, *others = (train_in_threads(graph, 4, **WHOLE, model="gcn", bins=5)[0] for _ in range(3))
    for each in others:
        assert each[0][0] == first[0][0]
        assert_same_state(dict(each[0][1]), dict(first[0][1]))


def test_fewer_rows_travel_in_both_directions(graph, monkeypatch):
    """What is received, rows and gradients, is one row for each of the group's rows and sums."""
    found = {}
    for sums in (False, True):
        monkeypatch.setitem(EXCHANGES, "bins", replace(EXCHANGES["bins"], sums=sums))
        workers = train_in_threads(graph, 2, epochs=1, **WHOLE, bins=3)[0]
        found[sums] = sum(received for *_, received in workers)
        assert found[sums] == 2 * 4 * WHOLE["hidden"] * sum(facts["halo_rows"] for _, _, facts, _ in workers)
    assert found[True] < 0.9 * found[False]


def test_replicas_are_in_no_sum(graph, monkeypatch):
    from penstock.train.whole.shared import execution

    def some(lengths, missing):
        return (lengths < 10) & (np.arange(len(lengths)) % 4 == 0)

    monkeypatch.setattr(execution, "cheaper_than", lambda *_: some)
    expected = trained(graph, 1, bins=1, model="gcn")[0][0]
    workers = trained(graph, 3, bins=3, model="gcn", exchange="replicate")
    np.testing.assert_allclose(workers[0][0], expected, rtol=EXACT)
    assert all(facts["replicated_rows"] and facts["received_sums"] for _, _, facts, _ in workers)


@pytest.mark.parametrize("fields", [{"model": "gat", "heads": 2}, {"model": "sage", "aggregate": "max"}], ids=str)
def test_layers_that_must_see_every_row_read_no_sum(graph, fields):
    workers = train_in_threads(graph, 2, epochs=1, **{**WHOLE, **fields})[0]
    assert all(facts["received_sums"] == 0 for _, _, facts, _ in workers)
