"""`stream`: clusters, METIS on their graph, and moves of single vertices; equal answers whatever the threads."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.generate import make_graph, recipe_named
from penstock.partition import Cut, assign
from penstock.partition.directions import is_symmetric, lists_of, merged_blocks
from penstock.partition.methods import clusters, stream
from penstock.partition.methods.clusters import ClusteredGraph, cluster, contract
from penstock.partition.problem import undirected, whole_of
from penstock.progress import SILENT
from random_graphs import directed_graph, mesh_graph, power_law_graph
from refusals import refused


@pytest.fixture(scope="module")
def communities(tmp_path_factory):
    return make_graph(recipe_named("synthetic-products").scaled(0.004), tmp_path_factory.mktemp("g") / "graph")


@pytest.fixture
def always_clusters(monkeypatch):
    """Small graphs are clustered too, which METIS would else get as they are."""
    monkeypatch.setattr(stream, "_SMALL", 200)
    monkeypatch.setattr(stream, "_ROOM", 1 / 8)


def graph_of(sources, targets, count):
    from penstock.graph.csr import build_lists

    indptr, indices, _ = build_lists(np.array(sources, np.int64), np.array(targets, np.int64), count, count)
    return Graph({"v": NodeSet(count)}, {("v", "e", "v"): EdgeSet(indptr, indices)}, "made")


def cut_by_stream(graph, parts=4, threads=2, **more):
    return assign(graph, Cut(parts, method="stream", **more), threads=threads)


@pytest.mark.usefixtures("always_clusters")
@pytest.mark.parametrize("make", [mesh_graph, power_law_graph, directed_graph])
def test_threads_change_nothing_and_constraints_hold(make):
    graph = make()
    one, three = (cut_by_stream(graph, threads=n, passes=2) for n in (1, 3))
    np.testing.assert_array_equal(one.assignment, three.assignment)
    assert max(one.metrics.balance.values()) <= 1.05
    assert one.assignment.dtype == np.int32


def test_seeds_give_answers_of_their_own(communities):
    first, other = (cut_by_stream(communities, seed=seed).assignment for seed in (0, 1))
    assert (first != other).any()


def test_it_is_near_metis_on_communities(communities):
    metis = assign(communities, Cut(4, method="metis")).metrics
    assert cut_by_stream(communities, passes=3).metrics.edge_cut <= 1.15 * metis.edge_cut


def test_several_types_keep_all_constraints(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_SMALL", 2000)
    graph = make_graph(recipe_named("synthetic-mag").scaled(0.004), tmp_path / "mag")
    found = cut_by_stream(graph, balance=("types", "train"))
    for kind, nodes in graph.nodes.items():
        assert found.metrics.balance[f"type {kind}"] <= 1.05 + 4 / nodes.count
    assert found.metrics.edge_cut < assign(graph, Cut(4, method="random")).metrics.edge_cut


@pytest.mark.usefixtures("always_clusters")
def test_a_directed_graph_is_cut_as_its_undirected_one():
    """A path's edges, all towards lower numbers, lead nowhere for whoever reads in-neighbours alone."""
    graph = graph_of(np.arange(1, 2000), np.arange(1999), 2000)
    both = graph_of([*range(1, 2000), *range(1999)], [*range(1999), *range(1, 2000)], 2000)
    one, two = cut_by_stream(graph, passes=2).metrics, cut_by_stream(both, passes=2).metrics
    assert one.edge_cut * 2 == two.edge_cut
    assert one.edge_cut < 100


@pytest.mark.parametrize(("again", "files"), [(1000, 64), (4, 64), (4, 3)])
def test_directions_are_told_apart_and_turned_round_in_pieces(tmp_path, monkeypatch, again, files):
    from penstock.partition import directions

    monkeypatch.setattr(directions, "_HELD_BYTES", 4000)
    monkeypatch.setattr(directions, "_MOST_READINGS", again)
    monkeypatch.setattr(directions, "_MOST_FILES", files)
    monkeypatch.setattr(directions, "_SORTED", 700)
    monkeypatch.setattr(directions, "_ROWS", 100)
    whole = whole_of(directed_graph())
    assert not is_symmetric(whole.indptr, whole.indices, 2)
    lists = lists_of(whole, tmp_path, 2, SILENT)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["back.npy", "back_indptr.npy"]
    wanted = undirected(whole.indptr, whole.indices)
    blocks = list(merged_blocks(lists, 100))
    np.testing.assert_array_equal(np.concatenate([block.indices for block in blocks]), wanted.indices)
    np.testing.assert_array_equal(np.concatenate([block.weights for block in blocks]), wanted.weights)
    np.testing.assert_array_equal(np.concatenate([np.diff(block.indptr) for block in blocks]), np.diff(wanted.indptr))
    mesh = whole_of(mesh_graph())
    assert len(lists_of(mesh, tmp_path / "none", 2, SILENT).back_indptr) == 0


@pytest.mark.parametrize("held", [4 << 20, 500])
def test_the_graph_of_clusters_has_every_edge_between_them(tmp_path, monkeypatch, held):
    monkeypatch.setattr(clusters, "_HELD_PAIRS", held)
    monkeypatch.setattr(clusters, "_BLOCK_ENTRIES", 300)
    whole = whole_of(directed_graph())
    lists = lists_of(whole, tmp_path, 2, SILENT)
    level = ClusteredGraph(lists, lambda a, b: np.ones((1, b - a), np.int64), np.array([whole.count]))
    label, count = cluster(level, 1 / 8, 4, 0, 2, SILENT)
    assert sorted(np.unique(label)) == list(range(count)) and count < whole.count
    assert np.bincount(label).max() <= whole.count / 4 / 8
    coarse = contract(level, label, count, tmp_path, 2, SILENT)
    wanted = np.zeros((count, count), np.int64)
    rows = np.repeat(np.arange(whole.count), np.diff(whole.indptr))
    np.add.at(wanted, (label[rows], label[whole.indices]), 1)
    wanted += wanted.T
    np.fill_diagonal(wanted, 0)
    found = np.zeros_like(wanted)
    found[np.repeat(np.arange(count), np.diff(coarse.lists.indptr)), coarse.lists.indices] = coarse.lists.weights
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(coarse.weights(0, count)[0], np.bincount(label))


@pytest.mark.usefixtures("always_clusters")
def test_stars_pieces_and_single_vertices_are_cut():
    star = graph_of([*[0] * 999, *range(1, 1000)], [*range(1, 1000), *[0] * 999], 1000)
    found = cut_by_stream(star, balance=("vertices",))
    assert np.bincount(found.assignment).max() <= 263
    # The centre of a star has a quarter of its neighbours with it, whatever one does.
    assert found.metrics.edge_cut >= 2 * (999 - 263)
    pieces = graph_of(np.arange(900) ^ 1, np.arange(900), 1000)
    apart = cut_by_stream(pieces, balance=("vertices",), passes=3)
    assert np.bincount(apart.assignment).max() <= 263
    assert apart.metrics.edge_cut <= 0.05 * 900
    nothing = graph_of([], [], 7)
    assert sorted(np.bincount(cut_by_stream(nothing, 3).assignment)) == [2, 2, 3]
    with refused("value-out-of-range"):
        cut_by_stream(nothing, 8)


def test_a_hub_with_more_labels_than_its_table_is_cut(monkeypatch):
    monkeypatch.setattr(stream, "_SMALL", 1000)
    count = 90_000
    star = graph_of([*[0] * (count - 1), *range(1, count)], [*range(1, count), *[0] * (count - 1)], count)
    found = [cut_by_stream(star, 2, threads, balance=("vertices",)) for threads in (1, 2)]
    np.testing.assert_array_equal(found[0].assignment, found[1].assignment)
    assert max(found[0].metrics.balance.values()) <= 2


def test_a_part_that_is_too_full_is_emptied_into_others(monkeypatch):
    """Whatever METIS leaves, single vertices are moved until every constraint holds."""
    monkeypatch.setattr(stream, "_coarse_parts", lambda problem, level: np.zeros(level.lists.rows, np.int32))
    found = cut_by_stream(mesh_graph(), 4, passes=2)
    assert max(found.metrics.balance.values()) <= 1.05


def test_more_passes_cut_less(communities, monkeypatch):
    """From parts that say nothing of the graph: METIS's are often settled after one pass."""
    monkeypatch.setattr(stream, "_coarse_parts", lambda problem, level: np.arange(level.lists.rows) % problem.parts)
    once, thrice = (assign(communities, Cut(4, method="stream", passes=n)).metrics.edge_cut for n in (1, 3))
    assert thrice < once


LIMITED = """
import re, resource, sys
from pathlib import Path
from penstock import Graph
from penstock.partition import Cut, assign
small, large, allowed, method = sys.argv[1:]
assign(Graph.open(small), Cut(4, method=method), threads=2)
held = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (held + int(allowed),) * 2)
print(assign(Graph.open(large), Cut(4, method=method), threads=2).metrics.edge_cut)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_it_needs_little_memory_beside_the_graph(tmp_path):
    """A million vertices: libraries and kernels are there before the system refuses to give more than 200 MB."""
    grid(100).save(tmp_path / "small")
    grid(1000).save(tmp_path / "large")

    def limited(method: str, allowed: int) -> subprocess.CompletedProcess[str]:
        graphs = tmp_path / "small", tmp_path / "large"
        return subprocess.run(
            [sys.executable, "-c", LIMITED, *graphs, str(allowed), method], capture_output=True, text=True, check=False
        )

    done = limited("stream", 200 << 20)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000
    assert "METIS ran out of memory on this graph: use --method stream." in limited("metis", 250 << 20).stderr


def grid(side):
    """A square of vertices, each joined to its neighbours."""
    at = np.arange(side * side).reshape(side, side)
    one, other = np.r_[at[:, :-1].ravel(), at[:-1].ravel()], np.r_[at[:, 1:].ravel(), at[1:].ravel()]
    return graph_of(np.r_[one, other], np.r_[other, one], side * side)
