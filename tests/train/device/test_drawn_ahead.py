"""A loader's batches drawn ahead on a device by the thread that computes are the host's.

Without a GPU the host stands in for one, and kernels are interpreted.
"""

import importlib.util
from itertools import islice
from unittest.mock import patch

import pytest
import torch

import penstock as ps
from interpreted_kernels import device_with_free_memory
from penstock.sampling.device.block import Room
from penstock.train.device.batch_placement import DrawnAhead
from penstock.train.loading import batch_loader
from training_graphs import carrying_graph, community_graph, stage_threads, typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]
FEW = {"fanouts": [3, 2], "batch_size": 24}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EDGES = {"edge_features": ["edge_attr", "far"], "edge_weight": "edge_weight", "sample_on": "device"}


@pytest.fixture(autouse=True)
def _device(monkeypatch):
    if DEVICE == "cpu":
        device_with_free_memory(monkeypatch, lambda: 1 << 40)


def placed_loader(graph, ahead=True, **fields):
    """A loader whose graph is placed as if the host were a device."""
    with patch.object(batch_loader, "is_placed_on", lambda device: True):
        loader = ps.loader(graph, device=DEVICE, **{**FEW, **fields})
    assert (loader._make_sampler is not None) == ahead
    return loader


def host_loader(graph, **fields):
    return ps.loader(graph, device="cpu", **{**FEW, **fields, "sample_on": "host"})


def assert_same(ours, theirs):
    """Two batches are equal in every number, and in the order of everything."""
    assert (ours.epoch, ours.number, ours.batch_size) == (theirs.epoch, theirs.number, theirs.batch_size)
    names = ["n_id", "x", "y", "edge_index", "edge_attr", "edge_weight"]
    for name in names:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.cpu(), other), name
    assert ours.num_sampled_edges == theirs.num_sampled_edges


@pytest.mark.parametrize(
    ("fields", "placement"),
    [
        ({}, "auto"),
        ({}, {"features": "pinned", "topology": "pinned"}),
        ({"fanouts": [3]}, "auto"),
        ({"fanouts": [2, 3, 2], "rank": 1, "world": 2}, "auto"),
        ({"replace": True}, "auto"),
        (EDGES, "auto"),
    ],
    ids=str,
)
def test_batches_are_the_hosts(fields, placement):
    graph = carrying_graph() if "edge_features" in fields else community_graph()
    ours, theirs = placed_loader(graph, placement=placement, **fields), host_loader(graph, **fields)
    for _ in range(2):
        drawn, expected = list(ours), list(theirs)
        assert len(drawn) == len(expected) == len(ours) and len(ours) > 2
        for each, other in zip(drawn, expected, strict=True):
            assert_same(each, other)
    assert not stage_threads()


@pytest.mark.parametrize(
    "fanouts", [[3, 2], [{"paper__cites__paper": 2}, {"paper__cites__paper": 2, "author__writes__paper": 3}]]
)
def test_batches_of_several_types_are_the_hosts(fanouts):
    graph = typed_graph()
    fields = {"fanouts": fanouts, "target": "paper"}
    ours, theirs = placed_loader(graph, **fields), host_loader(graph, **fields)
    for each, other in zip(ours, theirs, strict=True):
        assert (each.number, each["paper"].batch_size) == (other.number, other["paper"].batch_size)
        assert set(each.edge_index_dict) == set(other.edge_index_dict)
        for kind, pairs in other.edge_index_dict.items():
            assert torch.equal(each.edge_index_dict[kind].cpu(), pairs), kind
            assert torch.equal(each[kind].e_id.cpu(), other[kind].e_id)
        for name in graph.nodes:
            assert torch.equal(each[name].n_id.cpu(), other[name].n_id)
        assert torch.equal(each["paper"].x.cpu(), other["paper"].x)
    assert not stage_threads()


LITTLE = Room((24, 30, 31), (40, 50))


@pytest.fixture
def little_room(monkeypatch):
    """Samplers begin with less room than any batch needs."""
    monkeypatch.setattr("penstock.train.device.decision.presampled_room", lambda *_: LITTLE)


@pytest.mark.usefixtures("little_room")
def test_batches_that_lack_room_are_drawn_again():
    graph = community_graph()
    loader = placed_loader(graph)
    for ours, theirs in zip(loader, host_loader(graph), strict=True):
        assert_same(ours, theirs)
    (sampler,) = loader._samplers
    assert sampler._room.holds(LITTLE) and sampler._room != LITTLE


def test_a_draw_that_lacked_room_and_was_abandoned_leaves_nothing_behind(monkeypatch):
    graph = community_graph()
    expected = list(host_loader(graph))
    # Room for the smallest batch alone.
    smallest = min(expected, key=lambda batch: batch.num_nodes)
    room = Room((24, smallest.num_nodes, smallest.num_nodes), (72, 192))
    monkeypatch.setattr("penstock.train.device.decision.presampled_room", lambda *_: room)
    loader = placed_loader(graph)
    (sampler,) = loader._samplers
    planned = list(islice(loader._shares.from_position(), len(expected)))
    for number, batch in enumerate(expected):
        if batch.num_nodes > smallest.num_nodes:
            sampler.begin(planned[number])
            sampler.abandon()
    sampler.begin(planned[smallest.number])
    batch = sampler.finish()
    if batch.ready is not None:
        # It is copied on a stream of its own, for which whoever reads a batch waits.
        batch.ready.synchronize()
    (vertices,) = batch.vertices.values()
    assert torch.equal(vertices.cpu().long(), smallest.n_id)
    assert sampler._room == room


def test_a_sampler_that_has_failed_is_not_used_again(monkeypatch):
    graph = community_graph()
    loader, expected = placed_loader(graph), list(host_loader(graph))

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as failing:
        failing.setattr(DrawnAhead, "finish", fail)
        with pytest.raises(MemoryError):
            next(iter(loader))
    assert not loader._samplers
    loader.set_epoch(0)
    for ours, theirs in zip(loader, expected, strict=True):
        assert_same(ours, theirs)


def test_an_iteration_that_was_left_and_two_at_once():
    graph = community_graph()
    loader, expected = placed_loader(graph), list(host_loader(graph))
    for number, batch in enumerate(loader):
        assert_same(batch, expected[number])
        if number == 1:
            break
    loader.set_epoch(0)
    one = iter(loader)
    first = next(one)
    loader.set_epoch(0)
    for ours, theirs in zip(loader, expected, strict=True):
        assert_same(ours, theirs)
    for ours, theirs in zip([first, *one], expected, strict=True):
        assert_same(ours, theirs)
    assert len(loader._samplers) == 2


@pytest.mark.parametrize("fields", [{"sample_on": "hybrid"}, {"reuse_batches": True, "shuffle": False}], ids=str)
def test_what_the_host_has_a_part_in_is_left_to_threads(fields):
    loader = placed_loader(community_graph(), ahead=False, **fields)
    for ours, theirs in zip(loader, host_loader(community_graph(), shuffle=fields.get("shuffle")), strict=True):
        assert_same(ours, theirs)
