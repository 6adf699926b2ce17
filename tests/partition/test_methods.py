"""Every method: a valid, balanced, repeatable assignment; the good ones better than lots."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest

from forks import run_forked
from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.generate import make_graph, recipe_named
from penstock.partition import Cut, assign
from penstock.partition.methods import METHODS, metis
from penstock.partition.methods.metis import metis_library
from random_graphs import directed_graph, mesh_graph, power_law_graph
from refusals import refused


@pytest.fixture(scope="module")
def communities(tmp_path_factory):
    """A small synthetic-products: symmetric, hubs, communities, train vertices."""
    return make_graph(recipe_named("synthetic-products").scaled(0.004), tmp_path_factory.mktemp("g") / "graph")


@pytest.fixture(scope="module")
def few_communities(tmp_path_factory):
    """A quarter of them."""
    return make_graph(recipe_named("synthetic-products").scaled(0.001), tmp_path_factory.mktemp("g") / "graph")


KAMINPAR = pytest.mark.skipif(find_spec("kaminpar") is None, reason="kaminpar is not installed")
INSTALLED = [pytest.param(name, marks=KAMINPAR if name == "kaminpar" else ()) for name in METHODS]


@pytest.mark.parametrize("method", INSTALLED)
def test_every_vertex_gets_a_part_and_the_answer_repeats(few_communities, method):
    # Mt-KaHyPar takes many times as long as others.
    graph = mesh_graph() if method == "hypergraph" else few_communities
    first = assign(graph, Cut(4, method=method), threads=1)
    assert first.assignment.dtype == np.int32
    assert set(np.unique(first.assignment)) == {0, 1, 2, 3}
    # In several threads Mt-KaHyPar and KaMinPar may differ from run to run.
    again = assign(graph, Cut(4, method=method), threads=1 if method in ("hypergraph", "kaminpar") else 2)
    np.testing.assert_array_equal(first.assignment, again.assignment)


def test_cuts_in_several_threads_are_those_of_one(few_communities):
    """METIS draws from the C library's random numbers, which all threads of a process share."""

    def parts_by_metis(_=None):
        return assign(few_communities, Cut(4, method="metis"), threads=1).assignment

    alone = parts_by_metis()
    with ThreadPoolExecutor(3) as threads:
        for beside in threads.map(parts_by_metis, range(3)):
            np.testing.assert_array_equal(alone, beside)


@pytest.mark.parametrize(
    "method, parts",
    [
        ("metis", 8),
        ("stream", 4),
        pytest.param("kaminpar", 2, marks=KAMINPAR),
        *(pytest.param("metis", parts, marks=pytest.mark.long) for parts in (2, 4)),
        *(pytest.param("stream", parts, marks=pytest.mark.long) for parts in (2, 8)),
        *(pytest.param("kaminpar", parts, marks=[KAMINPAR, pytest.mark.long]) for parts in (4, 8)),
        *(pytest.param("hypergraph", parts, marks=pytest.mark.long) for parts in (2, 4, 8)),
    ],
)
def test_all_requested_constraints_hold(communities, method, parts):
    found = assign(communities, Cut(parts, method=method, balance=("vertices", "edges", "train")))
    assert max(found.metrics.balance.values()) <= 1.05


def test_quality_is_in_the_expected_order(communities):
    # By one thread: in several Mt-KaHyPar's answers differ, and now and then one is bad.
    volume = {
        name: assign(communities, Cut(4, method=name), threads=1).metrics for name in METHODS if name != "kaminpar"
    }
    assert volume["metis"].edge_cut < 0.3 * volume["random"].edge_cut
    assert volume["stream"].edge_cut < 0.8 * volume["random"].edge_cut
    assert volume["hypergraph"].comm_volume <= volume["metis"].comm_volume


def test_chunk_is_contiguous():
    part = assign(mesh_graph(), Cut(4, method="chunk")).assignment
    assert (np.diff(part) >= 0).all()


def test_types_can_be_balanced_each(tmp_path):
    graph = make_graph(recipe_named("synthetic-mag").scaled(0.004), tmp_path / "mag")
    found = assign(graph, Cut(4, balance=("types", "train")))
    for kind, nodes in graph.nodes.items():
        slack = 4 / nodes.count  # one vertex more than a fair share is always allowed
        assert found.metrics.balance[f"type {kind}"] <= 1.05 + slack
    assert {"vertices", "edges", "train"} <= set(found.metrics.balance)


def test_metis_is_found_and_its_layout_probed():
    library = metis_library()
    assert library is not None, "pymetis is a dependency and carries METIS"
    assert library.index in (np.int32, np.int64)
    # Entry by entry, the options that are set must be the ones METIS reads: a refused imbalance shows it.
    bad = library.options(imbalance=-5)
    from penstock.partition.problem import undirected, whole_of

    whole = whole_of(mesh_graph(6))
    with refused("external-failure"):
        library.part_graph(undirected(whole.indptr, whole.indices), np.ones((1, 36), np.int32), 2, bad)


def test_without_metis_there_is_a_sentence_and_another_way(monkeypatch, tmp_path):
    monkeypatch.setattr(metis, "metis_library", lambda: None)
    with refused("not-installed --method"):
        assign(mesh_graph(), Cut(2))
    with refused("not-installed --method"):
        assign(mesh_graph(), Cut(2, method="stream"))
    assert assign(mesh_graph(), Cut(2, method="chunk")).metrics.edge_cut > 0


def test_without_mtkahypar_there_is_a_sentence(monkeypatch):
    from penstock.partition.methods import hypergraph

    monkeypatch.setattr(hypergraph, "find_spec", lambda name: None)
    with refused("not-installed"):
        assign(mesh_graph(), Cut(2, method="hypergraph"))


def test_without_kaminpar_there_is_a_sentence(monkeypatch):
    from penstock.partition.methods import kaminpar

    monkeypatch.setattr(kaminpar, "find_spec", lambda name: None)
    with refused("not-installed penstock[kaminpar] --method"):
        assign(mesh_graph(), Cut(2, method="kaminpar"))


@KAMINPAR
@pytest.mark.parametrize("make", [directed_graph, power_law_graph, mesh_graph])
def test_kaminpar_reads_any_graph_and_cuts_less_than_lots(make):
    graph = make()
    found = assign(graph, Cut(4, method="kaminpar"), threads=1).metrics
    assert found.edge_cut < assign(graph, Cut(4, method="random")).metrics.edge_cut
    assert max(found.balance.values()) <= 1.05


def test_a_graph_without_edges_can_be_cut():
    nothing = EdgeSet(np.zeros(11, np.int64), np.empty(0, np.int32))
    graph = Graph({"v": NodeSet(10)}, {("v", "e", "v"): nothing})
    for method in METHODS:
        if method == "kaminpar" and find_spec("kaminpar") is None:
            continue
        found = assign(graph, Cut(3, method=method))
        assert found.metrics.edge_cut == 0, method
        assert np.bincount(found.assignment, minlength=3).max() == 4, method


def test_a_power_law_graph_stays_balanced_in_edges():
    found = assign(power_law_graph(), Cut(8, method="metis"))
    assert max(found.metrics.balance.values()) <= 1.05


def test_a_table_too_large_for_local_search_is_no_failure(monkeypatch):
    from penstock.partition import refine

    monkeypatch.setattr(refine, "_LARGEST_TABLE", 1000)
    for method in ("metis", "hypergraph"):
        assert assign(mesh_graph(), Cut(4, method=method)).metrics.edge_cut > 0
    with refused("out-of-memory --refine"):
        assign(mesh_graph(), Cut(4, refine="balanced"))


def test_finding_metis_in_many_threads_leaves_stdout_alone():
    code = """
import threading, time
from penstock.partition.methods.metis import MetisLibrary, metis_library
probe = MetisLibrary.part_graph
MetisLibrary.part_graph = lambda *given: (time.sleep(0.01 * threading.active_count()), probe(*given))[1]
work = [threading.Thread(target=metis_library) for _ in range(8)]
[t.start() for t in work]; [t.join() for t in work]; print("still here")
"""
    done = run_forked(["python", code])
    assert done.stdout == "still here\n", done.stderr


def test_a_module_in_the_current_folder_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    assert assign(mesh_graph(), Cut(2, method="hypergraph")).metrics.edge_cut > 0
