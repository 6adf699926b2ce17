"""Synthetic graphs: the same bytes for any thread count, the statistics asked for, labels that need the graph."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from penstock.graph.generate import DATASETS, make_cached, make_graph, recipe_named
from penstock.graph.generate.vertices import lay_out, scramble, unscramble
from refusals import refused

SCALES = {
    "synthetic-arxiv": 0.05,
    "synthetic-products": 0.005,
    "synthetic-reddit": 0.02,
    "synthetic-papers": 0.0002,
    "synthetic-mag": 0.01,
    "synthetic-collab": 0.05,
}


@pytest.mark.parametrize("name", DATASETS)
def test_bytes_do_not_depend_on_threads(tmp_path, name):
    recipe = recipe_named(name).scaled(SCALES[name])
    for threads in (1, 3):
        make_graph(recipe, tmp_path / str(threads), seed=5, threads=threads)
    files = sorted(path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("*") if path.is_file())
    assert len(files) >= 3
    for file in files:
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "3" / file).read_bytes(), file


def test_another_seed_is_another_graph(tmp_path):
    recipe = recipe_named("synthetic-arxiv").scaled(0.01)
    a, b = (make_graph(recipe, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    assert not np.array_equal(a.indices[:1000], b.indices[:1000])
    assert not np.array_equal(a.x[:10], b.x[:10])


@pytest.mark.parametrize("name", DATASETS)
def test_statistics_are_the_recipes(tmp_path, name):
    recipe = recipe_named(name).scaled(SCALES[name])
    graph = make_graph(recipe, tmp_path / "g")
    for node_type, node in recipe.nodes.items():
        nodes = graph.nodes[node_type]
        assert nodes.count == node.count
        if node.features:
            assert nodes.x.shape == (node.count, node.features)
        if node.splits:
            assert tuple(len(nodes.splits[k]) for k in ("train", "val", "test")) == node.splits
            labelled = nodes.y >= 0
            assert labelled.sum() == sum(node.splits)
            assert nodes.y.max() < recipe.classes
            assert labelled[nodes.splits["train"]].all()
            assert not np.intersect1d(nodes.splits["train"], nodes.splits["test"]).size
    for edge in recipe.edges:
        edges = graph.edges[edge.type]
        kept = 1 - sum(edge.held_out)
        # The tiny Reddit is nearly complete inside its communities, so more of its choices coincide.
        assert 0.88 < edges.count / (edge.count * kept) < 1.02
        lengths = np.diff(edges.indptr)
        assert lengths.max() > 8 * lengths.mean() or name == "synthetic-reddit"  # a heavy tail


@pytest.mark.parametrize("name", ["synthetic-products", "synthetic-collab"])
def test_symmetric_sets_are_simple_and_symmetric(tmp_path, name):
    graph = make_graph(recipe_named(name).scaled(SCALES[name]), tmp_path / "g")
    edges = graph.edges[("node", "to", "node")]
    pairs = set(zip(edges.indices.tolist(), edges.destinations().tolist(), strict=True))
    assert len(pairs) == edges.count
    assert all((b, a) in pairs for a, b in pairs)
    assert all(a != b for a, b in pairs)
    held = {name: set(map(tuple, rows.tolist())) for name, rows in edges.held_out.items()}
    for rows in held.values():
        assert not rows & pairs
    if held:
        positives = held["val"] | held["test"]
        negatives = held["val_negative"] | held["test_negative"]
        assert not negatives & (positives | {(b, a) for a, b in positives})


def test_both_directions_of_a_directed_set(tmp_path):
    recipe = recipe_named("synthetic-arxiv").scaled(0.02)
    one, both = make_graph(recipe, tmp_path / "one"), make_graph(recipe.made_symmetric(), tmp_path / "both")
    assert 1.85 < both.num_edges / one.num_edges < 2.02


def test_scrambling_is_a_bijection():
    for size in (1, 2, 17, 1000, 4099):
        layout = lay_out(recipe_named("synthetic-arxiv").scaled(max(size, 1) / 169_343), "node", 3)
        n = layout.size
        image = [scramble(layout.numbering, p) for p in range(n)]
        assert sorted(image) == list(range(n))
        assert [unscramble(layout.numbering, v) for v in image] == list(range(n))


def test_vertex_numbers_say_nothing_about_communities(tmp_path):
    graph = make_graph(recipe_named("synthetic-arxiv").scaled(0.05), tmp_path / "g")
    y = np.asarray(graph.y)
    neighbours_agree = (y[:-1] == y[1:]).mean()
    strangers_agree = (y == np.roll(y, len(y) // 2)).mean()
    assert abs(neighbours_agree - strangers_agree) < 0.02


def test_labels_need_the_graph(tmp_path):
    """A GraphSAGE must be far above an MLP: features alone do not tell the class."""
    spec = importlib.util.spec_from_file_location(
        "learnability", Path(__file__).parents[2] / "benchmarks" / "learnability.py"
    )
    learnability = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(learnability)
    graph = make_graph(recipe_named("synthetic-arxiv").scaled(0.02), tmp_path / "g")
    found = learnability.accuracies(graph, epochs=15)
    assert found["graphsage"] >= found["mlp"] + 15


def test_cached_sets_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setitem(DATASETS, "tiny", recipe_named("synthetic-arxiv").scaled(0.002))
    first = make_cached("tiny")
    stamp = (tmp_path / "tiny" / "graph.json").stat().st_mtime_ns
    again = make_cached("tiny")
    assert again.num_edges == first.num_edges
    assert (tmp_path / "tiny" / "graph.json").stat().st_mtime_ns == stamp


def test_unknown_names_and_scales(tmp_path):
    with refused("unknown-name synthetic-products"):
        recipe_named("sythetic-product")
    for scale in (0, -1, 1000):
        with refused("value-out-of-range"):
            recipe_named("synthetic-arxiv").scaled(scale)
