"""Before it trains, a run says what it chose by itself, and what of the data will mislead."""

import numpy as np
import pytest

from penstock import Graph, NodeSet
from penstock.api import train
from penstock.progress import Progress
from penstock.train.assembly import data_notes
from penstock.train.dataset.prepared_graph import choose_task
from penstock.train.job import make_job
from refusals import refused
from training_graphs import SMALL, community_graph, typed_graph


def notes_on(graph, **fields):
    job = make_job(fields)
    return list(data_notes(graph, job, choose_task(graph, job)))


def changed(splits=None, y=None):
    graph = community_graph()
    nodes = graph.nodes["node"]
    fields = {**nodes.fields, "y": nodes.fields["y"] if y is None else y(nodes.fields["y"])}
    return Graph({"node": NodeSet(nodes.count, fields, nodes.splits if splits is None else splits(nodes))}, graph.edges)


def test_a_sound_graph_needs_no_word():
    assert notes_on(community_graph()) == [] == notes_on(typed_graph())


def test_splits_that_share_vertices_are_said():
    leaking = changed(lambda nodes: {**nodes.splits, "test": nodes.splits["train"]})
    (note,) = notes_on(leaking)
    assert "are in both train and test: scores will be too good" in note


def test_a_run_repeats_what_inspect_warns_of(tmp_path):
    class Heard(Progress):
        def note(self, sentence):
            self.notes.append(sentence)

    leaking, heard = changed(lambda nodes: {**nodes.splits, "test": nodes.splits["train"]}), Heard()
    train(leaking, run=str(tmp_path / "run"), progress=heard, **{**SMALL, "epochs": 1})
    assert [note for note in heard.notes if "in both train and test" in note]


def test_labels_with_a_gap_are_said():
    (note,) = notes_on(changed(y=lambda y: np.where(y == 3, 7, y)))
    assert "go up to 7, and 4 classes below that have no vertex (3, 4, 5, 6)" in note


def test_classes_that_only_the_test_has_are_said():
    def without(nodes):
        train = nodes.splits["train"]
        return {**nodes.splits, "train": train[nodes.fields["y"][train] != 2]}

    assert any(
        "in test that never occur in train cannot be learned (1: 2)" in note for note in notes_on(changed(without))
    )


def test_a_split_that_is_drawn_is_said():
    bare = changed(lambda nodes: {})
    (note,) = notes_on(bare, split_number=3)
    assert "60% / 20% / 20%" in note and "split_number 3" in note
    assert notes_on(bare, split="ratio") == []


def test_links_in_place_of_labels_are_said():
    graph = community_graph()
    nodes = graph.nodes["node"]
    bare = Graph({"node": NodeSet(nodes.count, {"x": nodes.fields["x"]})}, graph.edges)
    (note,) = notes_on(bare)
    assert "no labels 'y', so links are learned (task: link-prediction)" in note
    assert notes_on(bare, task="link-prediction") == []


def test_triples_of_one_relation_are_said():
    (note,) = notes_on(community_graph(), task="knowledge-graph-completion")
    assert "one relation, 'to'" in note and "link-prediction" in note


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, []),
        ({"fanouts": [5, 5]}, ["of fanouts only their number counts (2 layers)"]),
        ({"batch_size": 32}, ["batch_size is not used"]),
        ({"batch_size": 32, "fanouts": [5, 5], "layers": 3}, ["fanouts and batch_size are not used"]),
    ],
)
def test_what_the_whole_graph_does_not_use_is_said(fields, wanted):
    found = notes_on(community_graph(), sampler="whole", **fields)
    assert len(found) == len(wanted) and all(part in note for part, note in zip(wanted, found, strict=True))


def test_the_number_of_a_split_that_is_not_there_is_refused(tmp_path):
    graph = community_graph()
    for given in (graph, graph.save(tmp_path / "graph")):
        with refused("value-out-of-range split_number 12"):
            train(given, split_number=12, run=str(tmp_path / "run"), **SMALL)
    drawn = train(graph, split_number=12, split="ratio", run=str(tmp_path / "run"), **{**SMALL, "epochs": 1})
    assert drawn.state == "finished"
