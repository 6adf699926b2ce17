"""What every batch of a homogeneous graph keeps, whoever sampled it, and how estimators are judged."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import strategies as st

from penstock import EdgeSet, Graph, NodeSet
from random_graphs import directed_graph


def assert_valid_batch(graph, batch):
    """Rows are numbered once, blocks fit each other, every edge is one of the graph's, weights and totals fit."""
    assert len(np.unique(batch.vertices["node"])) == len(batch.vertices["node"])
    np.testing.assert_array_equal(batch.vertices["node"][: len(batch.seeds["node"])], batch.seeds["node"])
    assert batch.blocks[-1].num_dst == len(batch.seeds["node"])
    assert batch.blocks[0].num_src == len(batch.vertices["node"])
    for outer, inner in zip(batch.blocks[:-1], batch.blocks[1:], strict=True):
        assert outer.num_dst == inner.num_src
    if batch.seed_weights is not None:
        assert batch.seed_weights.shape == batch.seeds["node"].shape
        assert (batch.seed_weights > 0).all()
    for block in batch.blocks:
        _assert_valid_block(graph, batch.vertices["node"], block)


def _assert_valid_block(graph, vertices, block):
    assert block.num_dst <= block.num_src
    assert block.indptr[0] == 0
    assert (np.diff(block.indptr) >= 0).all()
    assert len(block.indices) == block.indptr[-1]
    assert block.indices.dtype == np.int32
    if block.weights is not None:
        assert block.weights.dtype == np.float32
        assert block.weights.shape == block.indices.shape
        assert (np.isfinite(block.weights) & (block.weights > 0)).all()
    assert block.totals.dtype == np.float32
    assert len(block.totals) >= block.num_dst
    np.testing.assert_array_equal(block.totals, np.diff(graph.indptr)[vertices[: len(block.totals)]])
    if block.edges is not None:
        np.testing.assert_array_equal(graph.indices[block.edges], vertices[block.indices])
    for row in range(block.num_dst):
        there = dict(zip(*np.unique(neighbours(graph, vertices[row]), return_counts=True), strict=True))
        drawn = vertices[block.indices[block.indptr[row] : block.indptr[row + 1]]]
        for vertex, times in zip(*np.unique(drawn, return_counts=True), strict=True):
            assert times <= there.get(vertex, 0), f"{vertex} -> {vertices[row]}"


def assert_same_batch(a, b):
    """Equal in every array."""
    np.testing.assert_array_equal(a.vertices["node"], b.vertices["node"])
    np.testing.assert_array_equal(a.seeds["node"], b.seeds["node"])
    assert (a.seed_weights is None) == (b.seed_weights is None)
    if a.seed_weights is not None:
        np.testing.assert_array_equal(a.seed_weights, b.seed_weights)
    for left, right in zip(a.blocks, b.blocks, strict=True):
        assert left.num_src == right.num_src
        for name in ("indptr", "indices", "weights", "totals"):
            x, y = getattr(left, name), getattr(right, name)
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_array_equal(x, y)


def assert_same_on_threads(sample, amount=24):
    """`sample(i)` of a fresh sampler gives the same batches on one thread, on two and on four."""
    alone = [sample(i) for i in range(amount)]
    for threads in (2, 4):
        with ThreadPoolExecutor(threads) as pool:
            for a, b in zip(alone, pool.map(sample, range(amount)), strict=True):
                assert_same_batch(a, b)


def assert_unbiased(estimates, exact, slack=0.0):
    """The mean over rounds (first axis) is within five standard errors of what is estimated, and they vary at all."""
    error = np.asarray(estimates).std(0, ddof=1) / np.sqrt(len(estimates))
    assert (error > 0).any(), "nothing was sampled"
    difference = np.abs(np.mean(estimates, 0) - exact)
    assert (difference <= 5 * error + slack + 1e-5 * np.abs(exact)).all(), (difference / np.maximum(error, 1e-12)).max()


def aggregate(block, values):
    """Weighted sum of every destination row: what estimates the sum over its whole list."""
    sums = np.zeros(block.num_dst)
    np.add.at(sums, block.destinations(), block.weights * values[block.indices])
    return sums


def exact_sums(graph, values):
    """The sum over every vertex's whole list."""
    sums = np.zeros(graph.num_nodes)
    edges = next(iter(graph.edges.values()))
    np.add.at(sums, edges.destinations(), values[edges.indices])
    return sums


def neighbours(graph, vertex):
    """The whole in-list of a vertex."""
    return graph.indices[graph.indptr[vertex] : graph.indptr[vertex + 1]]


def renumbered(graph, original):
    """The graph in which vertex i is what `original[i]` was; lists keep their order, as parts do."""
    new = np.argsort(original)
    lists = [new[neighbours(graph, v)] for v in original]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    edges = EdgeSet(indptr, np.concatenate(lists).astype(np.int32))
    return Graph({"node": NodeSet(graph.num_nodes)}, {("node", "to", "node"): edges}, "renumbered")


def two_relations():
    """A graph that only samplers of heterogeneous graphs take."""
    lists = directed_graph(10, 30)
    edges = EdgeSet(lists.indptr, lists.indices)
    return Graph({"node": NodeSet(10)}, {("node", "a", "node"): edges, ("node", "b", "node"): edges}, "two")


small_graphs = st.builds(directed_graph, st.integers(2, 25), st.integers(0, 120), st.integers(0, 1000))
"""Directed, with self loops, parallel edges and isolated vertices."""
