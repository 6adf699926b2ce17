"""A cut graph sampled by time: the uncut graph's batches, also of a part of the seeds."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cut_and_sampled import KEY, assert_same_but_for_numbers, cut_at_random, plain_graph, typed_graph

from penstock.sampling import NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.links import HeldOutRule
from penstock.sampling.parts import (
    HoldoutSampler,
    OwnedPart,
    RemoteSampler,
    VertexTimes,
    parted_sampler,
    serve_batches,
)
from penstock.sampling.parts import graph as parted_graphs
from penstock.wire.channel import RemoteError
from penstock.wire.message import Message
from refusals import refused

SEEDS = np.array([7, 0, 299, 31, 150, 12, 7])


def timed_graph(dtype):
    """Edges with times from 0 to 100, of some kind of numbers."""
    graph = plain_graph()
    (edges,) = graph.edges.values()
    edges.fields["t"] = np.random.default_rng(2).uniform(0, 100, edges.count).astype(dtype)
    return graph, np.random.default_rng(3).uniform(20, 100, len(SEEDS))


@pytest.mark.parametrize(
    ("dtype", "weight"),
    [
        (np.int32, None),
        (np.float32, "w"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((np.uint8, None), (np.float32, None), (np.int32, "w"), (np.uint8, "w"))
        ),
    ],
)
def test_parts_behind_the_wire_and_here(tmp_path, owners, dtype, weight):
    graph, times = timed_graph(dtype)
    how = {"fanouts": [3, -1, 2], "time": "t", "weight": weight, "totals": True}
    whole = NeighbourSampler(graph, **how).sample(SEEDS, KEY, times=times)
    partition = cut_at_random(graph, 3, tmp_path)
    _, channels = owners(partition)
    for local in ({}, {1: OwnedPart.of(partition, 1)}):
        sampler = parted_sampler(partition, **how, local=local, channels=channels)
        assert_same_but_for_numbers(partition, sampler.sample(partition.new_ids(SEEDS), KEY, times=times), whole)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "dtype, weight", [(np.int32, None), (np.uint16, None), (np.float64, None), (np.int64, "w"), (np.int64, "exact")]
)
@pytest.mark.parametrize("replace", [False, True])
def test_times_of_vertices(tmp_path, owners, monkeypatch, dtype, replace, weight):
    """Also in proportion to weights, of which some are 0 and some are no float32."""
    graph, times = timed_graph(np.int64)
    (edges,) = graph.edges.values()
    edges.fields["exact"] = edges.fields["w"].astype(np.float64) ** 3
    graph.nodes["node"].fields["when"] = np.random.default_rng(5).uniform(0, 100, 300).astype(dtype)
    how = {"fanouts": [3, -1, 2], "time": "node:when", "replace": replace, "totals": True, "weight": weight}
    whole = NeighbourSampler(graph, **how).sample(SEEDS, KEY, times=times)
    partition = cut_at_random(graph, 3, tmp_path)
    _, channels = owners(partition)
    when = graph.nodes["node"].fields["when"][partition.original()]
    monkeypatch.setattr(parted_graphs, "KEPT_TIMES", 50)
    for local, known in (({}, when), ({1: OwnedPart.of(partition, 1)}, VertexTimes(300, when.dtype, when.take))):
        sampler = parted_sampler(partition, **how, local=local, channels=channels, vertex_times=known)
        assert_same_but_for_numbers(partition, sampler.sample(partition.new_ids(SEEDS), KEY, times=times), whole)


@pytest.mark.parametrize("slots", [1 << 10, 1 << 6])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
def test_times_that_were_read_are_kept_up_to_a_limit(monkeypatch, slots, dtype):
    """By several threads at once; where every vertex has a slot, each time is read about once."""
    monkeypatch.setattr(parted_graphs, "KEPT_TIMES", slots)
    times, asked = np.random.default_rng(0).uniform(0, 200, 1000).astype(dtype), []

    def read(numbers):
        asked.append(len(np.unique(numbers)))
        return times[numbers]

    kept = VertexTimes(1000, times.dtype, read)
    assert len(kept) == 1000 and kept.dtype == times.dtype

    def ask(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            numbers = rng.integers(0, 1000, 30).astype(np.int32)
            np.testing.assert_array_equal(kept[numbers], times[numbers])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))
    assert len(kept._kept) == slots
    before = sum(asked)
    np.testing.assert_array_equal(kept[np.arange(1000)], times)
    np.testing.assert_array_equal(kept[np.arange(1000)], times)
    # Two threads may read the same time at once, at first.
    assert sum(asked) - before < 2000 and (slots < 1000 or before < 1500)


def test_a_share_of_the_seeds_has_its_trees_of_the_whole(tmp_path, owners):
    """Drawn here or by a sampler task: every vertex that the whole batch has in the tree of one of these seeds."""
    graph, times = timed_graph(np.int64)
    how = {"fanouts": [3, 2], "time": "t"}
    plain = NeighbourSampler(graph, **how)
    partition = cut_at_random(graph, 2, tmp_path)
    worker, channels, helper = owners(partition, "sampler-0")
    sampler = parted_sampler(partition, **how, channels=channels)
    serve_batches(helper, {"train": HoldoutSampler(lambda absent: sampler, list(graph.edges))})
    counts, names = {"node": 300}, {"node": partition.original()}
    remote = RemoteSampler([worker.channel("sampler-0", "batches")], "train", counts, names)
    for places in ([2, 5], [6, 0, 3]):
        places = np.array(places)
        given = {"times": times[places], "places": places}
        share = plain.sample(SEEDS[places], KEY, **given)
        for each in (sampler, remote):
            found = each.sample(partition.new_ids(SEEDS[places]), KEY, **given)
            assert_same_but_for_numbers(partition, found, share)
    whole = plain.sample(SEEDS, KEY, times=times)
    alone = [plain.sample(SEEDS[[p]], KEY, times=times[[p]], places=np.array([p])) for p in range(len(SEEDS))]
    assert sum(len(each.vertices["node"]) for each in alone) == len(whole.vertices["node"])
    assert sum(each.num_edges for each in alone) == whole.num_edges
    assert sorted(np.concatenate([each.vertices["node"] for each in alone])) == sorted(whole.vertices["node"])


def test_several_types_and_shares_of_them(tmp_path, owners):
    """A relation without times is not bound; the rest obeys the seeds' times, drawn by their places."""
    graph, rng = typed_graph(), np.random.default_rng(5)
    for kind, edges in graph.edges.items():
        if kind[1] != "seen":
            edges.fields["t"] = rng.integers(0, 100, edges.count)
    how = {"fanouts": [3, 2], "time": "t", "totals": True}
    plain = TypedNeighbourSampler(graph, **how)
    partition = cut_at_random(graph, 3, tmp_path)
    worker, channels, helper = owners(partition, "sampler-0")
    there = parted_sampler(partition, **how, channels=channels)
    serve_batches(helper, {"train": HoldoutSampler(lambda absent: there, list(graph.edges))})
    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    names = {name: partition.original(name) for name in counts}
    remote = RemoteSampler([worker.channel("sampler-0", "batches")], "train", counts, names)
    seeds = {"user": np.array([7, 3, 7]), "item": np.array([11, 60])}
    times = {"user": np.array([40, 90, 70]), "item": np.array([55, 20])}
    places = {"user": np.array([2, 0, 5]), "item": np.array([9, 6])}
    new = {name: partition.new_ids(these, name) for name, these in seeds.items()}
    share = plain.sample(seeds, KEY, times=times, places=places)
    for sampler in (there, remote, parted_sampler(partition, **how)):
        assert_same_but_for_numbers(partition, sampler.sample(new, KEY, times=times, places=places), share)
    # The places of a whole batch are those that it has without any.
    every = {"user": np.arange(3), "item": np.arange(3, 5)}
    whole = [plain.sample(seeds, KEY, times=times, **more) for more in ({}, {"places": every})]
    np.testing.assert_array_equal(whole[0].vertices["user"], whole[1].vertices["user"])
    with refused("shape-mismatch item"):
        plain.sample(seeds, KEY, times=times, places={**places, "item": np.arange(1)})


def test_ages_of_edges_are_those_of_the_uncut_graph(tmp_path, owners):
    graph, times = timed_graph(np.int64)
    partition = cut_at_random(graph, 2, tmp_path)
    whole = NeighbourSampler(graph, [3, 2], time="t", ages=True).sample(SEEDS, KEY, times=times)
    bounds = partition.book.edge_bounds("node__to__node")
    stored = np.concatenate([partition.part(part).edges["node", "to", "node"].fields["t"] for part in range(2)])
    assert len(stored) == bounds[-1]
    worker, channels, helper = owners(partition, "sampler-0")
    read = {"edge_times": lambda relation, numbers: stored[numbers], "ages": True}
    sampler = parted_sampler(partition, [3, 2], time="t", channels=channels, **read)
    serve_batches(helper, {"train": HoldoutSampler(lambda absent: sampler, list(graph.edges))})
    remote = RemoteSampler([worker.channel("sampler-0", "batches")], "train", {"node": 300}, None)
    for each in (sampler, remote):
        found = each.sample(partition.new_ids(SEEDS), KEY, times=times, places=np.arange(len(SEEDS)))
        for one, two in zip(found.blocks, whole.blocks, strict=True):
            np.testing.assert_array_equal(one.ages, two.ages)


@pytest.mark.parametrize("time", ["t", "node:when"])
def test_edges_are_not_excluded_by_time_wherever_parts_lie(tmp_path, owners, time):
    graph, times = timed_graph(np.int64)
    partition = cut_at_random(graph, 2, tmp_path)
    _, channels = owners(partition)
    when = np.zeros(300) if time == "node:when" else None
    for where in ({}, {"channels": channels}, {"local": {1: OwnedPart.of(partition, 1)}, "channels": channels}):
        sampler = parted_sampler(partition, [2], time=time, vertex_times=when, **where)
        with refused("unsupported-combination"):
            sampler.sample(SEEDS, KEY, times=times, exclude=np.array([[1], [7]]))


def test_what_cannot_be(tmp_path, owners):
    graph, times = timed_graph(np.int64)
    partition = cut_at_random(graph, 2, tmp_path)
    held = {("node", "to", "node"): HeldOutRule(1, 1, False, False)}
    for more in ({}, {"vertex_times": np.zeros(300), "weight": "w", "absent": held}):
        with refused("unsupported-combination"):
            parted_sampler(partition, [2], time="node:t", **more)
    with refused("wrong-type"):
        parted_sampler(partition, [2], time="node:t", vertex_times=np.zeros(3))
    typed = cut_at_random(typed_graph(), 2, tmp_path / "typed")
    with refused("unsupported-combination vertices"):
        parted_sampler(typed, [2], time="node:t", vertex_times=np.zeros(300))
    with refused("field-missing when"):
        parted_sampler(typed, [2], time="when")
    sampler = parted_sampler(partition, [2], time="t")
    with refused("option-missing times"):
        sampler.sample(SEEDS, KEY)
    with refused("shape-mismatch 7 2"):
        sampler.sample(SEEDS, KEY, times=times, places=np.array([0, 1]))
    worker, channels, helper = owners(partition, "sampler-0")
    serve_batches(helper, {"train": parted_sampler(partition, [2], channels=channels)})
    remote = RemoteSampler([worker.channel("sampler-0", "batches")], "train", {"node": 300})
    with refused("unsupported-combination", RemoteError):
        remote.sample(SEEDS[:3], KEY, times=times[:3], places=np.arange(3))
    with refused("malformed-message", RemoteError):
        remote.sample(SEEDS[:3], KEY, times=times[:2], places=np.arange(2))


def test_whole_lists_are_given_with_weights_and_nothing_left_out(tmp_path, owners):
    partition = cut_at_random(plain_graph(), 2, tmp_path)
    _, channels = owners(partition)
    body = {"part": 0, "relation": "node__to__node", "weight": "w", "key": 5, "fanout": -1, "replace": False}
    vertices = np.arange(*partition.book.range(0), dtype=np.int32)
    counts, sources, weights = channels(0).call(Message("draw", {**body, "whole": True}, (vertices,))).arrays
    (edges,) = partition.part(0).edges.values()
    np.testing.assert_array_equal(counts, np.diff(edges.indptr))
    np.testing.assert_array_equal(sources, edges.indices)
    np.testing.assert_array_equal(weights, edges.fields["w"].astype(np.float64))
    assert (weights == 0).any()
    pairs = np.array([[1], [int(vertices[0])]])
    for changed, arrays in (({"weight": None}, ()), ({"fanout": 3}, ()), ({}, (pairs,))):
        with refused("unsupported-combination", RemoteError):
            channels(0).call(Message("draw", {**body, "whole": True, **changed}, (vertices, *arrays)))
