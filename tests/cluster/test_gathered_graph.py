"""The whole graph for a worker's GPU: how large its lists are, before any is read."""

import numpy as np

from penstock import EdgeSet, Graph, NodeSet
from penstock.cluster.worker.cut_graph import CutGraph, RemoteEdges, list_bytes


def test_the_size_of_lists_is_known_before_they_are_read():
    random, kind = np.random.default_rng(0), ("node", "to", "node")
    indptr = np.concatenate([[0], np.cumsum(random.integers(0, 9, 50))]).astype(np.int64)
    lists = EdgeSet(indptr, random.integers(0, 50, indptr[-1]).astype(np.int32))
    whole = Graph({"node": NodeSet(50)}, {kind: lists}, "whole")
    none = np.empty(0, np.int64)
    cut = CutGraph({"node": NodeSet(50)}, {kind: RemoteEdges(none, none, total=whole.num_edges)}, {}, "cut", 0)
    assert list_bytes(cut) == lists.indptr.nbytes + lists.indices.nbytes


def test_the_size_of_several_relations_lists():
    """Each has bounds for its destinations, and numbers as wide as its sources need."""
    nodes, none = {"paper": NodeSet(50), "author": NodeSet(7)}, np.empty(0, np.int64)
    kinds = {("author", "writes", "paper"): 30, ("paper", "by", "author"): 40}
    cut = CutGraph(nodes, {kind: RemoteEdges(none, none, total=count) for kind, count in kinds.items()}, {}, "cut", 0)
    assert list_bytes(cut) == 8 * 51 + 4 * 30 + 8 * 8 + 4 * 40
