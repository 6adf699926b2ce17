"""Batches as captured steps read them, with all their room: models learn from them what they do from plain ones."""

import numpy as np
import pytest
import torch

from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.nn import build_model
from penstock.nn.device.gather import TableRows, _turn_round
from penstock.nn.drop import dropping
from penstock.nn.layer_table import model_options
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.sampling.block import Purpose

pytestmark = pytest.mark.gpu
FANOUTS = [4, 3, 2]


def graph_of(vertices, hub=True):
    """Random lists; vertex 0 is in nearly all of them."""
    random = np.random.default_rng(2)
    lists = [
        np.unique(np.append(random.integers(0, vertices, random.integers(0, 6)), 0 if hub else 1))
        for _ in range(vertices)
    ]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    edges = EdgeSet(indptr, np.concatenate(lists).astype(np.int32))
    return Graph({"node": NodeSet(vertices)}, {("node", "to", "node"): edges}, "lists")


def filled_slot(graph, seeds, key, device, **options):
    from penstock.sampling.device.block import Room
    from penstock.sampling.device.epoch import DeviceEpoch, batch_keys
    from penstock.sampling.device.hops import Topology
    from penstock.sampling.device.program import DeviceProgram, neighbour_rules
    from penstock.sampling.device.slot import Slot

    (edges,) = graph.edges.values()
    topology = Topology(torch.from_numpy(edges.indptr).to(device), torch.from_numpy(edges.indices).to(device))
    epoch = DeviceEpoch(len(seeds), len(seeds), len(FANOUTS), device)
    epoch.order.copy_(torch.from_numpy(seeds.astype(np.int32)))
    purposes = [Purpose(str(hop)) for hop in range(len(FANOUTS))]
    epoch.keys.copy_(torch.from_numpy(batch_keys(key.seed, key.epoch, 1, purposes)))
    program = DeviceProgram(neighbour_rules(FANOUTS))
    largest = program.largest_room(len(seeds), graph.num_nodes, graph.num_edges)
    room = Room(tuple(rows + 7 * (place > 0) for place, rows in enumerate(largest.rows)), largest.edges)
    slot = Slot(topology, program, room, device, len(FANOUTS), **options)
    slot.draw(epoch)
    return slot


@pytest.mark.parametrize("hub", [False, True])
def test_lists_read_from_the_sources_without_a_sort(hub, device):
    graph = graph_of(150, hub)
    slot = filled_slot(graph, np.arange(40), BatchKey(1, 0, 0), device, turns=True)
    slot = filled_slot(graph, np.arange(40), BatchKey(1, 0, 0), device, turns=True, tables=slot.tables)
    for block in slot.blocks()[1:]:
        lists, right = block.derived["sources"], _turn_round(block, block.num_src)
        torch.testing.assert_close(lists.indptr, right.indptr)
        edges = int(lists.indptr[-1])
        torch.testing.assert_close(lists.edges[:edges], right.edges[:edges])
        torch.testing.assert_close(lists.indices[:edges], right.indices[:edges])
        if hub:
            chunks = block.derived["source_chunks"]
            assert chunks is None or set(chunks.tolist()) <= {-1, *range(block.num_src)}


@pytest.mark.parametrize("in_table", [False, True])
def test_a_model_learns_the_same_from_a_slot(in_table, device):
    torch.manual_seed(0)
    graph, seeds, key = graph_of(150), np.arange(30), BatchKey(4, 0, 0)
    table = torch.randn(150, 12)
    options = model_options(model="sage", layers=3, hidden=16, dropout=0.3)
    host, ours = build_model(options, 12, 5), build_model(options, 12, 5).to(device)
    ours.load_state_dict(host.state_dict())
    batch = NeighbourSampler(graph, FANOUTS).sample(seeds, key)
    slot = filled_slot(graph, seeds, key, device, turns=True, numbers_last=not in_table)
    placed = table.to(device)
    x = TableRows(placed, slot.vertices[: slot.room.rows[-2]], True) if in_table else placed[slot.vertices.long()]
    with dropping(9):
        expected = host(batch.blocks, table[batch.vertices["node"].astype(np.int64)])
    with dropping(9):
        out = ours(slot.blocks(), x)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.square().mean().backward()
    out.square().mean().backward()
    for mine, theirs in zip(ours.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6)
