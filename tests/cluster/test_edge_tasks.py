"""What a worker reads of relations before it trains on the edges of one."""

from types import SimpleNamespace

import numpy as np

from penstock import Graph, NodeSet
from penstock.cluster.worker.edge_tasks import _relations_around
from training_graphs import lists_of

KIND = ("a", "to", "b")


def graph_of(*turned):
    """Edges between two types, and relations the other way round that have as many."""
    source, target = np.array([0, 1, 2, 3, 0]), np.array([1, 1, 0, 2, 2])
    edges = {KIND: lists_of(source, target, 4, 3)}
    for number, is_reverse in enumerate(turned):
        ends = (target, source) if is_reverse else (target, np.roll(source, 1))
        edges["b", f"back{number}", "a"] = lists_of(*ends, 3, 4)
    return Graph({"a": NodeSet(4), "b": NodeSet(3)}, edges)


def around(graph):
    """The relations that are kept, and those that were read for them."""
    read = []

    def lists(kind):
        read.append(kind[1])
        return graph.edges[kind]

    parts = SimpleNamespace(reader=SimpleNamespace(lists=lists))
    return [kind[1] for kind in _relations_around(parts, graph, KIND, None).edges], read


def test_only_the_reverse_is_kept_and_nothing_is_read_behind_it():
    assert around(graph_of(False, True, True)) == (["to", "back1"], ["to", "back0", "back1"])
    assert around(graph_of(False)) == (["to"], ["to", "back0"])
    assert around(graph_of()) == (["to"], ["to"])
