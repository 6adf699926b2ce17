"""Embeddings brought up to date with a graph's segments, beside embeddings of all vertices."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from in_process import answer
from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.segments import Addition, growing
from penstock.train.run_files.run_folder import read_vectors
from penstock.train.use import embed_changes, embed_run
from refusals import refused
from training_graphs import lists_of, trained

COUNT, NEW = 300, 6
KIND = ("node", "to", "node")


def ring(count, features=5, seed=0):
    """Vertices that read those before and behind them."""
    rng = np.random.default_rng(seed)
    sources = np.concatenate([(np.arange(count) + step) % count for step in (-2, -1, 1, 2)])
    nodes = {"x": rng.normal(size=(count, features)).astype(np.float32), "y": rng.integers(0, 3, count)}
    splits = {"train": np.arange(0, count, 2), "val": np.arange(1, count, 4), "test": np.arange(3, count, 4)}
    edges = lists_of(sources, np.tile(np.arange(count), 4), count, count, weight=rng.random(len(sources), np.float32))
    return Graph({"node": NodeSet(count, nodes, splits)}, {KIND: edges}, "ring")


def append(path, seed):
    """New vertices, joined to one place of the ring, and an edge between two old ones elsewhere."""
    rng = np.random.default_rng(seed)
    first = Graph.open(path).num_nodes
    sources = np.array([*range(first, first + NEW), 10 * seed, 40 * seed])
    destinations = np.array([10 * seed, *range(first + 1, first + NEW), first, 40 * seed + 7])
    fields = {"x": rng.normal(size=(NEW, 5)).astype(np.float32), "y": rng.integers(0, 3, NEW)}
    lists = lists_of(sources, destinations, first + NEW, first + NEW, weight=np.ones(len(sources), np.float32))
    with growing(path) as held:
        return held.append(Addition({"node": NodeSet(NEW, fields)}, {KIND: lists})).name


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "sage"},
        {"model": "sage", "edge_weight": "weight", "jump": "cat"},
        {"model": "gcn", "norm": "batch"},
        {"model": "gat"},
    ],
    ids=lambda fields: "-".join(fields.values()),
)
def test_changed_rows_make_the_table_of_all_rows(fields, tmp_path):
    graph = ring(COUNT).save(tmp_path / "graph")
    run = trained(graph, tmp_path / "run", epochs=1, fanouts=[2, 2], **fields)
    kept, whole = tmp_path / "kept.parquet", tmp_path / "whole.parquet"
    embed_run(run.path, kept)
    before = read_vectors(kept, "embedding")[1]
    for seed in (1, 2):
        segment = append(graph.path, seed)
        rows, computed = embed_changes(run.path, kept, segment)
        assert rows == COUNT + seed * NEW and NEW < computed < COUNT // 3
    embed_run(run.path, whole)
    ours, theirs = (read_vectors(each, "embedding")[1] for each in (kept, whole))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert (np.abs(theirs[:COUNT] - before).max(1) > 1e-4).sum() >= 3
    assert pq.read_table(kept).schema == pq.read_table(whole).schema


def test_changes_of_typed_graphs(tmp_path):
    """Only what reads the changed lists along the relations, hop by hop."""
    users, items = 60, 40
    rng = np.random.default_rng(0)
    sources, destinations = np.repeat(np.arange(users), 2), np.arange(2 * users) % items
    nodes = {
        "user": NodeSet(users, {"x": rng.normal(size=(users, 3)).astype(np.float32)}),
        "item": NodeSet(items, {"x": rng.normal(size=(items, 3)).astype(np.float32), "y": rng.integers(0, 2, items)}),
    }
    nodes["item"].splits |= {"train": np.arange(0, 20), "val": np.arange(20, 30), "test": np.arange(30, 40)}
    there, back = ("user", "buys", "item"), ("item", "bought-by", "user")
    edges = {there: lists_of(sources, destinations, users, items), back: lists_of(destinations, sources, items, users)}
    graph = Graph(nodes, edges, "shop").save(tmp_path / "graph")
    run = trained(graph, tmp_path / "run", model="rgcn", epochs=1, fanouts=[2, 2])
    kept, whole = tmp_path / "kept.npz", tmp_path / "whole.npz"
    embed_run(run.path, kept)
    new, bought = np.array([users, users]), np.array([3, 4])
    added = {there: lists_of(new, bought, users + 1, items), back: lists_of(bought, new, items, users + 1)}
    rows = NodeSet(1, {"x": np.ones((1, 3), np.float32)})
    with growing(graph.path) as held:
        segment = held.append(Addition({"user": rows}, added)).name
    assert embed_changes(run.path, kept, segment)[1] < items
    embed_run(run.path, whole)
    ours, theirs = (read_vectors(each, "embedding")[1] for each in (kept, whole))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_table_that_does_not_fit_is_refused(tmp_path, monkeypatch, capsys):
    graph = ring(COUNT).save(tmp_path / "graph")
    run, other = (trained(graph, tmp_path / f"run{seed}", epochs=1, fanouts=[2, 2], seed=seed) for seed in (0, 1))
    kept = tmp_path / "kept.parquet"
    embed_run(run.path, kept)
    append(graph.path, 1)
    with refused("mismatched-inputs kept.parquet weights"):
        embed_changes(other.path, kept, "1")
    with refused("unknown-name '2'"):
        embed_changes(run.path, kept, "2")
    with refused("file-not-found none.parquet"):
        embed_changes(run.path, tmp_path / "none.parquet", "1")
    kept.write_bytes(kept.read_bytes()[:100])
    with refused("wrong-file kept.parquet"):
        embed_changes(run.path, kept, "1")
    embed_run(run.path, tmp_path / "all.parquet")
    said = answer(monkeypatch, capsys, "embed", run.path, "--out", tmp_path / "all.parquet", "--changed-since", 1)
    assert said["rows"] == COUNT + NEW and 0 < said["computed"] < COUNT


def test_lists_that_a_run_made_itself_are_refused(tmp_path):
    graph = ring(COUNT).save(tmp_path / "graph")
    run = trained(graph, tmp_path / "run", epochs=1, fanouts=[2], task="link-prediction", batch_size=500)
    embed_run(run.path, tmp_path / "kept.parquet")
    append(graph.path, 1)
    with refused("unsupported-combination held"):
        embed_changes(run.path, tmp_path / "kept.parquet", "1")


def test_a_graph_in_memory_can_be_read_beside_what_is_appended(tmp_path):
    """A mapping that was made before shows the graph as it was."""
    graph = ring(COUNT).save(tmp_path / "graph")
    x, lists = graph.x.copy(), graph.indices.copy()
    append(graph.path, 1)
    np.testing.assert_array_equal(graph.x, x)
    np.testing.assert_array_equal(graph.indices, lists)
    assert isinstance(graph.edges[KIND], EdgeSet) and Graph.open(graph.path).num_nodes == COUNT + NEW
