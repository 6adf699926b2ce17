"""Held-out edges: the split is a partition of the pairs, and nothing of a held-out pair stays in the lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_graphs import RATED, RATES, shop_graph, true_pairs

from penstock import EdgeSet, Graph
from penstock.sampling.links import find_reverse, split_edges, split_positions
from random_graphs import assert_same_graph, directed_graph, mesh_graph, power_law_graph
from refusals import refused

LINK = ("node", "to", "node")


def unordered(pairs):
    return {(min(pair), max(pair)) for pair in pairs}


def as_set(pairs):
    found = set(map(tuple, pairs.tolist()))
    assert len(found) == len(pairs)
    return found


@pytest.mark.parametrize("graph", [power_law_graph(300, 4), mesh_graph(15)], ids=["hubs", "mesh"])
def test_a_symmetric_graph_is_partitioned_by_undirected_edge(graph):
    split = split_edges(graph, ratios=(0.05, 0.10), seed=7)
    edges = split.edges[LINK]
    before, after = true_pairs(graph.edges[LINK]), true_pairs(edges)
    val, test = as_set(edges.held_out["val"]), as_set(edges.held_out["test"])
    whole = unordered(before)
    assert after == {(b, a) for a, b in after}
    assert unordered(after) | val | test == whole
    assert len(unordered(after)) + len(val) + len(test) == len(whole)
    assert len(val) == round(0.05 * len(whole))
    assert len(val) + len(test) == round(0.15 * len(whole))
    assert find_reverse(split, LINK) == "same"


@given(st.integers(0, 999))
def test_a_directed_graph_is_partitioned_by_pair_with_all_parallel_edges(seed):
    graph = directed_graph(40, 300, seed)
    edges = graph.edges[LINK]
    # A field that says what each edge is, to see that fields follow.
    names = edges.indices.astype(np.int64) * 40 + edges.destinations()
    graph = Graph(graph.nodes, {LINK: EdgeSet(edges.indptr, edges.indices, {"name": names})})
    done = split_edges(graph, seed=seed).edges[LINK]
    val, test = as_set(done.held_out["val"]), as_set(done.held_out["test"])
    assert true_pairs(done) | val | test == true_pairs(edges)
    assert not (true_pairs(done) & (val | test) or val & test)
    np.testing.assert_array_equal(done.fields["name"], done.indices.astype(np.int64) * 40 + done.destinations())
    held = {a * 40 + b for a, b in val | test}
    assert done.count == sum(name not in held for name in names.tolist())


def test_the_reverse_relation_loses_the_same_edges():
    graph = shop_graph()
    split = split_edges(graph, RATES, (0.1, 0.2))
    assert true_pairs(split.edges[RATED]) == {(b, a) for a, b in true_pairs(split.edges[RATES])}
    assert len(split.edges[RATES].held_out["val"]) == round(0.1 * len(true_pairs(graph.edges[RATES])))
    assert not split.edges[RATED].held_out
    alone = split_edges(graph, RATES, (0.1, 0.2), reverse="none")
    assert alone.edges[RATED] is graph.edges[RATED]


def test_one_way_edges_of_a_nearly_symmetric_graph_are_held_out_too():
    graph = directed_graph(60, 900, seed=1)
    assert find_reverse(graph, LINK) == "none"
    edges = split_edges(graph, ratios=(0.3, 0.3), reverse="same").edges[LINK]
    val, test = as_set(edges.held_out["val"]), as_set(edges.held_out["test"])
    before, after = true_pairs(graph.edges[LINK]), true_pairs(edges)
    assert val | test <= before
    assert unordered(after) | unordered(val | test) == unordered(before)
    assert not unordered(after) & unordered(val | test)
    assert len(unordered(val | test)) == len(val | test)


def test_splits_repeat_and_differ_by_seed(tmp_path):
    graph = power_law_graph(100, 4)
    first = split_edges(graph, seed=1)
    assert_same_graph(first, split_edges(graph, seed=1))
    other = split_edges(graph, seed=2).edges[LINK].held_out["test"]
    assert as_set(other) != as_set(first.edges[LINK].held_out["test"])
    first.save(tmp_path / "g")
    assert_same_graph(first, Graph.open(tmp_path / "g"))


@given(st.integers(0, 99), st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.5, 0.0), (1.0, 0, 0), (0.1, 0, 0.2), (0, 0, 1)]))
def test_positions_are_cut_into_exact_shares(seed, ratios):
    edges = directed_graph(40, 300, 3).edges[LINK]
    found = split_positions(edges, ratios, seed)
    assert list(found) == ["train", "val", "test"]
    assert [len(found[name]) for name in found] == [round(ratio * 300) for ratio in ratios]
    together = np.concatenate(list(found.values()))
    assert len(np.unique(together)) == len(together)
    for positions in found.values():
        assert (np.diff(positions) > 0).all()


def test_positions_of_an_edge_and_its_reverse_go_together():
    edges = power_law_graph(100, 4).edges[LINK]
    found = split_positions(edges, (0.6, 0.2, 0.2), reverse="same")
    for positions in found.values():
        pairs = set(zip(edges.indices[positions].tolist(), edges.destinations()[positions].tolist(), strict=True))
        assert pairs == {(b, a) for a, b in pairs}
    assert sum(map(len, found.values())) == edges.count


def test_only_eligible_positions_are_chosen():
    edges = directed_graph(40, 300, 3).edges[LINK]
    eligible = np.arange(0, 300, 3)
    found = split_positions(edges, eligible=eligible)
    assert [len(some) for some in found.values()] == [80, 10, 10]
    np.testing.assert_array_equal(np.sort(np.concatenate(list(found.values()))), eligible)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: split_edges(split_edges(mesh_graph(8))), "unsupported-combination"),
        (lambda: split_edges(mesh_graph(2)), "missing-data"),
        (lambda: split_edges(mesh_graph(8), ratios=(0.5, 0.5)), "value-out-of-range 1"),
        (lambda: split_edges(mesh_graph(8), ratios=(-0.1, 0.5)), "value-out-of-range 0"),
        (lambda: split_edges(shop_graph()), "option-missing"),
        (lambda: split_positions(mesh_graph(4).edges[LINK], (0.9, 0.9, 0)), "value-out-of-range 1"),
        (lambda: split_positions(mesh_graph(4).edges[LINK], reverse=RATED), "unsupported-combination"),
    ],
)
def test_mistakes_are_one_sentence(make, sentence):
    with refused(sentence):
        make()


def test_positions_to_split_are_positions():
    edges = directed_graph(40, 300, 1).edges[LINK]
    mask = np.arange(edges.count) % 3 > 0
    found = split_positions(edges, eligible=np.flatnonzero(mask)[::-1])
    together = np.concatenate(list(found.values()))
    np.testing.assert_array_equal(np.sort(together), np.flatnonzero(mask))
    with refused("wrong-type"):
        split_positions(edges, eligible=mask)
    for wrong in ([1, 1], [-1, 2], [0, edges.count]):
        with refused("id-out-of-range"):
            split_positions(edges, eligible=np.array(wrong))
