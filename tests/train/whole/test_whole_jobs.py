"""What jobs on the whole graph take and refuse: labels, edge weights, numbers of epochs, early stopping."""

import numpy as np
import pytest

from penstock import Graph, NodeSet
from penstock.train.whole.steps import WHOLE as SUPPORT
from refusals import refused
from training_graphs import community_graph, facts_of, lines_of, lists_of, trained, typed_graph

WHOLE = {"sampler": "whole", "layers": 2, "epochs": 3, "evaluate_every": 0, "hidden": 16}


def losses(run):
    return [line["loss"] for line in lines_of(run.path) if line["kind"] == "epoch"]


def reference(graph, run, **fields):
    """One batch of all training vertices, with whole neighbourhoods, computed at once."""
    changed = {"sampler": "neighbour", "fanouts": [-1, -1], "batch_size": 1 << 20}
    return trained(graph, run, **{**WHOLE, **fields, **changed})


def with_labels(kind):
    """The communities with several labels each, or with a number."""
    graph = community_graph()
    nodes, rng = graph.nodes["node"], np.random.default_rng(2)
    y = nodes.fields["y"]
    several = (np.eye(4)[y] + (rng.random((len(y), 4)) < 0.2) > 0).astype(np.float32)
    number = (y + rng.normal(0, 0.1, len(y))).astype(np.float32)
    fields = {"x": nodes.fields["x"], "y": several if kind == "several" else number}
    return Graph({"node": NodeSet(len(y), fields, nodes.splits)}, graph.edges, "labelled")


def weighted_graph():
    graph = community_graph()
    (kind,) = graph.edges
    lists = graph.edges[kind]
    targets = np.repeat(np.arange(200), np.diff(lists.indptr))
    weights = np.random.default_rng(4).random(lists.count).astype(np.float32) + 0.1
    return Graph(graph.nodes, {kind: lists_of(lists.indices, targets, 200, 200, w=weights)}, "weighted")


@pytest.mark.covering(1)
@pytest.mark.parametrize("bins", [1, 5])
@pytest.mark.parametrize("kind", ["several", "number"])
def test_several_labels_and_numbers(tmp_path, kind, bins):
    graph = with_labels(kind)
    expected = reference(graph, tmp_path / "one")
    found = trained(graph, tmp_path / "whole", **WHOLE, bins=bins)
    np.testing.assert_allclose(losses(found), losses(expected), rtol=2e-5)
    assert list(found.test) == list(expected.test)
    assert facts_of(found.path)["task"] == ("node-regression" if kind == "number" else "node-classification")


@pytest.mark.parametrize("model", ["sage", pytest.param("gcn", marks=pytest.mark.long), "gat"])
def test_edge_weights(tmp_path, model):
    graph, fields = weighted_graph(), {"model": model, "weight": "w", "heads": 2}
    expected = losses(reference(graph, tmp_path / "one", **fields))
    plain = losses(reference(graph, tmp_path / "plain", **{**fields, "weight": None}))
    for bins in (1, 4):
        found = losses(trained(graph, tmp_path / f"whole-{bins}", **{**WHOLE, **fields, "bins": bins}))
        np.testing.assert_allclose(found, expected, rtol=2e-5)
    assert not np.allclose(expected, plain, rtol=1e-3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"time": "t", "seed_time": "t"}, "whole time"),
        ({"replace": True}, "whole replace"),
        ({"compute_type": "float16"}, "whole float16"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_a_sentence(tmp_path, fields, words):
    graph = community_graph(fields={"t": np.arange(200)})
    with refused(f"unsupported-combination {words}"):
        trained(graph, tmp_path / "run", **WHOLE, **fields)


def test_refusals_come_from_the_declaration():
    assert "float16" not in SUPPORT.compute_types
    assert SUPPORT.tasks is None and SUPPORT.user_modules and SUPPORT.learned_rows and SUPPORT.several_types


def test_weights_are_refused_where_a_model_takes_none(tmp_path):
    import torch

    with refused("unsupported-combination weight"):
        trained(weighted_graph(), tmp_path / "run", model=torch.nn.Identity(), **WHOLE, weight="w")


def test_epochs_are_as_many_as_make_steps_enough(tmp_path):
    fields = {**WHOLE, "evaluate_every": -1, "hidden": 4}
    run = trained(community_graph(60), tmp_path / "one", **{**fields, "epochs": "auto"})
    assert run.result["epochs"] == 150
    run = trained(community_graph(60), tmp_path / "three", **{**fields, "epochs": "auto", "steps_per_epoch": 3})
    assert run.result["epochs"] == 50


def test_patience(tmp_path):
    fields = {**WHOLE, "epochs": 100, "patience": 3, "evaluate_every": 1, "lr": 0.1}
    run = trained(community_graph(), tmp_path / "run", **fields)
    assert run.state == "stopped-early" and run.result["epochs"] < 100


def test_trying_a_model_reads_few_neighbours(tmp_path):
    """Whole neighbourhoods of the first vertices may be the whole graph."""
    from penstock.pipeline.schedule import Schedule
    from penstock.train.build import make_session
    from penstock.train.job import make_job

    graph = typed_graph()
    session = make_session(make_job({**WHOLE, "graph": "", "device": "cpu", "embedding": 4}), graph)
    planned = next(Schedule(session.task.items, 4, 0).from_position())
    batch = session.execution.sample(planned)
    for block in batch.blocks:
        for part in block.parts:
            assert np.diff(part.indptr).max(initial=0) <= 2
