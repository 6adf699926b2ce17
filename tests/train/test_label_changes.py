"""Labels in the largest component alone, and validation vertices that are trained on."""

import numpy as np
import pytest

from penstock import EdgeSet, Graph, NodeSet
from penstock.api import train
from penstock.train.data import prepared
from penstock.train.job_options import DataOptions
from penstock.train.labels import check_uncut, largest_component
from refusals import refused
from training_graphs import SMALL, community_graph, lists_of, typed_graph

KIND = ("node", "to", "node")


def two_components():
    """Vertices 0 to 3 in a path whose edges have one direction, 4 and 5 linked, 6 alone."""
    nodes = NodeSet(7, {"y": np.array([0, 1, 0, 1, 0, 1, 0])}, {"train": np.array([0, 4]), "test": np.array([1, 6])})
    return Graph({"node": nodes}, {KIND: lists_of(np.array([0, 2, 2, 4]), np.array([1, 1, 3, 5]), 7, 7)}, "two")


def test_directions_do_not_matter_for_components():
    assert largest_component(two_components()).tolist() == [True] * 4 + [False] * 3


def test_labels_and_splits_outside_the_component_are_gone():
    graph = two_components()
    found = prepared(graph, DataOptions(largest_component=True))
    assert found.y.tolist() == [0, 1, 0, 1, -1, -1, -1]
    assert {name: rows.tolist() for name, rows in found.nodes["node"].splits.items()} == {"train": [0], "test": [1]}
    assert found.edges == graph.edges and graph.y.min() == 0


def test_what_has_no_component_is_refused():
    with refused("unsupported-combination largest_component"):
        prepared(typed_graph(), DataOptions(largest_component=True))
    graph = two_components()
    graph.nodes["node"].fields["y"] = np.zeros((7, 3), np.int64)
    with refused("unsupported-combination largest_component"):
        prepared(graph, DataOptions(largest_component=True))


def test_validation_vertices_are_trained_on(tmp_path):
    graph = community_graph()
    before = graph.nodes["node"].splits
    found = prepared(graph, DataOptions(train_on_validation=True)).nodes["node"].splits
    assert set(found) == {"train", "test"}
    assert found["train"].tolist() == sorted([*before["train"].tolist(), *before["val"].tolist()])
    run = train(graph, run=str(tmp_path / "run"), train_on_validation=True, **SMALL)
    assert run.test and not run.val


def test_a_graph_without_splits_is_refused():
    with refused("split-missing train_on_validation"):
        prepared(two_components(), DataOptions(train_on_validation=True))


@pytest.mark.parametrize("field", ["largest_component", "train_on_validation"])
def test_a_graph_that_was_cut_before_is_refused(field):
    check_uncut(DataOptions(), "parts")
    with refused(f"unsupported-combination {field} parts"):
        check_uncut(DataOptions(**{field: True}), "parts")


def test_nothing_asked_for_changes_nothing():
    graph = Graph({"node": NodeSet(2)}, {KIND: EdgeSet(np.array([0, 0, 0]), np.empty(0, np.int32))}, "two")
    assert prepared(graph, DataOptions()) is graph
