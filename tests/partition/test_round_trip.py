"""Cut, written, opened, stitched: the graph comes back exactly."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import EdgeSet, Graph, NodeSet
from penstock.partition import Cut, cut, folder, open_partition, stitch
from random_graphs import assert_same_graph, directed_graph, graphs, power_law_graph
from refusals import refused


@given(graphs(), st.sampled_from(["random", "chunk", "stream", "metis"]), st.integers(1, 2), st.integers(0, 5))
def test_stitched_equals_the_input(tmp_path_factory, graph, method, trainers, seed):
    parts = tmp_path_factory.mktemp("cut") / "parts"
    how = Cut(2, trainers, method, seed=seed, tolerance=1.5)
    if trainers == 2 and graph.num_nodes < 8:
        trainers, how = 1, Cut(2, 1, method, seed=seed, tolerance=1.5)
    mapped = graph.save(parts.parent / "graph")
    result = cut(mapped, how, parts)
    assert_same_graph(stitch(result), graph)
    assert_same_graph(mapped, graph)


@given(graphs(), st.integers(1, 2))
def test_parts_that_tasks_write_are_the_same(tmp_path_factory, graph, trainers):
    """In another order, and twice, as where a node of a cluster is lost; the tasks read the graph's folder."""
    folder = tmp_path_factory.mktemp("cut")
    saved, how = graph.save(folder / "graph"), Cut(2, trainers if graph.num_nodes >= 8 else 1, "random", tolerance=1.5)

    def last_first(function, tasks):
        for task in reversed(tasks):
            function(task)
        return map(function, tasks)

    cut(saved, how, folder / "here")
    cut(saved, how, folder / "by tasks", mapped=last_first)
    assert _bytes(folder / "by tasks") == _bytes(folder / "here")


def _bytes(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_tasks_need_a_graph_in_a_folder(tmp_path):
    with refused("unsupported-combination folder"):
        cut(directed_graph(), Cut(2, method="random"), tmp_path / "parts", mapped=map)
    assert list(tmp_path.iterdir()) == []


@given(graphs(max_types=2))
def test_parts_hold_what_the_contract_says(tmp_path_factory, graph):
    result = cut(graph, Cut(3, method="random") if graph.num_nodes > 3 else Cut(2), _fresh(tmp_path_factory))
    for edge_type, edges in graph.edges.items():
        source, _, target = edge_type
        to_source, to_target = result.original(source), result.original(target)
        total = 0
        for index in range(result.parts):
            part = result.part(index)
            piece = part.edges[edge_type]
            first, last = result.book.range(index, target)
            assert (part.nodes[target].first, part.nodes[target].count) == (first, last - first)
            for row in range(last - first):
                original = to_target[first + row]
                mine = to_source[piece.indices[piece.indptr[row] : piece.indptr[row + 1]]]
                whole = edges.indices[edges.indptr[original] : edges.indptr[original + 1]]
                np.testing.assert_array_equal(mine, whole)  # all in-edges, in original order
            total += piece.count
        assert total == edges.count


@given(graphs())
def test_halo_is_what_is_read_and_not_owned(tmp_path_factory, graph):
    result = cut(graph, Cut(2, method="chunk"), _fresh(tmp_path_factory))
    for index in range(2):
        part = result.part(index)
        for name in graph.nodes:
            first, last = result.book.range(index, name)
            read = [e.indices for (source, _, _), e in part.edges.items() if source == name]
            read = np.unique(np.concatenate(read)) if read else np.empty(0, np.int64)
            np.testing.assert_array_equal(result.halo(index, name), read[(read < first) | (read >= last)])


@pytest.mark.parametrize(
    "how", [Cut(5, 2, "hypergraph"), Cut(5, 3, "metis", "balanced"), Cut(7, 1, "stream", passes=2)]
)
def test_larger_graphs_and_more_parts(tmp_path, how):
    graph = power_law_graph()
    assert_same_graph(stitch(cut(graph, how, tmp_path / "p")), graph)


def test_types_without_vertices_or_edges(tmp_path):
    nodes = {"a": NodeSet(6, {"x": np.arange(6)}), "none": NodeSet(0), "alone": NodeSet(5)}
    edges = {
        ("a", "to", "a"): EdgeSet(np.arange(7), np.arange(6, dtype=np.int32)),
        ("none", "to", "alone"): EdgeSet(np.zeros(6, np.int64), np.empty(0, np.int32)),
    }
    graph = Graph(nodes, edges, "odd")
    for method in ("random", "chunk", "stream", "metis"):
        assert_same_graph(stitch(cut(graph, Cut(3, method=method), tmp_path / method)), graph)


def test_the_graph_itself_is_no_target(tmp_path):
    graph = directed_graph().save(tmp_path / "g")
    with refused("file-exists"):
        cut(graph, Cut(2), tmp_path / "g", force=True)
    assert Graph.open(tmp_path / "g").num_nodes == graph.num_nodes


def _with(graph, indptr=None, indices=None, train=None):
    edges = EdgeSet(graph.indptr if indptr is None else indptr, graph.indices if indices is None else indices)
    splits = {"train": graph.split("train") if train is None else train}
    return Graph({"node": NodeSet(graph.num_nodes, {}, splits)}, {("node", "to", "node"): edges}, "made")


def test_damaged_lists_are_found_before_a_kernel_reads_them(tmp_path):
    graph = directed_graph()
    for value in (2_000_000_000, -5):
        indices = graph.indices.copy()
        indices[100] = value
        with refused(f"damaged-file indices node__to__node {value} 100"):
            cut(_with(graph, indices=indices), Cut(2), tmp_path / "p")
    with refused("damaged-file"):
        cut(_with(graph, indices=graph.indices[::-1].copy()), Cut(2), tmp_path / "p")
    indptr = graph.indptr.copy()
    indptr[7] = 10**12
    with refused("damaged-file 1000000000000 8"):
        cut(_with(graph, indptr=indptr), Cut(2), tmp_path / "p")
    with refused("damaged-file split.train node 1000000 0"):
        cut(_with(graph, train=np.array([10**6])), Cut(2), tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_damaged_ranges_are_refused(tmp_path):
    cut(directed_graph(), Cut(2), tmp_path / "p")
    document = tmp_path / "p" / "partition.json"
    text = json.loads(document.read_text())
    text["node_types"]["node"]["ranges"][0][1] = 10**6
    document.write_text(json.dumps(text))
    with refused("damaged-file"):
        open_partition(tmp_path / "p")


def test_new_ids_invert_original(tmp_path):
    result = cut(directed_graph(), Cut(4, 2), tmp_path / "p")
    original = result.original()
    np.testing.assert_array_equal(result.new_ids(original), np.arange(len(original)))
    np.testing.assert_array_equal(np.sort(original), np.arange(len(original)))
    with refused(f"id-out-of-range 0..{len(original) - 1}"):
        result.new_ids(np.array([len(original)]))


@pytest.mark.parametrize("in_order", [True, False])
def test_new_ids_of_few_vertices(tmp_path, monkeypatch, in_order):
    """They are searched for, and nobody makes the inverse, unless another tool has written them in another order."""
    result = cut(directed_graph(), Cut(4, 2), tmp_path / "p")
    original, (first, last), made = np.array(result.original()), result.book.range(1), []
    if not in_order:
        original[first:last] = original[first:last][::-1]
        np.save(tmp_path / "p" / "original.npy", original)
    monkeypatch.setattr(folder, "index_dtype", lambda count: made.append(count) or np.int64)
    asked = original[np.array([[len(original) - 1, first + 1], [0, first + 1]])]
    found = open_partition(tmp_path / "p").new_ids(asked)
    np.testing.assert_array_equal(original[found], asked)
    assert found.dtype == np.int64 and bool(made) != in_order


def test_a_part_cannot_be_cut_again(tmp_path):
    cut(directed_graph(), Cut(2), tmp_path / "p")
    with refused("whole-graph-needed"):
        cut(Graph.open(tmp_path / "p" / "part0"), Cut(2), tmp_path / "q")


def test_reopened_partition_is_the_same(tmp_path):
    first = cut(directed_graph(), Cut(3), tmp_path / "p")
    again = open_partition(tmp_path / "p")
    assert again.document == first.document
    assert_same_graph(stitch(again), directed_graph())


def _fresh(factory):
    return factory.mktemp("cut") / "parts"
