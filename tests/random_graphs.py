"""Random graphs for property tests: heterogeneous, with every irregularity that users bring."""

import numpy as np
from hypothesis import strategies as st

from penstock import EdgeSet, Graph, NodeSet, StringIds
from penstock.graph.csr import build_lists


@st.composite
def graphs(draw, max_types=3, max_nodes=30, min_nodes=2):
    """Several types and relations; ids of both kinds, fields, splits, self loops, parallel edges, isolated vertices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = [f"t{i}" for i in range(draw(st.integers(1, max_types)))]
    nodes = {name: _nodes(rng, draw(st.integers(min_nodes, max_nodes)), i) for i, name in enumerate(names)}
    edges = {}
    for i in range(draw(st.integers(1, 4))):
        source, target = rng.choice(names), rng.choice(names)
        amount = draw(st.integers(0, 80))
        edges[(str(source), f"r{i}", str(target))] = _edges(rng, nodes[source].count, nodes[target].count, amount)
    return Graph(nodes, edges, "random", origin={"from": "a test"})


def _nodes(rng, count, kind):
    ids = [None, rng.permutation(count * 3)[:count].astype(np.int64), StringIds.of([f"ü{k * 7}" for k in range(count)])]
    chosen = ids[kind % 3]
    fields = {"x": rng.random((count, 3), np.float32), "y": rng.integers(-1, 4, count)}
    order = rng.permutation(count)
    splits = {"train": np.sort(order[: count // 2]), "val": np.sort(order[count // 2 : count // 2 + 1])}
    return NodeSet(count, fields if kind != 1 else {}, splits if kind == 0 else {}, chosen)


def _edges(rng, sources, targets, amount):
    src, dst = rng.integers(0, sources, amount), rng.integers(0, targets, amount)
    indptr, indices, order = build_lists(src, dst, sources, targets, True)
    fields = {"weight": rng.random(amount).astype(np.float32)[order], "time": rng.integers(0, 99, amount)[order]}
    pairs = np.stack([rng.integers(0, sources, 5), rng.integers(0, targets, 5)], 1)
    return EdgeSet(indptr, indices, fields, {"test": pairs})


def assert_same_graph(a, b):
    """Equal in every array, dtype, id and split."""
    assert a.name == b.name
    assert a.origin == b.origin
    assert a.node_types == b.node_types
    assert a.edge_types == b.edge_types
    for name, left in a.nodes.items():
        right = b.nodes[name]
        assert left.count == right.count
        assert left.categories == right.categories
        _assert_same_arrays(left.fields, right.fields)
        _assert_same_arrays(left.splits, right.splits)
        assert (left.ids is None) == (right.ids is None)
        if left.ids is not None:
            assert left.ids.tolist() == right.ids.tolist()
    for edge_type, left in a.edges.items():
        right = b.edges[edge_type]
        _assert_same_arrays({"p": left.indptr, "i": left.indices}, {"p": right.indptr, "i": right.indices})
        _assert_same_arrays(left.fields, right.fields)
        _assert_same_arrays(left.held_out, right.held_out)


def _assert_same_arrays(a, b):
    assert list(a) == list(b)
    for key in a:
        assert a[key].dtype == b[key].dtype, key
        np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def power_law_graph(count=2000, degree=8, seed=0):
    """A symmetric graph with hubs: preferential attachment by repeated endpoints."""
    rng = np.random.default_rng(seed)
    ends = list(range(degree))
    src, dst = [], []
    for v in range(degree, count):
        for u in {ends[k] for k in rng.integers(0, len(ends), degree)}:
            src += [u, v]
            dst += [v, u]
            ends += [u, v]
    return _homogeneous(np.array(src), np.array(dst), count)


def mesh_graph(side=40):
    """A square grid: the graph on which a partitioner is nearly perfect already."""
    grid = np.arange(side * side).reshape(side, side)
    a = np.concatenate([grid[:, :-1].ravel(), grid[:-1].ravel()])
    b = np.concatenate([grid[:, 1:].ravel(), grid[1:].ravel()])
    return _homogeneous(np.concatenate([a, b]), np.concatenate([b, a]), side * side)


def directed_graph(count=1500, edges=9000, seed=0):
    """Uniform random directed edges, self loops and repeats included."""
    rng = np.random.default_rng(seed)
    return _homogeneous(rng.integers(0, count, edges), rng.integers(0, count, edges), count)


def _homogeneous(src, dst, count):
    indptr, indices, _ = build_lists(src, dst, count, count)
    train = np.arange(0, count, 3)
    nodes = NodeSet(count, {"x": np.arange(count, dtype=np.float32)[:, None]}, {"train": train})
    return Graph({"node": nodes}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "made")
