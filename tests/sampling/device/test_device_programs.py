"""Batches that a device draws by a program are those of the host's sampler, array by array."""

import numpy as np
import pytest
import torch

from neighbourhoods import lists_weighed
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.sampling import BatchKey
from penstock.sampling.entry import SamplerSettings
from penstock.sampling.local_source import LocalSource
from penstock.sampling.sampler_table import SAMPLERS, SamplerOptions

pytestmark = pytest.mark.gpu
VERTICES = 300


def graph_with_hubs(vertices=VERTICES, seed=0):
    """Lists of all lengths: isolated vertices, empty lists, hubs, repeated neighbours and self loops."""
    random = np.random.default_rng(seed)
    degrees = random.integers(0, 12, vertices)
    degrees[[5, 17]] = 2 * vertices // 3
    degrees[30:60] = 45
    degrees[60:70] = 0
    lists = [np.sort(random.integers(0, vertices - 5, degree)) for degree in degrees]
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    edges = EdgeSet(indptr, np.concatenate(lists).astype(np.int32))
    return Graph({"node": NodeSet(vertices)}, {("node", "to", "node"): edges}, "hubs")


def both(graph, device, sampler, edges=True, totals=True, layers=2, train=None, room=None, **fields):
    """The host's sampler and the device's of one entry."""
    from penstock.sampling.device.hops import Topology
    from penstock.sampling.device.sampler import DeviceSampler

    entry, options = SAMPLERS[sampler], SamplerOptions(sampler=sampler, **fields)
    train = np.arange(0, graph.num_nodes, 3) if train is None else train
    settings = SamplerSettings(options, layers, 0, totals, edges)
    host = entry.build(LocalSource(graph, train), settings)
    (lists,) = graph.edges.values()
    topology = Topology(
        torch.from_numpy(lists.indptr).to(device), torch.from_numpy(lists.indices).to(device),
        lists_weighed(lists, options.list_weight, options.weight is not None, device),
    )  # fmt: skip
    program = entry.device(options, host)
    return host, DeviceSampler(topology, program, device, "node", totals, edges, room)


def assert_same(host, drawn, parts=("indptr", "indices", "weights", "totals", "edges")):
    if drawn.ready is not None:
        drawn.ready.synchronize()
    np.testing.assert_array_equal(host.vertices["node"], drawn.vertices["node"].cpu().numpy())
    np.testing.assert_array_equal(host.seeds["node"], np.asarray(drawn.seeds["node"]))
    for expected, block in zip(host.blocks, drawn.blocks, strict=True):
        assert (expected.num_src, expected.num_dst) == (block.num_src, block.num_dst)
        for name in parts:
            mine, theirs = getattr(expected, name), getattr(block, name)
            assert (mine is None) == (theirs is None), name
            if mine is not None:
                both = (len(theirs), len(mine)) if name != "totals" else (min(len(mine), len(theirs)),) * 2
                np.testing.assert_array_equal(mine[: both[0]], theirs.cpu().numpy()[: both[1]], err_msg=name)


LABOR = {"sampler": "labor", "fanouts": [6, 4]}
CASES = [
    {"sampler": "neighbour", "fanouts": [-1]},
    {"sampler": "neighbour", "fanouts": [-1, -1]},
    {"sampler": "neighbour", "fanouts": [3, -1]},
    {"sampler": "neighbour", "fanouts": [40, 33]},
    {"sampler": "neighbour", "fanouts": [40, 2], "replace": True},
    LABOR,
    {"sampler": "labor", "fanouts": [-1, 3]},
    {"sampler": "fastgcn", "fanouts": [40, 60]},
    {"sampler": "ladies", "fanouts": [40, 70]},
    {"sampler": "ladies", "fanouts": [1000, 30]},
]


@pytest.mark.parametrize("fields", CASES, ids=lambda fields: "-".join(map(str, fields.values())))
def test_batches_are_the_hosts(fields, device):
    host, drawn = both(graph_with_hubs(), device, **fields)
    random = np.random.default_rng(3)
    for batch in range(2):
        seeds = np.concatenate([[5, 65], random.permutation(np.arange(100, VERTICES))[: 30 + batch]])
        key = BatchKey(7, batch, batch)
        assert_same(host.sample(seeds, key), drawn.sample(seeds, key))


WEIGHTED = [
    {"fanouts": [3, 4], "weight": "w"},
    {"fanouts": [1, 2], "weight": "few"},
    {"fanouts": [-1, 2], "weight": "few"},
    {"fanouts": [40, 33], "weight": "w"},
    {"fanouts": [3, 2], "weight": "w", "replace": True},
    {"fanouts": [2, -1], "weight": "few", "replace": True},
    {"fanouts": [3, 2], "edge_weight": "whole"},
    {"fanouts": [-1, 40], "edge_weight": "w"},
    # Kernels of the host that draw by whole numbers take 9 s to compile; by other numbers they are compiled above.
    pytest.param({"fanouts": [3, 2], "weight": "whole"}, marks=pytest.mark.long),
]


def weighted_graph():
    """Fields of float32, of float64 with many zeros, and of whole numbers."""
    graph, random = graph_with_hubs(), np.random.default_rng(8)
    (edges,) = graph.edges.values()
    edges.fields["w"] = random.gamma(0.5, 1.0, edges.count).astype(np.float32) + np.float32(1e-6)
    edges.fields["few"] = random.uniform(0, 1, edges.count) * (random.uniform(0, 1, edges.count) < 0.4)
    edges.fields["whole"] = random.integers(0, 9, edges.count)
    return graph


@pytest.mark.parametrize("fields", WEIGHTED, ids=lambda fields: "-".join(map(str, fields.values())))
def test_weighted_batches_are_the_hosts(fields, device):
    host, drawn = both(weighted_graph(), device, "neighbour", totals=False, **fields)
    random = np.random.default_rng(3)
    for batch in range(2):
        seeds = np.concatenate([[5, 17, 65], random.permutation(np.arange(100, VERTICES))[: 20 + batch]])
        key = BatchKey(7, batch, batch)
        assert_same(host.sample(seeds, key), drawn.sample(seeds, key))


SUBGRAPHS = [
    {"sampler": "saint-vertex", "batch_size": 60},
    {"sampler": "saint-edge", "batch_size": 40},
    {"sampler": "saint-walk", "batch_size": 30, "walk_length": 1},
    {"sampler": "saint-walk", "batch_size": 30, "walk_length": 3},
]


@pytest.mark.parametrize("fields", SUBGRAPHS, ids=lambda fields: "-".join(map(str, fields.values())))
def test_subgraphs_are_the_hosts(fields, device):
    host, drawn = both(graph_with_hubs(), device, layers=3, **fields)
    for batch in range(2):
        key = BatchKey(7, 1, batch)
        right, found = host.sample(host.items[:1], key), drawn.sample(host.items[:1], key)
        assert_same(right, found)
        np.testing.assert_array_equal(right.seed_weights, found.seed_weights)


@pytest.mark.parametrize("layers", [1, 3])
def test_clusters_are_the_hosts(layers, device, monkeypatch):
    clusters = np.random.default_rng(1).integers(0, 9, VERTICES)
    monkeypatch.setattr(LocalSource, "clusters", lambda self, options: 2 * clusters)
    host, drawn = both(graph_with_hubs(), device, "cluster", layers=layers, batch_size=3)
    for items in ([4, 0, 10], [16]):
        assert_same(host.sample(np.array(items), BatchKey(0, 0, 0)), drawn.sample(np.array(items), BatchKey(0, 0, 0)))


@pytest.mark.parametrize("fields", [CASES[1], CASES[3], LABOR, CASES[-2]], ids=["all", "many", "labor", "ladies"])
def test_a_batch_that_lacks_room_is_drawn_again(fields, device, monkeypatch):
    from penstock.sampling.device import sampler

    monkeypatch.setattr(sampler, "_FIRST_ROOM", 64)
    host, drawn = both(graph_with_hubs(), device, **fields)
    for batch in range(2):
        key, seeds = BatchKey(1, 0, batch), np.arange(batch, 60, 7)
        assert_same(host.sample(seeds, key), drawn.sample(seeds, key))


def test_a_graph_without_edges_in_reach(device):
    host, drawn = both(graph_with_hubs(), device, **LABOR)
    seeds = np.arange(60, 70)
    assert_same(host.sample(seeds, BatchKey(0, 0, 0)), drawn.sample(seeds, BatchKey(0, 0, 0)))


def test_a_rule_of_ones_own(device):
    pytest.importorskip("triton")
    from even_rule import keep_even, weigh_length
    from penstock.sampling.device.hops import Topology
    from penstock.sampling.device.program import DeviceProgram, FilterRule
    from penstock.sampling.device.sampler import DeviceSampler

    graph, seeds = graph_with_hubs(), np.array([5, 61, 200, 31])
    program = DeviceProgram((FilterRule(3, lambda: keep_even, lambda: weigh_length),))
    topology = Topology(torch.from_numpy(graph.indptr).to(device), torch.from_numpy(graph.indices).to(device))
    (block,) = DeviceSampler(topology, program, device, edges=True).sample(seeds, BatchKey(0, 0, 0)).blocks
    if device.type == "cuda":
        torch.cuda.synchronize()
    lists = [np.arange(graph.indptr[v], graph.indptr[v + 1]) for v in seeds]
    kept = [positions[graph.indices[positions] % 2 == 0] for positions in lists]
    np.testing.assert_array_equal(block.indptr.cpu().numpy(), np.cumsum([0, *map(len, kept)]))
    np.testing.assert_array_equal(block.edges.cpu().numpy(), np.concatenate(kept))
    weights = np.repeat([len(positions) + 3 for positions in lists], list(map(len, kept)))
    np.testing.assert_array_equal(block.weights.cpu().numpy(), weights.astype(np.float32))
