"""What the host does of the first layer changes no result beyond rounding; what it does by itself changes no bit."""

import numpy as np
import pytest

from penstock.graph.folder import Graph
from penstock.train.first_layer.aggregated import AggregatedReading
from penstock.train.first_layer.ways import WAYS
from refusals import refused
from training_graphs import (
    assert_same_state,
    community_graph,
    lines_of,
    newest_checkpoint,
    trained,
    typed_graph,
)

FIELDS = {"epochs": 2, "batch_size": 32, "fanouts": [4, 3], "hidden": 8, "threads": 2}
MODELS = [{"model": "sage"}, {"model": "sage", "aggregate": "sum"}, {"model": "gcn"}, {"model": "gin"}]


def narrow(graph: Graph) -> Graph:
    """The graph with features of float16."""
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = nodes.x.astype(np.float16)
    return graph


def losses(run):
    return [line["loss"] for line in lines_of(run.path) if line["kind"] == "epoch"]


@pytest.mark.parametrize(
    "half, model",
    [
        pytest.param(half, model, marks=pytest.mark.long if half and model != MODELS[0] else ())
        for half in (False, True)
        for model in MODELS
    ],
    ids=str,
)
def test_every_way_learns_the_same(model, half, tmp_path):
    graph = narrow(community_graph()) if half else community_graph()
    runs = {way: trained(graph, tmp_path / way, **FIELDS, **model, first_layer=way) for way in WAYS}
    plain = runs["gather"]
    for way in ("auto", "device"):
        assert_same_state(newest_checkpoint(plain.path)["learned"], newest_checkpoint(runs[way].path)["learned"])
    for run in runs.values():
        np.testing.assert_allclose(losses(run), losses(plain), rtol=2e-4)


@pytest.mark.parametrize("order", ["aggregate", "transform"])
def test_batches_are_aggregated_ahead_only_where_the_layer_would(order, monkeypatch, tmp_path):
    filled, fill = [], AggregatedReading.fill
    monkeypatch.setattr(AggregatedReading, "fill", lambda self, arrays: filled.append(fill(self, arrays)))
    trained(community_graph(), tmp_path / "run", **FIELDS, order=order)
    assert bool(filled) == (order == "aggregate")


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "gat"},
        {"aggregate": "max"},
        {"input_dropout": 0.1},
        {"residual": True},
        {"scale_features": "rows"},
        {"sampler": "whole"},
    ],
    ids=str,
)
def test_what_cannot_be_aggregated_is_refused_and_left_alone_by_auto(fields, tmp_path):
    with refused("unsupported-combination first_layer aggregate auto"):
        trained(community_graph(), tmp_path / "run", **{**FIELDS, **fields}, first_layer="aggregate")
    assert not (tmp_path / "run").exists()
    assert trained(community_graph(), tmp_path / "auto", **{**FIELDS, **fields}).test


def test_graphs_of_several_types_and_learned_rows(tmp_path):
    with refused("unsupported-combination first_layer several types"):
        trained(typed_graph(), tmp_path / "run", model="rgcn", epochs=1, first_layer="aggregate")
    with refused("unsupported-combination first_layer embeddings"):
        trained(community_graph(features=False), tmp_path / "run", epochs=1, first_layer="transform")
