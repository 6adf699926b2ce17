"""Excluded edges are never drawn, and nobody else notices."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neighbourhoods import assert_edges_are_in_the_lists
from penstock.sampling import ALL, BatchKey, NeighbourSampler
from random_graphs import directed_graph, power_law_graph
from refusals import refused

KEY = BatchKey(1, 0, 0)


@given(
    st.integers(0, 99),
    st.lists(st.sampled_from([1, 3, 40, ALL]), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 60),
)
def test_excluded_edges_are_never_drawn_and_others_do_not_change(seed, fanouts, replace, amount):
    graph = directed_graph(80, 900, seed=1)
    (edges,) = graph.edges.values()
    rng = np.random.default_rng(seed)
    pairs = edges.edge_index()[:, rng.integers(0, 900, amount)]
    pairs = np.concatenate([pairs, rng.integers(0, 80, (2, 3))], 1)  # some that are no edges
    seeds = rng.permutation(80)[:20]
    sampler = NeighbourSampler(graph, fanouts, replace, totals=True, edges=True)
    batch, free = sampler.sample(seeds, KEY, exclude=pairs), sampler.sample(seeds, KEY)
    gone = set(map(tuple, pairs.T.tolist()))
    rest = np.array([pair not in gone for pair in map(tuple, edges.edge_index().T.tolist())])
    counts = np.add.reduceat(np.append(rest, 0), edges.indptr[:-1]) * (np.diff(edges.indptr) > 0)
    for hop, (block, fanout) in enumerate(zip(reversed(batch.blocks), fanouts, strict=True)):
        assert_edges_are_in_the_lists(block, edges, batch.vertices["node"], batch.vertices["node"])
        assert rest[block.edges].all()
        np.testing.assert_array_equal(block.totals, counts[batch.vertices["node"][: block.num_src]])
        for row in range(block.num_dst):
            v = batch.vertices["node"][row]
            most = counts[v] if fanout == ALL else fanout if replace else min(fanout, counts[v])
            drawn = block.edges[block.indptr[row] : block.indptr[row + 1]]
            assert len(drawn) == (most if counts[v] else 0)
            if v not in pairs[1] and hop == 0:  # later hops may know other vertices
                other = free.blocks[-1]
                np.testing.assert_array_equal(drawn, other.edges[other.indptr[row] : other.indptr[row + 1]])


def test_rows_draw_the_same_at_every_hop_when_nothing_of_theirs_is_excluded():
    graph = power_law_graph()
    sampler = NeighbourSampler(graph, [5, 4], edges=True)
    seeds = np.arange(100, 140)
    unread = np.array([[0], [1999]])
    (edges,) = graph.edges.values()
    pairs = np.stack([edges.indices[edges.indptr[100] : edges.indptr[100] + 1], [100]])
    batch, free = sampler.sample(seeds, KEY, exclude=pairs), sampler.sample(seeds, KEY)
    drawn = [_drawn_by_vertex(found) for found in (batch, free)]
    common = (drawn[0].keys() & drawn[1].keys()) - {(hop, 100) for hop in (0, 1)}
    assert len(common) > 100
    for row in common:
        np.testing.assert_array_equal(drawn[0][row], drawn[1][row])
    np.testing.assert_array_equal(sampler.sample(seeds, KEY, exclude=unread).vertices["node"], free.vertices["node"])


def _drawn_by_vertex(batch):
    found = {}
    for hop, block in enumerate(reversed(batch.blocks)):
        for row in range(block.num_dst):
            found[hop, int(batch.vertices["node"][row])] = block.edges[block.indptr[row] : block.indptr[row + 1]]
    return found


def test_bad_pairs_get_a_sentence():
    sampler = NeighbourSampler(directed_graph(), [2])
    seeds = np.arange(3)
    for pairs in (np.zeros((3, 2), int), np.zeros(2, int), np.zeros((2, 2))):
        with refused("shape-mismatch [2 m]"):
            sampler.sample(seeds, KEY, exclude=pairs)
    with refused("id-out-of-range 0..1499"):
        sampler.sample(seeds, KEY, exclude=np.array([[0], [1500]]))
    with refused("id-out-of-range 0..1499"):
        sampler.sample(seeds, KEY, exclude=np.array([[-1], [0]]))
    nothing = sampler.sample(seeds, KEY, exclude=np.empty((2, 0)))
    np.testing.assert_array_equal(nothing.vertices["node"], sampler.sample(seeds, KEY).vertices["node"])
