"""The device's batches are the CPU's, vertex for vertex."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.sampling.block import Purpose
from refusals import refused

pytestmark = pytest.mark.gpu


def lists_of(degrees, vertices, seed):
    """A graph with given list lengths, repeated neighbours and self loops among them."""
    random = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    indices = np.concatenate([np.sort(random.integers(0, vertices, d)) for d in degrees] or [[]]).astype(np.int32)
    return Graph({"node": NodeSet(vertices)}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "lists")


def device_sampler(graph, fanouts, device, replace=False, **options):
    from penstock.sampling.device.hops import Topology
    from penstock.sampling.device.program import DeviceProgram, neighbour_rules
    from penstock.sampling.device.sampler import DeviceSampler

    (edges,) = graph.edges.values()
    topology = Topology(torch.from_numpy(edges.indptr).to(device), torch.from_numpy(edges.indices).to(device))
    return DeviceSampler(topology, DeviceProgram(neighbour_rules(fanouts, replace)), device, **options)


def assert_same(host, drawn):
    if drawn.ready is not None:  # a sampler draws on a stream of its own
        drawn.ready.synchronize()
    np.testing.assert_array_equal(host.vertices["node"], drawn.vertices["node"].cpu().numpy())
    for expected, block in zip(host.blocks, drawn.blocks, strict=True):
        assert (expected.num_src, expected.num_dst) == (block.num_src, block.num_dst)
        for name in ("indptr", "indices", "edges"):
            np.testing.assert_array_equal(getattr(expected, name), getattr(block, name).cpu().numpy())
        np.testing.assert_array_equal(expected.totals[: block.num_src], block.totals.cpu().numpy())


@pytest.mark.covering(1)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[15, 10, 5], [1], [32, 2], [3, 3, 3, 3]])
def test_batches_are_the_cpus(fanouts, replace, device):
    random = np.random.default_rng(len(fanouts))
    graph = lists_of(random.integers(0, 40, 300), 300, 1)
    host = NeighbourSampler(graph, fanouts, replace, totals=True, edges=True)
    drawn = device_sampler(graph, fanouts, device, replace=replace, totals=True, edges=True)
    for batch in range(3):
        key, seeds = BatchKey(7, 1, batch), random.permutation(300)[: 20 + batch]
        assert_same(host.sample(seeds, key), drawn.sample(seeds, key))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 12), st.booleans(), st.integers(0, 2**63 - 1)
)
def test_any_small_graph(degrees, fanout, replace, seed):
    pytest.importorskip("triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    graph = lists_of(degrees, len(degrees), seed % 97)
    seeds = np.arange(0, len(degrees), 2)
    host = NeighbourSampler(graph, [fanout, 2], replace, totals=True, edges=True)
    drawn = device_sampler(graph, [fanout, 2], device, replace=replace, totals=True, edges=True)
    key = BatchKey(seed, 3, 4)
    assert_same(host.sample(seeds, key), drawn.sample(seeds, key))


def test_a_batch_that_lacks_room_is_drawn_again(device, monkeypatch):
    from penstock.sampling.device import sampler

    monkeypatch.setattr(sampler, "_FIRST_ROOM", 64)
    graph = lists_of(np.full(400, 12), 400, 3)
    host = NeighbourSampler(graph, [8, 8], totals=True, edges=True)
    drawn = device_sampler(graph, [8, 8], device, totals=True, edges=True)
    for batch in range(3):
        key, seeds = BatchKey(0, 0, batch), np.arange(batch, 400, 13)
        assert_same(host.sample(seeds, key), drawn.sample(seeds, key))


def test_what_a_device_does_not_draw_is_refused(device):
    graph = lists_of([2, 2], 2, 0)
    for fanouts in ([0], [-2], []):
        with refused("value-out-of-range"):
            device_sampler(graph, fanouts, device)


def test_a_failed_batch_stops_those_behind_it(device):
    from penstock.sampling.device.block import Room
    from penstock.sampling.device.epoch import NEVER, DeviceEpoch
    from penstock.sampling.device.hops import Topology
    from penstock.sampling.device.program import DeviceProgram, neighbour_rules
    from penstock.sampling.device.slot import Slot

    graph = lists_of(np.full(64, 6), 64, 5)
    (edges,) = graph.edges.values()
    topology = Topology(torch.from_numpy(edges.indptr).to(device), torch.from_numpy(edges.indices).to(device))
    program = DeviceProgram(neighbour_rules([4]))
    epoch = DeviceEpoch(24, 8, 1, device)
    epoch.order.copy_(torch.arange(24, dtype=torch.int32))
    slot = Slot(topology, program, Room((8, 64), (64,)), device, 1)
    slot.draw(epoch)
    assert slot.skip.item() == 0 and epoch.failed_at.item() == NEVER and epoch.cursor.item() == 1
    small = Slot(topology, program, Room((8, 10), (16,)), device, 1, tables=slot.tables)
    small.draw(epoch)
    assert small.skip.item() == 1 and epoch.failed_at.item() == 1
    slot.tables["place"].fill_(NEVER)
    slot.draw(epoch)
    assert slot.skip.item() == 1 and epoch.failed_at.item() == 1 and epoch.cursor.item() == 3


def test_an_epochs_order_and_keys_are_the_schedules(device):
    from penstock.graph.hashing import key_of
    from penstock.pipeline.schedule import Schedule
    from penstock.sampling.device.epoch import batch_keys, shuffled

    items = np.arange(5, 3005, 3)
    planned = list(Schedule(items, 64, 9, epochs=1).from_position())
    order = shuffled(torch.from_numpy(items.astype(np.int64)).to(device), key_of(9, "{}/order", 0)).cpu().numpy()
    np.testing.assert_array_equal(items[order], np.concatenate([each.seeds for each in planned]))
    purposes = [Purpose("0"), Purpose("1"), Purpose("0", 5), Purpose("dropout")]
    keys = batch_keys(9, 0, len(planned), purposes)
    for number, (each, row) in enumerate(zip(planned, keys.view(np.uint64), strict=True)):
        shared = planned[number - number % 5].key.hop(0)
        assert row.tolist() == [each.key.hop(0), each.key.hop(1), shared, each.key.purpose("dropout")]
        assert row.tolist() == [purpose.key(each.key) for purpose in purposes]
