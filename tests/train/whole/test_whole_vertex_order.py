"""The order of a worker's rows: those that others read first, and neighbours near each other."""

import numpy as np

from penstock import Graph, NodeSet
from penstock.train.layerwise.host import Reach
from penstock.train.whole.shared import execution
from penstock.train.whole.shared.cut_plan import make_cut_plan
from penstock.train.whole.shared.levels import find_levels, search_order
from training_graphs import community_graph, lists_of, typed_graph
from whole_threads import train_in_threads


class OneCut:
    """A graph that one worker has alone."""

    rank, world = 0, 1

    def __init__(self, graph):
        self._graph, self.types, self.relations = graph, list(graph.nodes), list(graph.edges)
        self._sample = Reach(graph, [list(graph.edges)]).batches([list(graph.edges)])

    def own(self, node_type):
        return np.arange(self._graph.nodes[node_type].count)

    def ranks(self, node_type, vertices):
        return np.zeros(len(vertices), np.int64)

    def names(self, node_type, vertices):
        return np.asarray(vertices)

    def sample(self, number, rows):
        return self._sample(rows)

    def exchange(self, name, lists):
        return [list(lists[0])]


def shuffled_ring(count, seed=0):
    names = np.random.default_rng(seed).permutation(count)
    src, dst = np.concatenate([names, np.roll(names, 1)]), np.concatenate([np.roll(names, 1), names])
    return Graph({"node": NodeSet(count)}, {("node", "to", "node"): lists_of(src, dst, count, count)}, "ring")


def test_bins_read_little_more_than_their_own_rows():
    """A ring whose vertices are numbered at random: in the order of numbers a bin would read thrice its rows."""
    count, bins = 600, 6
    cut = OneCut(shuffled_ring(count))
    levels = find_levels(cut, cut, "step", 2, {"node": np.arange(count)}, True, None)
    plan = make_cut_plan(cut, cut, "step", levels, [bins, bins], True)
    for layer in plan.bins:
        assert sum(each.num_inputs for each in layer) <= count + 4 * bins


def test_every_vertex_of_every_type_has_a_place():
    graph = typed_graph()
    found = search_order(OneCut(graph), 0)
    places = np.concatenate([found[kind] for kind in graph.nodes])
    assert sorted(places.tolist()) == list(range(graph.num_nodes))


def test_rows_that_others_read_come_first(monkeypatch):
    plans, make = [], execution.make_cut_plan

    def made(*given):
        plans.append(make(*given))
        return plans[-1]

    monkeypatch.setattr(execution, "make_cut_plan", made)
    train_in_threads(community_graph(240, degree=1), 2, epochs=1, sampler="whole", layers=2, scope="all", threads=1)
    assert len(plans) == 2
    for level in (level for plan in plans for level in plan.levels[1:-1]):
        in_sums = [group.sums["node"].added.rows for group in level.sent if group.sums]
        sent = np.unique(np.concatenate([*(group.rows["node"] for group in level.sent), *in_sums]))
        np.testing.assert_array_equal(sent, np.arange(len(sent)))
        assert level.received and len(sent) < level.computed["node"]
