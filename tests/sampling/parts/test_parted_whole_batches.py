"""Samplers that draw a batch as a whole give the uncut graph's batches, and workers' shares of them, to the bit."""

import threading
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from cut_and_sampled import KEY, cut_at_random, plain_graph, typed_graph

from neighbourhoods import same_batch
from penstock.sampling import BatchKey
from penstock.sampling.cluster import ClusterSampler
from penstock.sampling.layerwise import FastGCN, Ladies
from penstock.sampling.parts import OwnedPart, RemoteSampler, SharedSampler, homogeneous, parted_graph, serve_batches
from penstock.sampling.saint import Saint
from penstock.wire.channel import RemoteError
from penstock.wire.message import Message
from refusals import refused

TRAIN = np.arange(0, 300, 4)
SEEDS = np.array([7, 0, 299, 31, 150, 12])
CLUSTERS = np.arange(300) % 11 * 2
"""Numbers with gaps."""
KINDS = ["fastgcn", "ladies", "saint-vertex", "saint-edge", "saint-walk", "saint-walks", "cluster"]


def made(kind, graph, train, clusters):
    """A sampler of the uncut or of a cut graph."""
    if kind in ("fastgcn", "ladies"):
        return {"fastgcn": FastGCN, "ladies": Ladies}[kind](graph, [25, 40, 10])
    if kind == "cluster":
        return ClusterSampler(graph, clusters, train, layers=2)
    steps = 3 if kind == "saint-walks" else 1
    return Saint(graph, train, kind.removeprefix("saint-").rstrip("s"), 12, steps, layers=2, presample=50)


def parted(kind, partition, local, channels, share=None, **more):
    """The same over parts."""
    graph = parted_graph(partition, kind, local, channels)
    sampler = made(kind, graph, partition.new_ids(TRAIN), CLUSTERS[partition.original()])
    return SharedSampler(graph, sampler, share, **more)


def items_of(kind):
    """What a batch is drawn for, in the uncut graph's numbers."""
    return {"fastgcn": SEEDS, "ladies": SEEDS, "cluster": np.array([4, 0, 18])}.get(kind, np.array([0]))


def given(kind, partition):
    """The same in those of the cut graph."""
    return partition.new_ids(SEEDS) if kind in ("fastgcn", "ladies") else items_of(kind)


def assert_same(partition, batch, whole):
    """Every array is equal once new numbers are original ones."""
    original = partition.original()
    np.testing.assert_array_equal(batch.names["node"], original[batch.vertices["node"]])
    np.testing.assert_array_equal(original[batch.seeds["node"]], whole.seeds["node"])
    # Positions are in lists that are elsewhere.
    bare = [replace(block, edges=None) for block in whole.blocks]
    same_batch(replace(batch, vertices=batch.names), replace(whole, blocks=bare))
    same_weights(batch, whole)
    assert batch.whole == len(whole.seeds["node"])


def same_weights(a, b):
    """Those of the seeds."""
    assert (a.seed_weights is None) == (b.seed_weights is None)
    if a.seed_weights is not None:
        np.testing.assert_array_equal(a.seed_weights, b.seed_weights)


def nobody(part):
    raise AssertionError(part)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_uncut_graph(tmp_path, owners, kind):
    """However many parts there are, wherever they are, and in pieces of any size."""
    graph = plain_graph()
    uncut = made(kind, graph, TRAIN, CLUSTERS)
    for parts in (1, 3):
        partition = cut_at_random(graph, parts, tmp_path)
        every = {part: OwnedPart.of(partition, part) for part in range(parts)}
        samplers = [parted(kind, partition, every, nobody)]
        if parts > 1:
            _, channels = owners(partition)
            with patch.object(homogeneous, "_PIECE", 500):
                samplers.append(parted(kind, partition, {1: every[1]}, channels))
        for sampler in samplers:
            for batch in range(3):
                key = BatchKey(3, 1, batch)
                assert_same(partition, sampler.sample(given(kind, partition), key), uncut.sample(items_of(kind), key))
            if hasattr(uncut, "items"):
                np.testing.assert_array_equal(sampler.items, uncut.items)
            else:
                assert sampler.items is None


@pytest.mark.covering(1)
@pytest.mark.parametrize("more", [{}, {"every_row": True}, {"every_input": True}], ids=str)
@pytest.mark.parametrize("kind", ["ladies", "saint-edge", "cluster"])
def test_shares_drawn_by_tasks_of_their_own(tmp_path, owners, kind, more):
    """They are those that are drawn here, and together they have every seed once."""
    partition = cut_at_random(plain_graph(), 4, tmp_path)
    worker, channels, *helpers = owners(partition, "sampler-0", "sampler-1")
    seeds, known, whole = [], set(), parted(kind, partition, {}, channels).sample(given(kind, partition), KEY)
    counts, names = {"node": 300}, {"node": partition.original()}
    for rank, helper in enumerate(helpers):

        def share(new, rank=rank):
            return np.argsort(new)[rank::2]

        here = parted(kind, partition, {0: OwnedPart.of(partition, 0)}, channels, share, **more)
        serve_batches(helper, {"train": parted(kind, partition, {}, _channels_of(helper), share, **more)})
        remote = RemoteSampler([worker.channel(helper.name)], "train", counts, names)
        draw = remote.sample if kind == "ladies" else remote.sample_items
        batch, own = draw(given(kind, partition), KEY), here.sample(given(kind, partition), KEY)
        same_batch(batch, own)
        same_weights(batch, own)
        np.testing.assert_array_equal(batch.seeds["node"], own.seeds["node"])
        np.testing.assert_array_equal(batch.names["node"], own.names["node"])
        assert batch.whole == own.whole == len(whole.seeds["node"])
        assert len(batch.vertices["node"]) <= len(whole.vertices["node"])
        seeds.append(batch.seeds["node"])
        known |= set(batch.vertices["node"])
        if kind != "ladies":
            np.testing.assert_array_equal(remote.items(), here.items)
    assert sorted(np.concatenate(seeds)) == sorted(whole.seeds["node"])
    assert known == set(whole.vertices["node"]) or not more


def _channels_of(endpoint):
    return lambda part: endpoint.channel(f"store-{part % 2}", "draws")


def test_whoever_asks_too_early_hears_that_the_task_lives(tmp_path, owners):
    partition = cut_at_random(plain_graph(), 2, tmp_path)
    worker, _, helper = owners(partition, "sampler-0")
    samplers, asked = {"train": None}, threading.Event()
    serve_batches(helper, samplers)
    with refused("not-available train", RemoteError) as caught:
        worker.channel("sampler-0").call(Message("items", {"sampler": "train"}))
    assert caught.value.type == "SamplerNotReady"
    remote = RemoteSampler([worker.channel("sampler-0")], "train", {"node": 300})
    found = []

    def ask():
        asked.set()
        found.append(remote.items())

    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait()
    samplers["train"] = parted("cluster", partition, {}, _channels_of(helper))
    thread.join()
    np.testing.assert_array_equal(found[0], np.unique(CLUSTERS))


def test_what_they_do_not_do_is_refused(tmp_path, owners):
    with refused("unsupported-combination"):
        typed = cut_at_random(typed_graph(), 2, tmp_path / "typed")
        parted_graph(typed, "ladies", {part: OwnedPart.of(typed, part) for part in range(2)}, nobody)
    partition = cut_at_random(plain_graph(), 2, tmp_path)
    worker, channels, helper = owners(partition, "sampler-0")
    ladies = parted("ladies", partition, {}, channels)
    serve_batches(helper, {"train": ladies})
    with refused("unsupported-combination", RemoteError):
        RemoteSampler([worker.channel("sampler-0")], "train", {"node": 300}).sample(
            SEEDS, KEY, exclude=np.empty((2, 0), np.int64)
        )
    with refused("unsupported-combination", RemoteError):
        RemoteSampler([worker.channel("sampler-0")], "train", {"node": 300}).items()
