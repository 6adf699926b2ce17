"""Batches of edges made by a device's kernels: those of the host, vertex for vertex."""

import numpy as np
import pytest
import torch

from interpreted_kernels import overflow_unchecked
from penstock.graph.csr import build_lists
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.graph import Graph
from penstock.pipeline.schedule import Position, Schedule
from penstock.sampling import NeighbourSampler
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

    def __init__(self, graph, batcher, items, device, fanouts=(4, 3), replace=False):
        from penstock.sampling.device.epoch import DeviceEpoch
        from penstock.sampling.device.hops import Topology
        from penstock.sampling.device.links import DrawnLinks, EdgeProgram
        from penstock.sampling.device.program import uniform_rules

        (edges,) = graph.edges.values()
        self.schedule, self.batcher, self.items, self.device = Schedule(items, SIZE, SEED, 3), batcher, items, device
        self.topology = Topology(torch.from_numpy(edges.indptr).to(device), torch.from_numpy(edges.indices).to(device))
        self.program = EdgeProgram(uniform_rules(fanouts, replace), DrawnLinks(batcher, items, SIZE))
        self.largest = self.program.largest_room(SIZE, graph.num_nodes, edges.count)
        self.sampler = NeighbourSampler(graph, list(fanouts), replace, totals=True)
        self.purposes = [*self.program.purposes, "dropout"]
        self.epoch = DeviceEpoch(len(items), SIZE, len(self.purposes), device)

    def slot(self, room=None):
        from penstock.sampling.device.slot import Slot

        keys = len(self.purposes)
        return Slot(self.topology, self.program, room or self.largest, self.device, keys, totals=True, turns=True)

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
        seeds, size = slot.beginning, len(links)
        np.testing.assert_array_equal(host.vertices["node"], slot.vertices[: slot.known[-1]].cpu().numpy())
        np.testing.assert_array_equal(links.nodes["node"], slot.vertices[: slot.known[1]].cpu().numpy())
        for expected, block in zip(host.blocks, slot.blocks(), strict=True):
            rows, edges, sources = expected.num_dst + 1, expected.num_edges, expected.num_src
            np.testing.assert_array_equal(expected.indptr, block.indptr[:rows].cpu().numpy())
            np.testing.assert_array_equal(expected.indices, block.indices[:edges].cpu().numpy())
            np.testing.assert_array_equal(expected.totals[:sources], block.totals[:sources].cpu().numpy())
        host.links = links
        assert slot.needed.tolist() == self.program.sizes(host)
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
