"""Batches of edges made by a device's kernels: those of the host, vertex for vertex."""

import numpy as np
import pytest
import torch

from interpreted_kernels import overflow_unchecked
from neighbourhoods import lists_weighed
from penstock.graph.csr import build_lists
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.pipeline.schedule import Position, Schedule
from penstock.sampling import NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.block import Purpose
from penstock.sampling.links import EdgeBatcher, InBatch, Joint, PairBatcher, Uniform, known_edges
from refusals import refused

pytestmark = pytest.mark.gpu
KIND = ("node", "to", "node")
SIZE, SEED = 40, 5
POLICIES = {
    "none": None,
    "own": Uniform(3),
    "own-filtered": Uniform(2, filtered=True),
    "own-of-both-ends": Uniform(2, "both", True),
    "own-sources": Uniform(1, "source"),
    "joint": Joint(9),
    "joint-of-both-ends": Joint(80, None, "both", True),
    "joint-in-groups": Joint(4, 16, "source", True),
    "in-batch": InBatch(),
    "in-batch-of-both-ends": InBatch("both", True),
}


@pytest.fixture(autouse=True)
def _quick_sums(monkeypatch):
    if not torch.cuda.is_available():
        overflow_unchecked(monkeypatch)


def small_graph(count=60, amount=100, symmetric=True, seed=0):
    """Parallel edges, self loops, hubs with long lists, and vertices without edges."""
    random = np.random.default_rng(seed)
    source = np.minimum(random.integers(0, count, amount), random.integers(0, count, amount))
    target = random.integers(0, count - 3, amount)
    if symmetric:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    indptr, indices, _ = build_lists(source, target, count, count)
    return Graph({"node": NodeSet(count)}, {KIND: EdgeSet(indptr, indices)}, "small")


class DrawnEdges:
    """A graph's edges as a device draws them, and the host's batches beside them."""

    def __init__(self, graph, batcher, items, device, fanouts=(4, 3), replace=False, weight=None):
        from penstock.sampling.device.epoch import DeviceEpoch
        from penstock.sampling.device.links import DrawnLinks

        self.schedule, self.batcher, self.items, self.device = Schedule(items, SIZE, SEED, 3), batcher, items, device
        self._weight = weight
        self._prepare(graph, DrawnLinks(batcher, items, SIZE), fanouts, replace)
        self.largest = self.program.largest_room(SIZE, graph.num_nodes, graph.num_edges)
        self.purposes = [*self.program.purposes, Purpose("dropout")]
        self.epoch = DeviceEpoch(len(items), SIZE, len(self.purposes), device)

    def _prepare(self, graph, seeds, fanouts, replace):
        from penstock.sampling.device.program import DeviceProgram, neighbour_rules

        (edges,) = graph.edges.values()
        self.topology = self._lists(edges)
        rules = neighbour_rules(fanouts, replace, self._weight is not None)
        self.program = DeviceProgram(rules, seeds=seeds)
        self.sampler = NeighbourSampler(graph, list(fanouts), replace, self._weight, totals=True)

    def _lists(self, edges):
        from penstock.sampling.device.hops import Topology

        weighed = lists_weighed(edges, self._weight, True, self.device)
        return Topology(*(torch.from_numpy(each).to(self.device) for each in (edges.indptr, edges.indices)), weighed)

    def slot(self, room=None):
        from penstock.sampling.device.typed import new_slot

        keys = len(self.purposes)
        return new_slot(self.topology, self.program, room or self.largest, self.device, keys, totals=True, turns=True)

    def begin(self, number):
        """Prepare an epoch; returns its planned batches."""
        from penstock.sampling.device.epoch import batch_keys, shuffled

        schedule, epoch = self.schedule, self.epoch
        names = torch.from_numpy(schedule.names.astype(np.int64)).to(self.device)
        epoch.order.copy_(shuffled(names, schedule.order_key(number)))
        epoch.keys.copy_(torch.from_numpy(batch_keys(SEED, number, schedule.batches, self.purposes)))
        epoch.cursor.zero_()
        return [each for each in schedule.from_position(Position(number, 0)) if each.key.epoch == number]

    def assert_same(self, slot, planned):
        """The slot's batch is the host's: edges, negatives, pairs, neighbourhoods, and sizes."""
        links = self.batcher.batch(planned.seeds, planned.key)
        host = self.sampler.sample(links.nodes["node"], planned.key, exclude=links.exclude)
        np.testing.assert_array_equal(host.vertices["node"], slot.vertices[: slot.known[-1]].cpu().numpy())
        np.testing.assert_array_equal(links.nodes["node"], slot.vertices[: slot.known[1]].cpu().numpy())
        for expected, block in zip(host.blocks, slot.blocks(), strict=True):
            rows, edges, sources = expected.num_dst + 1, expected.num_edges, expected.num_src
            np.testing.assert_array_equal(expected.indptr, block.indptr[:rows].cpu().numpy())
            np.testing.assert_array_equal(expected.indices, block.indices[:edges].cpu().numpy())
            np.testing.assert_array_equal(expected.totals[:sources], block.totals[:sources].cpu().numpy())
            if expected.weights is not None:
                np.testing.assert_array_equal(expected.weights, block.weights[:edges].cpu().numpy())
        self.assert_same_edges(slot, planned, host, links)

    def assert_same_edges(self, slot, planned, host, links):
        """The same edges, pairs and sizes."""
        host.links, seeds, size = links, slot.beginning, len(links)
        needed, sizes = slot.needed.tolist(), self.program.sizes(host)
        assert needed[::2] == sizes[::2]
        # Of several types, the rows after a hop stand for those after each of its draws.
        assert needed == sizes or (slot.room.types and all(a <= b for a, b in zip(needed, sizes, strict=True)))
        assert_same_pairs(links, seeds)
        np.testing.assert_array_equal(self.items[seeds.items[:size].cpu().numpy()], planned.seeds)
        assert seeds.sizes.tolist() == [size, links.num_pairs]


def assert_same_pairs(links, seeds):
    """The pairs that count, as rows, and those that do not."""
    size, width = len(links), seeds.rows.shape[1]
    sources, destinations, counts = links.ranking()
    columns = list(range(width))
    if width != counts.shape[1]:
        # In a smaller batch a whole batch's other edges are no negatives.
        ends = (counts.shape[1] - 1) // size
        columns = [0, *(1 + end * (width - 1) // ends + j for end in range(ends) for j in range(size))]
        assert not seeds.counts[:size, sorted(set(range(width)) - set(columns))].any()
    rows, others, ours = (each[:size, columns].cpu().numpy() for each in (seeds.rows, seeds.columns, seeds.counts))
    np.testing.assert_array_equal(counts, ours)
    np.testing.assert_array_equal(sources[counts], rows[counts])
    np.testing.assert_array_equal(destinations[counts], others[counts])
    assert seeds.counts[size:, 0].all() and not seeds.weights[size:].any()
    np.testing.assert_array_equal(seeds.weights[:size].cpu().numpy(), seeds.counts[:size].float().cpu().numpy())


def policies_in_graphs():
    """Each policy in a symmetric or a directed graph, in turns; `make test-long` and GPUs have the others, too."""
    for number, name in enumerate(POLICIES):
        for symmetric in (True, False):
            marks = [] if symmetric == (number % 2 == 0) else [pytest.mark.long]
            yield pytest.param(name, symmetric, id=f"{name}-{'symmetric' if symmetric else 'directed'}", marks=marks)


@pytest.mark.parametrize("name, symmetric", [*policies_in_graphs()])
def test_batches_are_the_hosts(device, name, symmetric):
    graph = small_graph(symmetric=symmetric)
    batcher = EdgeBatcher(graph, negatives=POLICIES[name])
    assert batcher.reverse == ("same" if symmetric else "none")
    drawn = DrawnEdges(graph, batcher, np.arange(0, graph.num_edges, 2), device)
    slot = drawn.slot()
    for number in (0, 2):
        for planned in drawn.begin(number):
            slot.draw(drawn.epoch)
            drawn.assert_same(slot, planned)
            assert not slot.skip.any()


def test_with_repeats_and_hubs_that_are_excluded_many_times(device):
    # Each of five vertices is in most edges, so that a list loses dozens of neighbours.
    graph = small_graph(5, 150)
    drawn = DrawnEdges(
        graph, EdgeBatcher(graph, negatives=Uniform()), np.arange(graph.num_edges), device, (32, 2), True
    )
    slot = drawn.slot()
    for planned in drawn.begin(1)[:3]:
        slot.draw(drawn.epoch)
        drawn.assert_same(slot, planned)


@pytest.mark.parametrize(
    "amount, fanouts, replace", [(150, (40, -1), False), (500, (33, 2), False), (150, (36, 2), True)]
)
def test_whole_lists_and_many_neighbours_without_what_is_excluded(device, amount, fanouts, replace):
    graph = small_graph(5, amount)
    items = np.arange(0, graph.num_edges, amount // 50)
    drawn = DrawnEdges(graph, EdgeBatcher(graph, negatives=Uniform()), items, device, fanouts, replace)
    slot = drawn.slot()
    for planned in drawn.begin(1)[:2]:
        slot.draw(drawn.epoch)
        drawn.assert_same(slot, planned)


def test_whole_lists_of_relations_without_what_is_excluded(device):
    graph = typed_lists()
    drawn = TypedEdges(graph, EdgeBatcher(graph, WRITES, Uniform()), np.arange(90), device, (-1, {WRITES: 40, BY: -1}))
    slot = drawn.slot()
    for planned in drawn.begin(0):
        slot.draw(drawn.epoch)
        drawn.assert_same(slot, planned)


@pytest.mark.parametrize("fanouts, replace", [((4, 2), False), ((1, -1), False), ((2, 3), True)])
def test_by_weight_without_excluded_edges(device, fanouts, replace):
    graph = small_graph(40, 160)
    (edges,) = graph.edges.values()
    edges.fields["w"] = np.random.default_rng(6).integers(0, 4, edges.count).astype(np.float32)
    batcher, items = EdgeBatcher(graph, negatives=Uniform()), np.arange(0, graph.num_edges, 3)
    drawn = DrawnEdges(graph, batcher, items, device, fanouts, replace, "w")
    slot = drawn.slot()
    for planned in drawn.begin(0)[:2]:
        slot.draw(drawn.epoch)
        drawn.assert_same(slot, planned)


def test_pairs_that_are_in_no_list(device):
    graph = small_graph()
    pairs = np.random.default_rng(3).integers(0, 60, (50, 2))
    known = known_edges(graph, KIND, [pairs])
    batcher = PairBatcher(graph, pairs, KIND, Uniform(2, filtered=True), known, "same")
    drawn = DrawnEdges(graph, batcher, np.arange(50), device)
    slot = drawn.slot()
    for planned in drawn.begin(0):
        slot.draw(drawn.epoch)
        drawn.assert_same(slot, planned)


def test_a_batch_that_lacks_room_says_how_much_it_needs(device):
    from penstock.sampling.device.block import Room
    from penstock.sampling.device.epoch import NEVER

    graph = small_graph()
    drawn = DrawnEdges(graph, EdgeBatcher(graph, negatives=Uniform(2)), np.arange(graph.num_edges), device)
    planned = drawn.begin(0)
    rows, edges = drawn.largest.rows, drawn.largest.edges
    small = drawn.slot(Room((SIZE, 30, *rows[2:]), edges))
    small.draw(drawn.epoch)
    links = drawn.batcher.batch(planned[0].seeds, planned[0].key)
    assert small.skip.all() and drawn.epoch.failed_at.item() == 0
    assert small.needed[1].item() == len(links.nodes["node"]) > 30
    drawn.epoch.failed_at.fill_(NEVER)
    drawn.epoch.cursor.zero_()
    slot = drawn.slot(drawn.largest)
    slot.draw(drawn.epoch)
    drawn.assert_same(slot, planned[0])


def test_negatives_need_two_vertices(device):
    graph = Graph({"node": NodeSet(1)}, {KIND: EdgeSet(np.array([0, 1]), np.array([0], np.int32))}, "loop")
    drawn = DrawnEdges(graph, EdgeBatcher(graph, negatives=Joint(1)), np.arange(1), device)
    with refused("missing-data"):
        drawn.slot()


# Edges in graphs of several types.

WRITES, BY, CITES, EDITS = (
    ("author", "writes", "paper"),
    ("paper", "by", "author"),
    ("paper", "cites", "paper"),
    ("author", "edits", "paper"),
)
COUNTS = {"paper": 50, "author": 30, "venue": 4}


def typed_lists(counts=COUNTS):
    """Relations between two types and their reverse, one that is its own reverse, and one that leads to a third."""
    random = np.random.default_rng(1)
    authors, papers = random.integers(0, counts["author"], 90), random.integers(0, counts["paper"] - 2, 90)
    some, others = (random.integers(0, counts["paper"], 40) for _ in range(2))
    pairs = {
        WRITES: (authors, papers),
        BY: (papers, authors),
        CITES: (np.concatenate([some, others]), np.concatenate([others, some])),
        EDITS: (authors[::3], papers[1::3]),
        ("venue", "prints", "paper"): (
            random.integers(0, counts["venue"], 40),
            random.integers(0, counts["paper"], 40),
        ),
    }
    edges = {}
    for kind, (source, target) in pairs.items():
        indptr, indices, _ = build_lists(source, target, counts[kind[0]], counts[kind[2]])
        edges[kind] = EdgeSet(indptr, indices)
    return Graph({name: NodeSet(count) for name, count in counts.items()}, edges, "typed lists")


class TypedEdges(DrawnEdges):
    """The same in a graph of several types."""

    def _prepare(self, graph, seeds, fanouts, replace):
        from penstock.sampling.device.typed import TypedTopology, drawn_relations, typed_program

        counts = {name: nodes.count for name, nodes in graph.nodes.items()}
        self.program = typed_program(graph, fanouts, seeds, replace)
        lists = {kind: self._lists(graph.edges[kind]) for kind in drawn_relations(self.program, graph)}
        self.topology = TypedTopology(lists, counts)
        self.sampler = TypedNeighbourSampler(graph, list(fanouts), replace, totals=True)

    def assert_same(self, slot, planned):
        links = self.batcher.batch(planned.seeds, planned.key)
        host = self.sampler.sample(links.nodes, planned.key, exclude=links.exclude)
        for name, rows in slot.by_type("").items():
            np.testing.assert_array_equal(host.vertices[name], rows.vertices[: rows.known].cpu().numpy())
        for name, seeds in slot.seeds("").items():
            np.testing.assert_array_equal(links.nodes[name], seeds[: len(links.nodes[name])].cpu().numpy())
        for expected, block in zip(host.blocks, slot.blocks(), strict=True):
            for kind, part in block.relations.items():
                right = expected.relations.get(kind)
                if right is None:
                    assert not part.indptr.any()
                    continue
                rows, edges = right.num_dst + 1, right.num_edges
                np.testing.assert_array_equal(right.indptr, part.indptr[:rows].cpu().numpy())
                np.testing.assert_array_equal(right.indices, part.indices[:edges].cpu().numpy())
                np.testing.assert_array_equal(right.totals, part.totals[: len(right.totals)].cpu().numpy())
        self.assert_same_edges(slot, planned, host, links)


OF_TYPES = [
    *((name, WRITES, BY) for name in POLICIES),
    *((name, BY, WRITES) for name in ("own-of-both-ends", "joint-in-groups")),
    *((name, CITES, "same") for name in ("own-of-both-ends", "in-batch-of-both-ends")),
    ("joint", EDITS, "none"),
]
SELDOM = (
    *((name, WRITES, BY) for name in ("none", "own", "own-sources", "joint", "in-batch")),
    ("joint-in-groups", BY, WRITES),
    ("in-batch-of-both-ends", CITES, "same"),
)
"""Simple forms of other policies, which the tests of one type have as well, and relations that others are drawn for."""


@pytest.mark.parametrize(
    "name, kind, reverse", [pytest.param(*case, marks=[pytest.mark.long] * (case in SELDOM)) for case in OF_TYPES]
)
def test_batches_of_several_types_are_the_hosts(device, name, kind, reverse):
    graph = typed_lists()
    batcher = EdgeBatcher(graph, kind, POLICIES[name])
    assert batcher.reverse == reverse
    drawn = TypedEdges(graph, batcher, np.arange(graph.edges[kind].count), device, (3, 2))
    slot = drawn.slot()
    for planned in drawn.begin(0):
        slot.draw(drawn.epoch)
        drawn.assert_same(slot, planned)
        assert not slot.skip.any()


def test_relations_that_are_predicted_and_not_drawn(device):
    graph, fanouts = typed_lists(), [{CITES: 3, BY: 2}, {CITES: 2, EDITS: 2}]
    for policy in (Uniform(2, "both", True), Uniform(1)):
        batcher = EdgeBatcher(graph, WRITES, policy)
        drawn = TypedEdges(graph, batcher, np.arange(graph.edges[WRITES].count), device, fanouts)
        assert (drawn.topology.along(WRITES) is None) == (not policy.filtered)
        slot = drawn.slot()
        for planned in drawn.begin(1):
            slot.draw(drawn.epoch)
            drawn.assert_same(slot, planned)


def test_a_batch_of_several_types_that_lacks_room_says_how_much_it_needs(device):
    from penstock.sampling.device.block import Room
    from penstock.sampling.device.epoch import NEVER

    graph = typed_lists()
    drawn = TypedEdges(graph, EdgeBatcher(graph, WRITES, Uniform(2, "both")), np.arange(90), device)
    planned, most = drawn.begin(0), drawn.largest
    # The destinations of edges lack room, and everything behind them.
    small = drawn.slot(Room((*most.rows[:2], 20, *most.rows[3:]), most.edges, most.types))
    small.draw(drawn.epoch)
    links = drawn.batcher.batch(planned[0].seeds, planned[0].key)
    assert small.skip.all() and drawn.epoch.failed_at.item() == 0
    assert small.needed[3].item() == len(links.nodes["paper"]) > 20
    drawn.epoch.failed_at.fill_(NEVER)
    drawn.epoch.cursor.zero_()
    slot = drawn.slot()
    slot.draw(drawn.epoch)
    drawn.assert_same(slot, planned[0])
