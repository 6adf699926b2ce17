"""Every task learns something on a small graph, and what is written out agrees with what was measured."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock import Graph, NodeSet, StringIds
from penstock.api import Run
from penstock.pipeline.schedule import Planned
from penstock.sampling import BatchKey
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.use import embed_run, evaluate_run, predict_run
from refusals import refused
from training_graphs import SMALL, community_graph, lists_of, trained, typed_graph

LONG = {"epochs": 12, "lr": 0.02, "fanouts": [6, 6]}


def table(run, graph, folder, split=None):
    """The predictions of a run."""
    out = folder / "predictions.parquet"
    rows = predict_run(run.path, out, split, force=True, graph=graph)
    found = pq.read_table(out)
    assert found.num_rows == rows
    return found


def test_classes_and_words(tmp_path):
    words, ids = ["cat", "dog", "elk", "fox"], StringIds.of([f"ä-{k * 3}" for k in range(200)])
    graph = community_graph(ids=ids, categories={"y": words})
    run = trained(graph, tmp_path / "run", **LONG)
    assert run.test["accuracy"] > 0.8
    assert evaluate_run(run.path, ["train", "val", "test"], graph)["test"] == run.test
    found = table(run, graph, tmp_path)
    assert found.column_names == ["id", "prediction", "probability"]
    assert found["id"].to_pylist() == [f"ä-{k * 3}" for k in range(200)]
    y = np.array(words)[graph.nodes["node"].y]
    right = np.array(found["prediction"].to_pylist()) == y
    test = graph.nodes["node"].splits["test"]
    assert right[test].mean() == pytest.approx(run.test["accuracy"], abs=1e-12)
    assert all(0.25 <= p <= 1 for p in found["probability"].to_pylist())
    only = table(run, graph, tmp_path, "test")
    assert only["id"].to_pylist() == [f"ä-{k * 3}" for k in test]
    assert only["prediction"].to_pylist() == found["prediction"].take(test).to_pylist()
    with refused("split-missing tset test"):
        predict_run(run.path, tmp_path / "none.parquet", "tset", graph=graph)
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.parametrize("fields", [{}, {"task": "link-prediction", "target": "author__writes__paper"}])
def test_a_share_without_items_has_a_loss(tmp_path, fields):
    """Of a batch with fewer items than workers some have none: their loss is 0 and can be derived."""
    graph = typed_graph(60).save(tmp_path / "graph")
    job = make_job({**SMALL, "graph": str(graph.path), "embedding": 8, **fields})
    session = make_session(job)
    if fields:
        # Whoever shares a batch of edges gets all of it, and takes none.
        session.task._share = lambda links: np.empty(0, np.int64)
    items = session.task.items[:3] if fields else session.task.items[:0]
    batch = session.task.sample(Planned(BatchKey(0, 0, 0), items, False))
    session.inputs.carrier.gather(batch)
    session.task.label(batch)
    session.inputs.carrier.transfer(batch)
    x = session.inputs.complete(batch)
    loss = session.task.loss(session.encode(batch, x), batch)
    assert float(loss.detach()) == 0
    session.backward(loss)
    assert all(p.grad is None or not p.grad.any() for p in session.learned.parameters())


def test_integer_ids_and_embeddings(tmp_path):
    graph = community_graph(ids=np.arange(200)[::-1] * 10)
    run = trained(graph, tmp_path / "run", epochs=1)
    out = tmp_path / "deep" / "embeddings.parquet"
    assert embed_run(run.path, out, graph=graph) == 200
    found = pq.read_table(out)
    assert found["id"].to_pylist() == (np.arange(200)[::-1] * 10).tolist()
    rows = np.array(found["embedding"].to_pylist())
    assert rows.shape == (200, 16)
    assert np.isfinite(rows).all()
    assert rows.std(axis=0).max() > 0
    with refused("file-exists --force"):
        embed_run(run.path, out, graph=graph)
    with refused("unknown-name nodes"):
        embed_run(run.path, tmp_path / "b.parquet", "nodes", graph=graph)
    with refused("wrong-file"):
        predict_run(run.path, tmp_path, graph=graph)
    assert sorted(path.name for path in out.parent.iterdir()) == ["embeddings.parquet"]


def test_several_labels_a_vertex(tmp_path):
    graph = community_graph()
    kind = np.array(graph.nodes["node"].y)
    graph.nodes["node"].fields["y"] = np.stack([kind % 2, kind // 2, kind == 3], 1).astype(np.float32)
    run = trained(graph, tmp_path / "run", **LONG)
    assert run.test["micro-f1"] > 0.8
    found = table(run, graph, tmp_path, "test")
    test = graph.nodes["node"].splits["test"]
    chosen = np.zeros((len(test), 3))
    for row, labels in enumerate(found["prediction"].to_pylist()):
        chosen[row, labels] = 1
    truth = graph.nodes["node"].y[test]
    both = (chosen * truth).sum()
    f1 = 2 * both / (chosen.sum() + truth.sum())
    assert f1 == pytest.approx(run.test["micro-f1"], abs=1e-9)
    assert np.array(found["probability"].to_pylist()).shape == (len(test), 3)


def test_numbers(tmp_path):
    graph = community_graph()
    kind = np.array(graph.nodes["node"].y)
    graph.nodes["node"].fields["y"] = (kind + np.random.default_rng(0).normal(0, 0.1, 200)).astype(np.float32)
    run = trained(graph, tmp_path / "run", **{**LONG, "epochs": 25})
    test = graph.nodes["node"].splits["test"]
    truth = graph.nodes["node"].y[test]
    assert run.test["mae"] < 0.6 * np.abs(truth - truth.mean()).mean()
    found = table(run, graph, tmp_path, "test")
    errors = np.array(found["prediction"].to_pylist()) - truth
    assert np.abs(errors).mean() == pytest.approx(run.test["mae"], rel=1e-5)


def test_whole_and_negative_numbers(tmp_path):
    graph = community_graph()
    graph.nodes["node"].fields["y"] = np.array(graph.nodes["node"].y) * 10 - 20
    run = trained(graph, tmp_path / "run", task="node-regression", epochs=1)
    assert run.test["mae"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"negatives": "joint", "negatives_per_edge": 20, "loss": "softmax", "scorer": "distmult"},
        {"negatives": "in-batch", "scorer": "mlp", "loss": "softmax", "metric": "roc-auc"},
        {"corrupt": "both", "negatives_per_edge": 3, "metric": "hits@20", "filtered": False},
    ],
    ids=["uniform", "joint", "in-batch", "both"],
)
def test_links(fields, tmp_path):
    graph = community_graph(count=120, features=False)
    job = {"task": "link-prediction", "batch_size": 128, "embedding": 16, "rank_against": 0, "lr": 0.01}
    run = trained(graph, tmp_path / "run", **job, epochs=12, fanouts=[6], dropout=0.0, **fields)
    # About 110 vertices are ranked against: a guess has a reciprocal rank of about 0.05, and finds 9 % in its top ten.
    assert run.test["mrr"] > 0.1
    assert run.test["hits@10"] > 0.2
    if "metric" in fields:
        assert run.test[fields["metric"]] > (0.7 if fields["metric"] == "roc-auc" else 0.4)
    assert evaluate_run(run.path, ["test"], graph)["test"] == run.test
    found = table(run, graph, tmp_path)
    assert found.column_names == ["source", "destination", "score"]
    assert 0 < found.num_rows < graph.num_edges // 5
    assert np.isfinite(found["score"].to_pylist()).all()
    assert embed_run(run.path, tmp_path / "e.parquet", graph=graph) == 120


def test_links_of_a_typed_graph(tmp_path):
    graph = typed_graph()
    job = {"task": "link-prediction", "target": "author__writes__paper", "model": "rgcn", "rank_against": 0}
    run = trained(graph, tmp_path / "run", **job, **{**LONG, "embedding": 16, "batch_size": 64})
    assert run.test["mrr"] > 0.04
    found = table(run, graph, tmp_path, "val")
    assert max(found["source"].to_pylist()) < 50
    assert found.num_rows > 0
    with refused("option-missing --type"):
        embed_run(run.path, tmp_path / "e.parquet", graph=graph)
    assert embed_run(run.path, tmp_path / "e.parquet", "author", graph=graph) == 50
    with refused("split-missing tests"):
        predict_run(run.path, tmp_path / "p2.parquet", "tests", graph=graph)


def test_held_out_edges_of_the_graph_are_used(tmp_path):
    graph = community_graph(count=120)
    edges = graph.edges["node", "to", "node"]
    edges.held_out = {name: edges.edge_index()[:, k::40].T.copy() for k, name in enumerate(("val", "test"))}
    run = trained(graph, tmp_path / "run", task="link-prediction", batch_size=128, rank_against=20)
    found = table(run, graph, tmp_path)
    pairs = np.stack([found["source"].to_pylist(), found["destination"].to_pylist()], 1)
    np.testing.assert_array_equal(pairs, edges.held_out["test"])


def test_classes_of_edges(tmp_path):
    graph = community_graph()
    kind, edges = graph.nodes["node"].fields.pop("y"), graph.edges["node", "to", "node"]
    ends = edges.edge_index()
    edges.fields["y"] = (kind[ends[0]] == kind[ends[1]]).astype(np.int64)
    run = trained(graph, tmp_path / "run", **{**LONG, "batch_size": 256})
    assert Run.open(run.path).test == run.test
    # Always the larger class would be right for so many.
    assert run.test["accuracy"] > max(edges.fields["y"].mean(), 0.5) + 0.03
    found = table(run, graph, tmp_path)
    assert found.num_rows == edges.count
    assert found["source"].to_pylist() == edges.indices.tolist()
    assert found["destination"].to_pylist() == edges.destinations().tolist()
    only = table(run, graph, tmp_path, "test")
    truth = dict(zip(zip(*ends.tolist(), strict=True), edges.fields["y"].tolist(), strict=True))
    pairs = zip(only["source"].to_pylist(), only["destination"].to_pylist(), strict=True)
    right = [truth[pair] == said for pair, said in zip(pairs, only["prediction"].to_pylist(), strict=True)]
    assert np.mean(right) == pytest.approx(run.test["accuracy"], abs=1e-12)
    with refused("split-missing"):
        predict_run(run.path, tmp_path / "none.parquet", "tst", graph=graph)


def test_words_of_edge_classes(tmp_path):
    graph = community_graph()
    edges = graph.edges["node", "to", "node"]
    del graph.nodes["node"].fields["y"]
    edges.fields["y"] = np.arange(edges.count) % 2
    edges.categories["y"] = ["friend", "foe"]
    run = trained(graph, tmp_path / "run", epochs=1, batch_size=512)
    assert set(table(run, graph, tmp_path)["prediction"].to_pylist()) <= {"friend", "foe"}


def test_typed_vertices(tmp_path):
    graph = typed_graph()
    run = trained(graph, tmp_path / "run", model="rgcn", **LONG, embedding=8)
    assert run.test["accuracy"] > 0.8
    found = table(run, graph, tmp_path, "test")
    test = graph.nodes["paper"].splits["test"]
    right = np.array(found["prediction"].to_pylist()) == graph.nodes["paper"].y[test]
    assert right.mean() == pytest.approx(run.test["accuracy"], abs=1e-12)


def test_reverse_relations(tmp_path):
    graph = typed_graph()
    directed = Graph(graph.nodes, {("author", "writes", "paper"): graph.edges["author", "writes", "paper"]}, "directed")
    run = trained(directed, tmp_path / "run", model="rgcn", reverse_edges=True, embedding=8, **LONG)
    assert run.test["accuracy"] > 0.6
    assert evaluate_run(run.path, ["test"], directed)["test"] == run.test


def test_a_split_that_the_run_has_none_of(tmp_path):
    graph = community_graph()
    del graph.nodes["node"].splits["test"]
    run = trained(graph, tmp_path / "run", epochs=1)
    assert run.test == {}
    assert run.val
    with refused("split-missing test"):
        evaluate_run(run.path, ["test"], graph)


def test_splits_drawn_where_the_graph_has_none(tmp_path):
    graph = community_graph()
    graph.nodes["node"].splits.clear()
    graph.nodes["node"].fields["y"][:20] = -1
    for fields in ({}, {"split": "per-class", "per_class": [10, 5]}, {"split_ratio": [0.5, 0.25, 0.25]}):
        run = trained(graph, tmp_path / "run", epochs=1, force=True, **fields)
        assert run.test["accuracy"] >= 0
        found = {split: table(run, graph, tmp_path, split)["id"].to_pylist() for split in ("train", "val", "test")}
        assert sorted(row for rows in found.values() for row in rows) == list(range(20, 200))
    with refused("split-missing"):
        trained(graph, tmp_path / "none", split="graph")


def test_a_run_with_a_module_says_so_when_it_is_not_given_again(tmp_path):
    import torch

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x, edge_index):
            return self.linear(x)

    graph = community_graph()
    run = trained(graph, tmp_path / "run", model=Own(), epochs=1)
    with refused("mismatched-inputs"):
        evaluate_run(run.path, ["test"], graph)
    assert evaluate_run(run.path, ["test"], graph, Own())["test"] == run.test


def test_parallel_edges_and_self_loops(tmp_path):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 40, 300), rng.integers(0, 40, 300)
    src[:20] = dst[:20]
    edges = lists_of(np.append(src, src), np.append(dst, dst), 40, 40)
    graph = Graph({"node": NodeSet(40, {"x": np.eye(40, dtype=np.float32)})}, {("node", "to", "node"): edges})
    run = trained(graph, tmp_path / "run", task="link-prediction", batch_size=64)
    assert 0 < run.test["mrr"] <= 1
