"""Sampling by time: nothing later than the seed, at any hop; a tree per seed."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neighbourhoods import assert_edges_are_in_the_lists, stars
from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists
from penstock.sampling import ALL, BatchKey, NeighbourSampler
from random_graphs import graphs
from refusals import refused

KEY = BatchKey(0, 0, 0)


def timed_graph(seed, count=60, edges=500, dtype=np.int64):
    rng = np.random.default_rng(seed)
    indptr, indices, _ = build_lists(rng.integers(0, count, edges), rng.integers(0, count, edges), count, count)
    nodes = NodeSet(count, {"t": rng.integers(0, 50, count).astype(dtype)})
    fields = {"t": rng.integers(0, 50, edges).astype(dtype)}
    return Graph({"node": nodes}, {("node", "to", "node"): EdgeSet(indptr, indices, fields)})


def roots_of(batch):
    """The seed from which each row was reached; checks that no row is reached from two."""
    roots = np.full(len(batch.vertices["node"]), -1)
    roots[: len(batch.seeds["node"])] = np.arange(len(batch.seeds["node"]))
    for block in reversed(batch.blocks):
        reader = roots[block.destinations()]
        assert (reader >= 0).all()
        new = roots[block.indices] < 0
        roots[block.indices[new]] = reader[new]
        np.testing.assert_array_equal(roots[block.indices], reader)
    return roots


@given(
    st.integers(0, 99), st.lists(st.sampled_from([1, 3, 40, ALL]), min_size=1, max_size=3), st.booleans(), st.booleans()
)
def test_nothing_is_later_than_its_seed(seed, fanouts, replace, of_nodes):
    graph = timed_graph(seed)
    rng = np.random.default_rng(seed)
    seeds, times = rng.integers(0, 60, 12), rng.integers(-5, 55, 12)  # seeds repeat
    sampler = NeighbourSampler(graph, fanouts, replace, time="node:t" if of_nodes else "t", totals=True, edges=True)
    batch = sampler.sample(seeds, KEY, times=times)
    roots = roots_of(batch)
    edges, node_times = graph.edges["node", "to", "node"], graph.nodes["node"].fields["t"]
    assert len(np.unique(roots * 60 + batch.vertices["node"])) == len(roots)
    np.testing.assert_array_equal(batch.vertices["node"][:12], seeds)
    for block, fanout in zip(reversed(batch.blocks), fanouts, strict=True):
        assert_edges_are_in_the_lists(block, edges, batch.vertices["node"], batch.vertices["node"])
        drawn_times = node_times[edges.indices[block.edges]] if of_nodes else edges.fields["t"][block.edges]
        assert (drawn_times <= times[roots[block.destinations()]]).all()
        for row in range(block.num_src):
            v = batch.vertices["node"][row]
            listed = slice(edges.indptr[v], edges.indptr[v + 1])
            known = node_times[edges.indices[listed]] if of_nodes else edges.fields["t"][listed]
            admissible = (known <= times[roots[row]]).sum()
            assert block.totals[row] == admissible
            if row < block.num_dst:
                drawn = block.indptr[row + 1] - block.indptr[row]
                most = admissible if fanout == ALL else fanout if replace else min(fanout, admissible)
                assert drawn == (most if admissible else 0)


def test_a_tree_does_not_depend_on_the_order_of_others_times():
    """Seeds of one vertex at two times: the later sees at least what the earlier could."""
    graph = timed_graph(3)
    sampler = NeighbourSampler(graph, [ALL, ALL], time="t")
    batch = sampler.sample(np.array([7, 7, 7]), KEY, times=np.array([10, 30, 30]))
    roots = roots_of(batch)
    trees = [set(batch.vertices["node"][roots == k].tolist()) for k in range(3)]
    assert trees[0] <= trees[1] == trees[2]
    assert len(trees[0]) < len(trees[1])


def test_two_seeds_of_one_vertex_draw_apart():
    graph, centres, _ = stars(1)
    batch = NeighbourSampler(graph, [4], time="t").sample(np.repeat(centres, 200), KEY, times=np.full(200, 99))
    sets = {tuple(sorted(row)) for row in batch.vertices["node"][batch.blocks[0].indices].reshape(200, 4)}
    assert len(sets) > 190


def test_whole_and_fractional_times_compare_exactly():
    late = 2**60
    graph, centres, leaves = stars(1, times=[late, late + 1, late + 2], leaves=3)
    batch = NeighbourSampler(graph, [ALL], time="t").sample(centres, KEY, times=np.array([late + 1]))
    np.testing.assert_array_equal(batch.vertices["node"][1:], leaves[:2])
    graph, centres, leaves = stars(1, times=[1, 2, 3], leaves=3)
    sampler = NeighbourSampler(graph, [ALL], time="t")
    for time, amount in ((2.5, 2), (2.0, 2), (1.99, 1), (-np.inf, 0), (np.inf, 3)):
        assert sampler.sample(centres, KEY, times=np.array([time])).num_edges == amount
    graph, centres, leaves = stars(1, times=[1.0, np.nan, 2.5], leaves=3)
    batch = NeighbourSampler(graph, [ALL], time="t").sample(centres, KEY, times=np.array([2.5]))
    np.testing.assert_array_equal(batch.vertices["node"][1:], leaves[[0, 2]])


@settings(max_examples=10)
@given(graphs(max_types=1))
def test_random_graphs_at_the_end_of_time_are_whole(graph):
    """With all edges admissible every tree of one hop is the whole list."""
    if not graph.is_homogeneous:
        return
    (edges,) = graph.edges.values()
    seeds = np.arange(len(edges.indptr) - 1)
    batch = NeighbourSampler(graph, [ALL], time="time").sample(seeds, KEY, times=np.full(len(seeds), 99))
    np.testing.assert_array_equal(np.diff(batch.blocks[0].indptr), np.diff(edges.indptr))
    np.testing.assert_array_equal(batch.vertices[batch.node_type][batch.blocks[0].indices], edges.indices)


def test_bad_times_get_a_sentence():
    graph, centres, _ = stars(3)
    sampler = NeighbourSampler(graph, [2], time="t")
    with refused("option-missing times"):
        sampler.sample(centres, KEY)
    with refused("shape-mismatch 2 3"):
        sampler.sample(centres, KEY, times=np.zeros(2))
    with refused("not-finite"):
        sampler.sample(centres, KEY, times=np.array([1, np.nan, 2]))
    with refused("unsupported-combination"):
        NeighbourSampler(graph, [2]).sample(centres, KEY, times=np.zeros(3))
    for time in ("when", "node:when"):
        with refused("field-missing when"):
            NeighbourSampler(graph, [2], time=time)
    graph.edges["node", "to", "node"].fields["words"] = np.full(180, "now")
    with refused("wrong-type"):
        NeighbourSampler(graph, [2], time="words")
