"""Graphs that are cut and sampled whole and in parts, and the comparison of both."""

from dataclasses import replace

import numpy as np

from neighbourhoods import same_arrays, same_batch
from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists
from penstock.partition import Cut, cut
from penstock.sampling import BatchKey, NeighbourSampler, TypedNeighbourSampler

KEY = BatchKey(3, 1, 4)


def plain_graph(count=300, edges=6000, seed=0):
    """One type; hubs, self loops, parallel edges and vertices without lists; a quarter of the weights `w` are 0."""
    rng = np.random.default_rng(seed)
    sources, targets = (rng.random(edges) ** 2 * count).astype(int), (rng.random(edges) ** 2 * count).astype(int)
    return Graph(
        {"node": NodeSet(count)}, {("node", "to", "node"): _edges(rng, sources, targets, count, count)}, "plain"
    )


def typed_graph(seed=0):
    """Three types, one of them without a relation that leads to it, and two relations between the same types."""
    rng = np.random.default_rng(seed)
    counts = {"user": 120, "item": 70, "tag": 9}
    edges = {}
    for kind, amount in (
        (("user", "buys", "item"), 900),
        (("item", "bought", "user"), 900),
        (("item", "seen", "user"), 300),
        (("tag", "on", "item"), 150),
    ):
        ends = counts[kind[0]], counts[kind[2]]
        edges[kind] = _edges(rng, rng.integers(0, ends[0], amount), rng.integers(0, ends[1], amount), *ends)
    return Graph({name: NodeSet(count) for name, count in counts.items()}, edges, "typed")


def _edges(rng, sources, targets, num_sources, num_targets):
    indptr, indices, _ = build_lists(sources, targets, num_sources, num_targets)
    weights = (rng.random(len(indices)) * (rng.random(len(indices)) > 0.25)).astype(np.float32)
    return EdgeSet(indptr, indices, {"w": weights})


def cut_at_random(graph, parts, folder, trainers=1):
    """One part alone is not cut: it then has two trainers, which renumber it."""
    return cut(graph, Cut(parts, 2 if parts == 1 else trainers, "random", tolerance=2.0), folder / f"cut{parts}")


def whole_batch(graph, seeds, how, exclude=None):
    """Of the graph as it was; seeds and excluded edges by type and relation where it has several."""
    kind = NeighbourSampler if graph.is_homogeneous else TypedNeighbourSampler
    return kind(graph, **how).sample(seeds, KEY, exclude=exclude)


def parted_batch(partition, sampler, seeds, exclude=None):
    """Of the cut graph, for seeds and excluded edges in original numbers."""
    if isinstance(seeds, dict):
        seeds = {name: partition.new_ids(these, name) for name, these in seeds.items()}
        if exclude is not None:
            exclude = {
                kind: np.stack([partition.new_ids(pairs[0], kind[0]), partition.new_ids(pairs[1], kind[2])])
                for kind, pairs in exclude.items()
            }
    else:
        seeds, exclude = partition.new_ids(seeds), None if exclude is None else partition.new_ids(exclude)
    return sampler.sample(seeds, KEY, exclude=exclude)


def assert_same_but_for_numbers(partition, parted, whole):
    """Every array is equal once new numbers are original ones."""
    names = {name: partition.original(name)[these] for name, these in parted.vertices.items()}
    same_batch(replace(parted, vertices=names), whole)
    same_arrays(parted.names, whole.vertices)
    same_arrays({name: partition.original(name)[seeds] for name, seeds in parted.seeds.items()}, whole.seeds)


def some_edges(edges, amount=40):
    """[2, m] of the lists, the longest ones among them."""
    pairs = edges.edge_index()
    return pairs[:, :: max(1, pairs.shape[1] // amount)].astype(np.int64)
