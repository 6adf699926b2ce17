"""A trained model on other graphs than its own: labels in other codes, without labels; splits as they come."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock import Graph, NodeSet
from penstock.sampling.links import find_reverse
from penstock.train.build import make_session
from penstock.train.dataset.labels import labelled_vertices
from penstock.train.job import make_job
from penstock.train.tasks import edges as edges_module
from penstock.train.tasks import ends as ends_module
from penstock.train.use import embed_run, evaluate_run, predict_run
from refusals import refused
from training_graphs import community_graph, facts_of, trained, typed_graph

WORDS = ["cat", "dog", "elk", "fox"]


def with_labels(graph, y, words=None, splits=None):
    """The same graph with other labels, or none."""
    nodes = graph.nodes["node"]
    fields = {"x": nodes.fields["x"]} if y is None else {"x": nodes.fields["x"], "y": np.asarray(y)}
    categories = {} if words is None else {"y": words}
    splits = nodes.splits if splits is None else splits
    return Graph({"node": NodeSet(nodes.count, fields, splits, categories=categories)}, graph.edges, graph.name)


def predictions(run, graph, folder, split=None):
    out = folder / "predictions.parquet"
    predict_run(run.path, out, split, force=True, graph=graph)
    return pq.read_table(out)


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """A run on labels that are words."""
    graph = community_graph(categories={"y": WORDS})
    return graph, trained(graph, tmp_path_factory.mktemp("worded") / "run", epochs=4, lr=0.02)


def test_the_run_keeps_what_it_learned(worded):
    _, run = worded
    expected = {"task": "node-classification", "type": "node", "field": "y", "classes": 4, "multi_label": False}
    assert facts_of(run.path)["labels"] == {**expected, "words": WORDS}


def test_words_in_another_order_mean_the_same(worded, tmp_path):
    graph, run = worded
    order = np.array([2, 0, 3, 1])
    turned = with_labels(graph, np.argsort(order)[graph.y], [WORDS[k] for k in order])
    before, after = predictions(run, graph, tmp_path), predictions(run, turned, tmp_path)
    assert before["prediction"].to_pylist() == after["prediction"].to_pylist()
    assert evaluate_run(run.path, ["val", "test"], turned) == evaluate_run(run.path, ["val", "test"], graph)


def test_words_that_the_run_does_not_know(worded, tmp_path):
    graph, run = worded
    strange = with_labels(graph, graph.y, ["cat", "gnu", "elk", "fox"])
    assert predictions(run, strange, tmp_path)["prediction"] == predictions(run, graph, tmp_path)["prediction"]
    with refused("missing-data test y"):
        evaluate_run(run.path, ["test"], strange)
    with refused("mismatched-inputs"):
        evaluate_run(run.path, ["test"], with_labels(graph, graph.y))


def test_graphs_without_labels_or_with_fewer_classes(worded, tmp_path):
    graph, run = worded
    expected = predictions(run, graph, tmp_path)
    for other in (with_labels(graph, None), with_labels(graph, np.full(200, -1), WORDS)):
        assert predictions(run, other, tmp_path).equals(expected)
        assert embed_run(run.path, tmp_path / "e.parquet", force=True, graph=other) == 200
    assert predictions(run, with_labels(graph, None), tmp_path, "test").equals(expected.take(graph.split("test")))
    with refused("mismatched-inputs y"):
        evaluate_run(run.path, ["test"], with_labels(graph, None))
    fewer = with_labels(graph, graph.y % 2, WORDS)
    assert evaluate_run(run.path, ["test"], fewer)["test"]["accuracy"] < 1
    assert predictions(run, fewer, tmp_path).equals(expected)


def test_numbers_beyond_what_was_learned(tmp_path):
    graph = community_graph()
    run = trained(graph, tmp_path / "run", epochs=1, sampler="cluster", clusters=4, layers=2)
    more = with_labels(graph, np.where(np.arange(200) < 3, 9, graph.y))
    with refused("mismatched-inputs 9 4"):
        evaluate_run(run.path, ["test"], more)
    assert predictions(run, more, tmp_path).num_rows == 200
    facts = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**facts, "labels": {"classes": "many"}}))
    with refused("damaged-file run.json"):
        evaluate_run(run.path, ["test"], graph)


def edge_graph(known=1.0, words=None):
    """Every edge says whether its ends are alike; of some it is not known."""
    graph = community_graph()
    y, edges = graph.nodes["node"].fields.pop("y"), graph.edges["node", "to", "node"]
    ends = edges.edge_index()
    alike = (y[ends[0]] == y[ends[1]]).astype(np.int64)
    hidden = np.random.default_rng(0).random(edges.count) >= known
    edges.fields["y"] = np.where(hidden, -1, alike)
    if words:
        edges.categories["y"] = words
    return graph


def test_edges_with_labels_are_split_each_once_and_with_their_reverses():
    graph = edge_graph(known=0.7)
    edges = graph.edges["node", "to", "node"]
    assert find_reverse(graph, ("node", "to", "node")) == "same"
    task = make_session(make_job({"fanouts": [2], "hidden": 8}), graph).task
    splits = {name: task.items_of(name) for name in ("train", "val", "test")}
    worker_group = np.concatenate(list(splits.values()))
    np.testing.assert_array_equal(np.sort(worker_group), np.flatnonzero(edges.fields["y"] >= 0))
    assert min(len(some) for some in splits.values()) > 100
    ends = edges.edge_index()
    pairs = {name: {frozenset(pair) for pair in ends[:, some].T.tolist()} for name, some in splits.items()}
    assert not (pairs["train"] & pairs["val"] or pairs["train"] & pairs["test"] or pairs["val"] & pairs["test"])


def test_edges_are_scored_some_at_a_time_by_one_inference(tmp_path, monkeypatch):
    graph = edge_graph(words=["foe", "friend"])
    run = trained(graph, tmp_path / "run", epochs=2, batch_size=512)
    calls, sizes = [], []
    everything, blocks = ends_module.all_rows, edges_module.pair_blocks

    def recorded(count, width):
        for some in blocks(count, width):
            sizes.append(some.stop - some.start)
            yield some

    monkeypatch.setattr(ends_module, "_BLOCK_BYTES", 100 * 4 * 8 * 16)
    monkeypatch.setattr(edges_module, "pair_blocks", recorded)
    monkeypatch.setattr(ends_module, "all_rows", lambda *a: (calls.append(1), everything(*a))[1])
    found = evaluate_run(run.path, ["val", "test"], graph)
    assert found["test"] == pytest.approx(run.test)
    assert len(calls) == 1
    assert max(sizes) == 100
    sizes.clear()
    table = predictions(run, graph, tmp_path)
    edges = graph.edges["node", "to", "node"]
    assert table.num_rows == edges.count == sum(sizes)
    del edges.fields["y"], edges.categories["y"]
    with refused("mismatched-inputs y"):
        evaluate_run(run.path, ["test"], graph)
    assert predictions(run, graph, tmp_path).equals(table)


def test_links_are_scored_some_at_a_time(tmp_path, monkeypatch):
    graph = community_graph(count=80)
    job = {"task": "link-prediction", "batch_size": 128, "metric": "roc-auc", "epochs": 1}
    for against in (0, 30):
        run = trained(graph, tmp_path / f"run-{against}", **job, rank_against=against)
        scores = predictions(run, graph, tmp_path)["score"].to_pylist()
        with monkeypatch.context() as patch:
            patch.setattr(ends_module, "_BLOCK_BYTES", 7 * 4 * 8 * 16)
            assert evaluate_run(run.path, ["test"], graph)["test"] == pytest.approx(run.test)
            assert predictions(run, graph, tmp_path)["score"].to_pylist() == pytest.approx(scores)
            assert max(some.stop - some.start for some in ends_module.pair_blocks(100, 16)) == 7


def test_splits_in_any_order_give_every_vertex_its_own_answer(worded, tmp_path):
    graph, run = worded
    shuffled = {name: np.random.default_rng(3).permutation(rows) for name, rows in graph.nodes["node"].splits.items()}
    mixed = with_labels(graph, graph.y, WORDS, shuffled)
    found = predictions(run, mixed, tmp_path, "test")
    assert found.equals(predictions(run, graph, tmp_path, "test"))
    assert evaluate_run(run.path, ["test"], mixed) == evaluate_run(run.path, ["test"], graph)
    again = trained(mixed, tmp_path / "again", epochs=4, lr=0.02)
    assert again.test == run.test


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [([5, 3, 5], "duplicate 5"), ([3, 500, 1], "id-out-of-range 0..199"), ([True, False], "wrong-type bool")],
)
def test_splits_that_cannot_be(rows, sentence):
    graph = community_graph()
    graph.nodes["node"].splits["val"] = np.array(rows)
    with refused(sentence):
        labelled_vertices(graph, make_job({}), "node-classification")


def test_splits_without_vertices(tmp_path):
    graph = community_graph()
    graph.nodes["node"].splits["test"] = np.empty(0, np.int64)
    run = trained(graph, tmp_path / "run", epochs=1)
    with refused("missing-data test"):
        predict_run(run.path, tmp_path / "p.parquet", "test", graph=graph)
    with refused("option-missing"):
        evaluate_run(run.path, [], graph)


@pytest.mark.parametrize("fields", [{"jump": "cat"}, {"jump": "max"}, {}])
def test_embeddings_of_types_without_labels(fields, tmp_path):
    graph = typed_graph()
    run = trained(graph, tmp_path / "run", model="rgcn", epochs=1, embedding=8, **fields)
    for name, count in (("author", 50), ("paper", 150)):
        out = tmp_path / f"{name}.parquet"
        assert embed_run(run.path, out, name, graph=graph) == count
        assert len(pq.read_table(out)["embedding"][0]) == 16
