"""Graphs and checks for tests of neighbour samplers."""

import numpy as np

from penstock import EdgeSet, Graph, NodeSet


def stars(copies, times=None, weights=None, leaves=60, seed=0):
    """`copies` vertices with one and the same in-list of `leaves`: rows draw apart, so that one batch is many trials.

    Returns the graph, its centres and the leaves. Leaves have a value `h`; edges a weight `w` and a time `t`, leaves
    the same time `t`.
    """
    rng = np.random.default_rng(seed)
    weights = (
        (rng.random(leaves) ** 4 + 0.01).astype(np.float32) if weights is None else np.asarray(weights, np.float32)
    )
    times = rng.integers(0, 100, leaves) if times is None else np.asarray(times)
    count = copies + leaves
    indptr = np.minimum(np.arange(count + 1), copies) * leaves
    indices = np.tile(np.arange(copies, count), copies).astype(np.int32)
    fields = {"w": np.tile(weights, copies), "t": np.tile(times, copies)}
    centres = np.zeros(copies, times.dtype)
    nodes = NodeSet(count, {"h": rng.normal(1, 1, count), "t": np.concatenate([centres, times])})
    graph = Graph({"node": nodes}, {("node", "to", "node"): EdgeSet(indptr, indices, fields)}, "stars")
    return graph, np.arange(copies), np.arange(copies, count)


def estimates(batch, values):
    """What the innermost block says of every seed's whole list: the sum and the mean of `values`."""
    block = batch.blocks[-1]
    drawn = values[batch.vertices[batch.node_type][block.indices]]
    totals = block.totals[: block.num_dst].astype(np.float64)
    if block.weights is None:
        mean = per_row(block, drawn) / np.maximum(np.diff(block.indptr), 1)
        return mean * totals, mean
    total = per_row(block, drawn * block.weights)
    return total, total / np.maximum(totals, 1e-30)


def per_row(block, of_edges):
    """Sums of something per edge by destination row."""
    return np.bincount(block.destinations(), of_edges, minlength=block.num_dst)


def assert_unbiased(trials, exact):
    """The mean of independent trials is within five standard errors (and rounding) of the truth."""
    error = np.std(trials) / np.sqrt(len(trials))
    assert abs(np.mean(trials) - exact) <= 5 * error + 1e-5 * abs(exact), (np.mean(trials), exact, error)


def same_batch(a, b):
    """Equal in every array of every type and relation."""
    assert list(a.vertices) == list(b.vertices)
    for name in a.vertices:
        np.testing.assert_array_equal(a.vertices[name], b.vertices[name])
    for left, right in zip(a.blocks, b.blocks, strict=True):
        assert left.has_lists == right.has_lists
        assert left.src_counts == right.src_counts
        assert left.dst_counts == right.dst_counts
        assert list(left.relations) == list(right.relations)
        for kind, block in left.relations.items():
            same_block(block, right.relations[kind])


def same_arrays(a, b):
    """Equal arrays by node type."""
    assert list(a) == list(b)
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name])


def same_block(a, b):
    assert a.num_src == b.num_src
    for name in ("indptr", "indices", "weights", "totals", "edges"):
        left, right = getattr(a, name), getattr(b, name)
        assert (left is None) == (right is None), name
        if left is not None:
            np.testing.assert_array_equal(left, right, err_msg=name)


def assert_edges_are_in_the_lists(block, edges, sources, destinations):
    """Every drawn edge stands at its position in its destination's list. Needs a sampler with `edges=True`."""
    rows = block.destinations()
    np.testing.assert_array_equal(edges.indices[block.edges], sources[block.indices])
    readers = destinations[rows].astype(np.int64)
    assert (edges.indptr[readers] <= block.edges).all()
    assert (block.edges < edges.indptr[readers + 1]).all()


def lists_weighed(edges, field, by_weight, device):
    """The weights of a relation's edges on a device; None without a field."""
    import torch

    from penstock.sampling.device.hops import Weighed

    def there(array):
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return None if field is None else Weighed.of(edges, field, by_weight, there, there)
