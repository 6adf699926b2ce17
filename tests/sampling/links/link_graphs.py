"""Graphs for tests of links, and their edges as plain Python sets."""

import numpy as np

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists

RATES, RATED = ("user", "rates", "item"), ("item", "rated-by", "user")


def true_pairs(edges):
    """(source, destination) of every edge."""
    return set(zip(edges.indices.tolist(), edges.destinations().tolist(), strict=True))


def shop_graph(users=40, items=25, amount=150, seed=0):
    """Users rate items, with parallel edges, and the exact reverse relation."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, users, amount), rng.integers(0, items, amount)
    stars = rng.integers(0, 5, amount)
    indptr, indices, order = build_lists(user, item, users, items, True)
    back = build_lists(item, user, items, users)
    edges = {RATES: EdgeSet(indptr, indices, {"stars": stars[order]}), RATED: EdgeSet(back[0], back[1])}
    return Graph({"user": NodeSet(users), "item": NodeSet(items)}, edges, "shop")


def complete_graph(count=6):
    """Every vertex an in-neighbour of every other, and no self loops."""
    source, destination = np.nonzero(~np.eye(count, dtype=bool))
    indptr, indices, _ = build_lists(source, destination, count, count)
    return Graph({"node": NodeSet(count)}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "complete")
