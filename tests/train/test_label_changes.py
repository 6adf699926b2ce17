"""Labels in the largest component alone, and validation vertices that are trained on."""

import numpy as np
import pytest

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.prepare import component_mask, prepare
from penstock.train.dataset.labels import check_uncut
from penstock.train.dataset.prepared_graph import prepared
from penstock.train.job import job_of
from refusals import refused
from training_graphs import (
    assert_same_state,
    community_graph,
    lists_of,
    newest_checkpoint,
    trained,
    typed_graph,
)

KIND = ("node", "to", "node")


def two_components():
    """Vertices 0 to 3 in a path whose edges have one direction, 4 and 5 linked, 6 alone."""
    nodes = NodeSet(7, {"y": np.array([0, 1, 0, 1, 0, 1, 0])}, {"train": np.array([0, 4]), "test": np.array([1, 6])})
    return Graph({"node": nodes}, {KIND: lists_of(np.array([0, 2, 2, 4]), np.array([1, 1, 3, 5]), 7, 7)}, "two")


def test_directions_do_not_matter_for_components():
    assert component_mask(two_components()).tolist() == [True] * 4 + [False] * 3


def test_labels_and_splits_outside_the_component_are_gone():
    graph = two_components()
    found = prepared(graph, job_of({"largest_component": True}))
    assert found.y.tolist() == [0, 1, 0, 1, -1, -1, -1]
    assert {name: rows.tolist() for name, rows in found.nodes["node"].splits.items()} == {"train": [0], "test": [1]}
    assert found.edges == graph.edges and graph.y.min() == 0


def test_a_prepared_graph_trains_as_a_run_of_an_earlier_release_did(tmp_path):
    """Labels of the largest component, and rows divided by their sums while they were gathered."""
    graph = community_graph()
    graph.nodes["node"].fields["x"] = np.abs(graph.nodes["node"].x)
    graph.nodes["node"].fields["x"][3] = 0
    done = {"scale_features": True, "largest_component": True}
    made = prepare(graph.save(tmp_path / "graph"), tmp_path / "made", **done)
    assert made.origin["prepared"] == list(done) and not (tmp_path / "made" / ".prepare").exists()
    then = trained(graph, tmp_path / "then", scale_features="rows", largest_component=True)
    now = trained(made, tmp_path / "now")
    assert_same_state(newest_checkpoint(then.path), newest_checkpoint(now.path))
    np.testing.assert_allclose(made.x.sum(1), [float(row != 3) for row in range(len(made.x))], atol=1e-6)
    with refused("file-exists made"):
        prepare(graph, tmp_path / "made", scale_features=True)
    with refused("field-missing z"):
        prepare(graph, tmp_path / "other", scale_features=True, features="z")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "made", "now", "then"]


def test_what_has_no_component_is_refused():
    with refused("unsupported-combination largest_component"):
        prepared(typed_graph(), job_of({"largest_component": True}))
    graph = two_components()
    graph.nodes["node"].fields["y"] = np.zeros((7, 3), np.int64)
    with refused("unsupported-combination largest_component"):
        prepared(graph, job_of({"largest_component": True}))


def test_validation_vertices_are_trained_on(tmp_path):
    graph = community_graph()
    before = graph.nodes["node"].splits
    found = prepared(graph, job_of({"train_on_validation": True})).nodes["node"].splits
    assert set(found) == {"train", "test"}
    assert found["train"].tolist() == sorted([*before["train"].tolist(), *before["val"].tolist()])
    made = prepare(graph, tmp_path / "made", train_on_validation=True)
    then, now = trained(graph, tmp_path / "then", train_on_validation=True), trained(made, tmp_path / "now")
    assert_same_state(newest_checkpoint(then.path), newest_checkpoint(now.path))
    assert now.test and not now.val


def test_a_graph_without_splits_is_refused(tmp_path):
    with refused("split-missing train_on_validation"):
        prepared(two_components(), job_of({"train_on_validation": True}))
    with refused("split-missing train_on_validation"):
        prepare(two_components(), tmp_path / "made", train_on_validation=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["largest_component", "train_on_validation"])
def test_a_graph_that_was_cut_before_is_refused(field):
    check_uncut(job_of({}), "parts")
    with refused(f"unsupported-combination {field} parts"):
        check_uncut(job_of({field: True}), "parts")


def test_nothing_asked_for_changes_nothing():
    graph = Graph({"node": NodeSet(2)}, {KIND: EdgeSet(np.array([0, 0, 0]), np.empty(0, np.int32))}, "two")
    assert prepared(graph, job_of({})) is graph
