"""Shared negatives that are true edges, against a search for every pair."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from link_graphs import true_pairs

from penstock import EdgeSet, Graph, NodeSet
from penstock.sampling.links import Positives, known_edges
from penstock.sampling.links.negatives import mask_true_edges
from random_graphs import graphs


@given(
    graphs(),
    st.integers(0, 999),
    st.integers(0, 9),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from(["destination", "source"]),
)
def test_masks_equal_a_search_for_every_pair(graph, seed, amount, group, k, end):
    rng = np.random.default_rng(seed)
    edge_type = graph.edge_types[seed % len(graph.edges)]
    edges = graph.edges[edge_type]
    held = edges.held_out["test"]
    known = known_edges(graph, edge_type, [held], reverse="none")
    ends = rng.integers(0, known.num_sources, amount), rng.integers(0, known.num_destinations, amount)
    vertices = rng.integers(0, known.candidates(end), (-(-amount // group), k))
    mask = rng.random((amount, k)) < 0.8
    before = mask.copy()
    clashes = mask_true_edges(known, Positives(*ends, np.zeros(amount, np.int64)), end, vertices, group, mask)
    true = true_pairs(edges) | set(map(tuple, held.tolist()))
    clash = np.zeros_like(mask)
    for i in range(amount):
        for j in range(k):
            other = int(vertices[i // group, j])
            pair = (int(ends[0][i]), other) if end == "destination" else (other, int(ends[1][i]))
            clash[i, j] = pair in true
    np.testing.assert_array_equal(mask, before & ~clash)
    assert clashes == (before & clash).sum()


def test_long_lists_are_searched_to_the_same_end():
    # One vertex that all others point to, and a single positive: its list is far longer than what is sought in it.
    count = 100
    indptr = np.concatenate([[0], np.full(count, count)])
    graph = Graph({"node": NodeSet(count)}, {("node", "to", "node"): EdgeSet(indptr, np.arange(count, dtype=np.int32))})
    known = known_edges(graph)
    one = Positives(np.array([42]), np.array([3]), np.array([0]))
    mask = np.ones((1, 3), bool)
    assert mask_true_edges(known, one, "destination", np.array([[0, 1, 0]]), 1, mask) == 2
    assert mask.tolist() == [[False, True, False]]
    to_hub = Positives(np.array([42]), np.array([0]), np.array([0]))
    mask = np.ones((1, 2), bool)
    assert mask_true_edges(known, to_hub, "source", np.array([[9, 9]]), 1, mask) == 2
    assert not mask.any()
