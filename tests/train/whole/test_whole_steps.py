"""Steps on the whole graph in bins: the losses of whole neighbourhoods computed at once."""

import numpy as np
import pytest

from training_graphs import (
    assert_same_state,
    community_graph,
    facts_of,
    lines_of,
    newest_checkpoint,
    trained,
    typed_graph,
)

ROUNDING = 2e-5
WHOLE = {"sampler": "whole", "layers": 2, "epochs": 3, "evaluate_every": 0, "hidden": 16}


def losses(run):
    return [line["loss"] for line in lines_of(run) if line["kind"] == "epoch"]


@pytest.fixture(scope="module")
def expected_losses(tmp_path_factory):
    """Of one batch of all training vertices, with whole neighbourhoods, computed at once; by the fields of a job."""
    known = {}

    def losses_with(make_graph, fields):
        key = make_graph.__name__, str(fields)
        if key not in known:
            layers = fields.get("layers", 2)
            changed = {"sampler": "neighbour", "fanouts": [-1] * layers, "batch_size": 1 << 20, "layers": layers}
            run = tmp_path_factory.mktemp("reference") / "run"
            known[key] = losses(trained(make_graph(), run, **{**WHOLE, **fields, **changed}).path)
        return known[key]

    return losses_with


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "fields",
    [
        {"model": "sage"},
        {"model": "gcn", "layers": 3},
        {"model": "gat", "heads": 2, "attention_dropout": 0.2},
        {"model": "gin", "input_dropout": 0.3},
        {"model": "sage", "aggregate": "max", "residual": True},
        {"model": "sage", "jump": "cat"},
        {"model": "gcn", "norm": "layer", "jump": "max", "activation": "elu"},
        {"model": "sage", "norm": "batch"},
        {"model": "mlp"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "how",
    [
        {"bins": 3},
        {"bins": 17, "scope": "all"},
        *(pytest.param(how, marks=pytest.mark.long) for how in ({"bins": 1}, {"bins": 1, "scope": "all"})),
    ],
    ids=str,
)
def test_losses_are_those_of_one_batch(tmp_path, expected_losses, fields, how):
    if fields.get("norm") == "batch" and how.get("scope") == "all":
        pytest.skip("statistics are then of all vertices")
    found = losses(trained(community_graph(), tmp_path / "whole", **{**WHOLE, **fields, **how}).path)
    np.testing.assert_allclose(found, expected_losses(community_graph, fields), rtol=ROUNDING)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "fields", [{"model": "rgcn"}, {"model": "gat", "heads": 2}, {"model": "sage", "norm": "batch"}], ids=str
)
@pytest.mark.parametrize(
    "how", [{"bins": 4}, {"bins": 3, "scope": "all"}, pytest.param({"bins": 1}, marks=pytest.mark.long)], ids=str
)
def test_several_types_and_learned_rows(tmp_path, expected_losses, fields, how):
    fields = {**fields, "embedding": 8, "clip": 0.5}
    if fields.get("norm") == "batch" and how.get("scope") == "all":
        pytest.skip("statistics are then of all vertices")
    found = losses(trained(typed_graph(), tmp_path / "whole", **{**WHOLE, **fields, **how}).path)
    np.testing.assert_allclose(found, expected_losses(typed_graph, fields), rtol=ROUNDING)


@pytest.fixture(scope="module")
def four_bins(tmp_path_factory):
    """What is learned in four bins."""
    fields = {**WHOLE, "layers": 3, "bins": 4}
    run = trained(community_graph(), tmp_path_factory.mktemp("bins") / "run", **fields)
    return newest_checkpoint(run.path)["learned"]


@pytest.mark.parametrize("keep", ["device", "host", "disk", "recompute"])
def test_where_rows_wait_changes_no_bit(tmp_path, four_bins, keep):
    other = trained(community_graph(), tmp_path / "other", **{**WHOLE, "layers": 3, "bins": 4, "keep": keep})
    assert_same_state(four_bins, newest_checkpoint(other.path)["learned"])
    assert facts_of(other.path)["result"]["keep"] == {"device": "host"}.get(keep, keep)


def test_several_steps_an_epoch(tmp_path):
    graph = community_graph()
    run = trained(graph, tmp_path / "run", **{**WHOLE, "steps_per_epoch": 3, "bins": 2})
    assert newest_checkpoint(run.path)["standing"]["step"] == 9


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_features_that_are_mostly_zeros(tmp_path, expected_losses, model):
    """The first product leaves the zeros out, and comes to the same."""
    found = losses(trained(graph_of_zeros(), tmp_path / "whole", **{**WHOLE, "model": model}).path)
    np.testing.assert_allclose(found, expected_losses(graph_of_zeros, {"model": model}), rtol=ROUNDING)


def graph_of_zeros():
    rng = np.random.default_rng(0)
    graph = community_graph()
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = ((rng.random((nodes.count, 400)) < 0.02) * rng.random((nodes.count, 400))).astype(np.float32)
    return graph


def test_bins_that_are_asked_for_save_memory(tmp_path):
    """One bin keeps what the backward pass needs; several compute it again, each when its turn comes."""
    graph = community_graph()
    for bins, again in ((1, False), (4, True)):
        run = trained(graph, tmp_path / str(bins), **{**WHOLE, "bins": bins})
        result = facts_of(run.path)["result"]
        assert (result["recomputed"], result["bins"]) == (again, [bins, bins])
