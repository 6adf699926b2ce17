"""The device's batches of several types are the CPU's, vertex for vertex."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neighbourhoods import lists_weighed
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.sampling import BatchKey, TypedNeighbourSampler

pytestmark = pytest.mark.gpu

COUNTS = {"paper": 90, "author": 60, "field": 20, "venue": 7}
KINDS = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("author", "edits", "paper"),
    ("paper", "by", "author"),
    ("venue", "prints", "paper"),
    ("field", "of", "paper"),
    ("paper", "about", "venue"),
    ("venue", "hosts", "field"),
]
EMPTY = ("venue", "prints", "paper")


def typed_lists(seed=0, most=12, counts=COUNTS):
    """Several relations between two types, one without edges, and one that leads to a type which few hops reach."""
    random, edges = np.random.default_rng(seed), {}
    for kind in KINDS:
        degrees = random.integers(0, most, counts[kind[2]]) * (kind != EMPTY)
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        lists = [np.sort(random.integers(0, counts[kind[0]], d)) for d in degrees]
        edges[kind] = EdgeSet(indptr, np.concatenate(lists).astype(np.int32))
    return Graph({name: NodeSet(count) for name, count in counts.items()}, edges, "typed lists")


def device_sampler(graph, fanouts, device, node_type="paper", replace=False, weight=None, uniform=False, **options):
    from penstock.sampling.device.hops import Topology
    from penstock.sampling.device.program import VertexSeeds
    from penstock.sampling.device.sampler import DeviceSampler
    from penstock.sampling.device.typed import TypedTopology, typed_program

    lists = {
        kind: Topology(
            torch.from_numpy(edges.indptr).to(device),
            torch.from_numpy(edges.indices).to(device),
            lists_weighed(edges, weight, not uniform, device),
        )
        for kind, edges in graph.edges.items()
    }
    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    weighing = weight is not None and not uniform, weight is not None and uniform
    program = typed_program(graph, fanouts, VertexSeeds(node_type), replace, *weighing)
    return DeviceSampler(TypedTopology(lists, counts), program, device, node_type, **options)


def assert_same(host, drawn):
    if drawn.ready is not None:  # a sampler draws on a stream of its own
        drawn.ready.synchronize()
    assert set(host.vertices) == set(drawn.vertices)
    for name, vertices in host.vertices.items():
        np.testing.assert_array_equal(vertices, drawn.vertices[name].cpu().numpy())
    for expected, block in zip(host.blocks, drawn.blocks, strict=True):
        assert (expected.src_counts, expected.dst_counts) == (block.src_counts, block.dst_counts)
        assert list(expected.relations) == list(block.relations)
        for kind, part in expected.relations.items():
            other = block.relations[kind]
            assert (part.num_src, part.num_dst) == (other.num_src, other.num_dst)
            for name in ("indptr", "indices", "edges", "weights"):
                mine, theirs = getattr(part, name), getattr(other, name)
                assert (mine is None) == (theirs is None)
                if mine is not None:
                    np.testing.assert_array_equal(mine, theirs.cpu().numpy())
            np.testing.assert_array_equal(part.totals, other.totals.cpu().numpy()[: len(part.totals)])


FANOUTS = {
    "one number": [5, 3],
    "by relation": [{KINDS[0]: 4, KINDS[1]: 2, KINDS[3]: 3}, {KINDS[0]: 2, KINDS[2]: 3, KINDS[3]: 5}, 2],
    "not followed": [{KINDS[1]: 3}, {KINDS[0]: 4, KINDS[1]: 0}],
    "empty": [{KINDS[4]: 3, KINDS[5]: 2}, 2],
    "whole lists": [{KINDS[0]: -1, KINDS[1]: 40, KINDS[3]: 3}, -1],
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", FANOUTS.values(), ids=FANOUTS)
def test_batches_are_the_cpus(fanouts, replace, device):
    graph, random = typed_lists(), np.random.default_rng(1)
    host = TypedNeighbourSampler(graph, fanouts, replace, totals=True, edges=True)
    drawn = device_sampler(graph, fanouts, device, replace=replace, totals=True, edges=True)
    for batch in range(3):
        key, seeds = BatchKey(7, 1, batch), random.permutation(COUNTS["paper"])[: 12 + batch]
        assert_same(host.sample({"paper": seeds}, key), drawn.sample(seeds, key))


@pytest.mark.parametrize(
    "how", [{}, {"uniform": True}, {"replace": True}, {"fanouts": [-1, 40]}, {"fanouts": [-1, 40], "uniform": True}]
)
def test_weighted_batches_are_the_cpus(how, device):
    graph, random, how = typed_lists(2, 20), np.random.default_rng(5), {**how, "weight": "w"}
    fanouts = how.pop("fanouts", [2, 1])
    for edges in graph.edges.values():
        edges.fields["w"] = random.integers(0, 5, edges.count) * random.uniform(0, 1, edges.count)
    host = TypedNeighbourSampler(graph, fanouts, totals=True, edges=True, **how)
    drawn = device_sampler(graph, fanouts, device, totals=True, edges=True, **how)
    key, seeds = BatchKey(7, 1, 2), random.permutation(COUNTS["paper"])[:9]
    assert_same(host.sample({"paper": seeds}, key), drawn.sample(seeds, key))


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(1, 9), st.booleans(), st.integers(0, 2**63 - 1))
def test_any_small_graph(made_by, fanout, replace, seed):
    pytest.importorskip("triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    graph = typed_lists(made_by, 5, {"paper": 9, "author": 5, "field": 2, "venue": 1})
    fanouts = [fanout, {KINDS[1]: 2, KINDS[3]: 1}]
    host = TypedNeighbourSampler(graph, fanouts, replace, totals=True, edges=True)
    drawn = device_sampler(graph, fanouts, device, replace=replace, totals=True, edges=True)
    key, seeds = BatchKey(seed, 3, 4), np.arange(0, 9, 2)
    assert_same(host.sample({"paper": seeds}, key), drawn.sample(seeds, key))


def test_seeds_of_another_type(device):
    graph = typed_lists(3)
    host = TypedNeighbourSampler(graph, [4, 2, 2], totals=True, edges=True)
    drawn = device_sampler(graph, [4, 2, 2], device, "venue", totals=True, edges=True)
    key = BatchKey(5, 0, 0)
    assert_same(host.sample({"venue": np.arange(5)}, key), drawn.sample(np.arange(5), key))


def test_a_batch_that_lacks_room_is_drawn_again(device, monkeypatch):
    from penstock.sampling.device import sampler

    monkeypatch.setattr(sampler, "_FIRST_ROOM", 24)
    graph = typed_lists(4)
    host = TypedNeighbourSampler(graph, [6, 4], totals=True, edges=True)
    drawn = device_sampler(graph, [6, 4], device, totals=True, edges=True)
    for batch in range(3):
        key, seeds = BatchKey(0, 0, batch), np.arange(batch, 90, 8)
        assert_same(host.sample({"paper": seeds}, key), drawn.sample(seeds, key))


def test_rooms_of_several_types(device):
    from penstock.sampling.device.block import room_for
    from penstock.sampling.device.program import VertexSeeds
    from penstock.sampling.device.typed import typed_program

    graph, fanouts = typed_lists(5), [6, 4]
    program = typed_program(graph, fanouts, VertexSeeds("paper"))
    draws = program.draws
    assert {draw.kind for draw in draws if draw.hop == 0} == {kind for kind in KINDS if kind[2] == "paper"}
    assert ("paper", "about", "venue") in {draw.kind for draw in draws if draw.hop == 1}
    most = program.largest_room(10, graph.num_nodes, graph.num_edges)
    host = TypedNeighbourSampler(graph, fanouts)
    batches = [host.sample({"paper": np.arange(k, 90, 9)}, BatchKey(1, 0, k)) for k in range(4)]
    sizes = [program.sizes(batch) for batch in batches]
    room = room_for(sizes, 10, most)
    assert all(room.holds_sizes(each) and most.holds_sizes(each) for each in sizes) and most.holds(room)
    assert room.types == most.types == ("paper", *(draw.kind[0] for draw in draws))
    larger = room.enlarged([size + 1 for size in room.sizes], most)
    assert larger.holds(room) and most.holds(larger) and larger.types == room.types
