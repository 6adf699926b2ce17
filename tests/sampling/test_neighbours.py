"""Neighbour sampling: valid, repeatable on any thread and any cut, and even."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neighbourhoods import assert_edges_are_in_the_lists
from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.hashing import seed_of
from penstock.sampling import BatchKey, NeighbourSampler
from random_graphs import directed_graph, graphs, power_law_graph
from refusals import refused

KEY = BatchKey(0, 0, 0)


def same(a, b):
    np.testing.assert_array_equal(a.vertices["node"], b.vertices["node"])
    for left, right in zip(a.blocks, b.blocks, strict=True):
        np.testing.assert_array_equal(left.indptr, right.indptr)
        np.testing.assert_array_equal(left.indices, right.indices)


@given(
    st.lists(st.sampled_from([1, 2, 5, 40, -1]), min_size=1, max_size=3),
    st.integers(1, 30),
    st.booleans(),
    st.integers(0, 9),
)
def test_batches_keep_the_contract(fanouts, amount, replace, seed):
    graph = directed_graph(300, 3000, seed=1)
    seeds = np.random.default_rng(seed).permutation(300)[:amount]
    batch = NeighbourSampler(graph, fanouts, replace).sample(seeds, BatchKey(seed, 1, 2))
    np.testing.assert_array_equal(batch.vertices["node"][:amount], seeds)
    assert len(np.unique(batch.vertices["node"])) == len(batch.vertices["node"])
    assert batch.blocks[-1].num_dst == amount
    assert batch.blocks[0].num_src == len(batch.vertices["node"])
    for outer, inner in zip(batch.blocks[:-1], batch.blocks[1:], strict=True):
        assert outer.num_dst == inner.num_src
    for block, fanout in zip(reversed(batch.blocks), fanouts, strict=True):
        for row in range(block.num_dst):
            v = batch.vertices["node"][row]
            neighbours = graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
            drawn = batch.vertices["node"][block.indices[block.indptr[row] : block.indptr[row + 1]]]
            if fanout < 0 or (len(neighbours) <= fanout and not replace):
                np.testing.assert_array_equal(drawn, neighbours)
                continue
            assert len(drawn) == (fanout if len(neighbours) else 0)
            assert set(drawn) <= set(neighbours)
            if not replace:  # no list entry twice; parallel edges may give a vertex twice
                values, counts = np.unique(drawn, return_counts=True)
                there = dict(zip(*np.unique(neighbours, return_counts=True), strict=True))
                assert all(count <= there[value] for value, count in zip(values, counts, strict=True))


def test_the_same_batches_on_any_number_of_threads():
    sampler = NeighbourSampler(power_law_graph(), [5, 4, 3])
    seeds = np.random.default_rng(0).permutation(2000).reshape(40, 50)
    alone = [sampler.sample(rows, BatchKey(7, 0, i)) for i, rows in enumerate(seeds)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda i: sampler.sample(seeds[i], BatchKey(7, 0, i)), range(40)))
    for a, b in zip(alone, together, strict=True):
        same(a, b)


def test_keys_make_batches_differ():
    sampler = NeighbourSampler(power_law_graph(), [3])
    seeds = np.arange(100)
    first = sampler.sample(seeds, KEY)
    same(first, sampler.sample(seeds, KEY))
    for key in (BatchKey(1, 0, 0), BatchKey(0, 1, 0), BatchKey(0, 0, 1)):
        other = sampler.sample(seeds, key)
        assert not np.array_equal(first.vertices["node"], other.vertices["node"])


@pytest.mark.covering(1)
@pytest.mark.parametrize("fanout", [3, 40])
@pytest.mark.parametrize("replace", [False, True])
def test_every_neighbour_is_equally_likely(fanout, replace):
    graph = power_law_graph()
    v = int(np.argmax(np.diff(graph.indptr)))
    degree = int(graph.indptr[v + 1] - graph.indptr[v])
    sampler = NeighbourSampler(graph, [fanout], replace)
    counts = np.zeros(graph.num_nodes)
    rounds = 4000
    for batch in range(rounds):
        np.add.at(counts, sampler.sample(np.array([v]), BatchKey(0, 0, batch)).vertices["node"][1:], 1)
    drawn = counts[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]]
    if replace:  # repeats collapse into one row: the chance to be there at all
        chance = 1 - (1 - 1 / degree) ** fanout
    else:
        chance = fanout / degree
    spread = np.sqrt(rounds * chance * (1 - chance))
    assert abs(drawn - rounds * chance).max() < 5 * spread


def test_the_estimate_of_a_mean_is_right():
    """Averaging over many batches gives the full neighbourhood's mean."""
    graph = power_law_graph()
    values = np.random.default_rng(0).random(graph.num_nodes)
    sampler = NeighbourSampler(graph, [4])
    hubs = np.argsort(-np.diff(graph.indptr))[:20]
    total = np.zeros(20)
    rounds = 3000
    for batch in range(rounds):
        found = sampler.sample(hubs, BatchKey(3, 0, batch))
        block = found.blocks[0]
        drawn = values[found.vertices["node"][block.indices]].reshape(20, 4)
        total += drawn.mean(1)
    exact = [values[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]].mean() for v in hubs]
    np.testing.assert_allclose(total / rounds, exact, atol=5 * 0.29 / np.sqrt(4 * rounds))


def test_original_numbers_name_vertices_in_the_hash(tmp_path):
    """A renumbered graph whose lists keep their order gives the same batch under other names."""
    from penstock.partition import Cut, cut

    graph = power_law_graph()
    whole = NeighbourSampler(graph, [5, 5])
    parts = cut(graph, Cut(1, 3), tmp_path / "p")
    original = np.asarray(parts.original())
    relabelled = NeighbourSampler(parts.part(0), [5, 5], original=original)
    seeds = np.arange(0, 2000, 40)
    a, b = whole.sample(seeds, KEY), relabelled.sample(parts.new_ids(seeds), KEY)
    np.testing.assert_array_equal(a.vertices["node"], original[b.vertices["node"]])
    np.testing.assert_array_equal(a.blocks[0].indices, b.blocks[0].indices)


def test_pyg_sees_every_vertex_sampled_once():
    batch = NeighbourSampler(directed_graph(), [4, 3]).sample(np.arange(20), KEY)
    data = batch.to_pyg()
    assert data.batch_size == 20
    np.testing.assert_array_equal(data.n_id.numpy(), batch.vertices["node"])
    received = np.bincount(data.edge_index[1].numpy(), minlength=len(batch.vertices["node"]))
    inner, outer = batch.blocks[1], batch.blocks[0]
    np.testing.assert_array_equal(received[:20], np.diff(inner.indptr))
    np.testing.assert_array_equal(received[20 : outer.num_dst], np.diff(outer.indptr)[20:])
    assert received[outer.num_dst :].sum() == 0


def test_what_a_key_draws_never_changes():
    """Runs must be repeatable with later releases: these are the vertices that draws of either version have."""
    indptr, indices = np.arange(101) * 50, (np.arange(5000) % 50 * 2).astype(np.int32)
    graph = Graph({"node": NodeSet(100)}, {("node", "to", "node"): EdgeSet(indptr, indices)})
    seeds = np.array([3, 77])
    for version, apart, replaced, forty in (
        (1, [2, 80, 72, 78, 80, 82], [2, 82, 72, 82, 80, 82], 197494),
        (2, [2, 26, 92, 84, 54, 60], [2, 28, 92, 88, 54, 60], 174546),
    ):
        key = BatchKey(seed_of(1, version), 2, 3)
        for replace, expected in ((False, apart), (True, replaced)):
            batch = NeighbourSampler(graph, [3], replace).sample(seeds, key)
            assert batch.vertices["node"][batch.blocks[0].indices].tolist() == expected
        batch = NeighbourSampler(graph, [40]).sample(seeds, key)
        assert int(batch.vertices["node"][batch.blocks[0].indices].astype(int) @ np.arange(80)) == forty


def test_totals_and_edges_come_where_asked_for():
    graph = directed_graph()
    seeds = np.arange(40)
    bare = NeighbourSampler(graph, [4, 3]).sample(seeds, KEY)
    full = NeighbourSampler(graph, [4, 3], totals=True, edges=True).sample(seeds, KEY)
    same(bare, full)
    assert all(block.totals is None and block.edges is None and block.weights is None for block in bare.blocks)
    degrees = np.diff(graph.indptr)[full.vertices["node"]]
    (edges,) = graph.edges.values()
    for block in full.blocks:
        assert block.totals.dtype == np.float32
        np.testing.assert_array_equal(block.totals, degrees[: block.num_src])
        assert_edges_are_in_the_lists(block, edges, full.vertices["node"], full.vertices["node"])
    assert full.blocks[0].totals.base is full.blocks[1].totals.base
    assert (full.key, full.node_type) == (KEY, "node")


@given(graphs(max_types=1), st.sampled_from([1, 3, 40, -1]), st.booleans(), st.sampled_from([None, "weight"]))
def test_random_graphs_are_sampled_from_their_lists(graph, fanout, replace, weight):
    kind = graph.edge_types[0]
    only = Graph(graph.nodes, {kind: graph.edges[kind]})
    seeds = np.arange(only.num_nodes)[::-1]
    batch = NeighbourSampler(only, [fanout, 2], replace, weight, edges=True).sample(seeds, KEY)
    (vertices,) = batch.vertices.values()
    for block in batch.blocks:
        assert_edges_are_in_the_lists(block, graph.edges[kind], vertices, vertices)


def test_bad_requests_get_a_sentence():
    graph = directed_graph()
    for fanouts in ([], [0], [5, -2]):
        with refused("value-out-of-range"):
            NeighbourSampler(graph, fanouts)
    sampler = NeighbourSampler(graph, [2])
    with refused("duplicate 7"):
        sampler.sample(np.array([7, 3, 7]), KEY)
    assert len(sampler.sample(np.array([7, 3]), KEY).seeds["node"]) == 2  # and the next batch is not spoilt
    with refused("id-out-of-range"):
        sampler.sample(np.array([graph.num_nodes]), KEY)
    for seeds in (np.array([0.5]), np.ones(3, bool), np.zeros((2, 2), int)):
        with refused("shape-mismatch"):
            sampler.sample(seeds, KEY)
    with refused("shape-mismatch 1,500 3"):
        NeighbourSampler(graph, [2], original=np.arange(3))
    with refused("missing-data"):
        NeighbourSampler(Graph({"node": NodeSet(3)}, {}), [2])
    part = NodeSet(3, total=9)
    lists = EdgeSet(np.array([0, 1, 2, 3]), np.array([8, 7, 6], np.int32))
    with refused("whole-graph-needed"):
        NeighbourSampler(Graph({"node": part}, {("node", "to", "node"): lists}), [2])
