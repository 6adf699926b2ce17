"""Batches drawn by sampler tasks are those that the worker would have drawn, and malformed ones are noticed."""

import copy

import numpy as np
import pytest
from cut_and_sampled import KEY, cut_at_random, plain_graph, some_edges, typed_graph
from hypothesis import given
from hypothesis import strategies as st

from neighbourhoods import same_arrays, same_batch
from penstock.sampling import BatchKey, NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.parts import RemoteSampler, parted_sampler, serve_batches
from penstock.sampling.parts.requests import batch_messages, batch_received
from penstock.wire.channel import RemoteError
from penstock.wire.message import LIMITS, Message, decode, encode
from random_graphs import graphs
from refusals import refused

SEEDS = np.array([7, 0, 299, 31])


def carried(batch, counts):
    """Through the frames of real messages."""
    messages = [decode([bytes(f) for f in encode(each, 1, "part")]).message for each in batch_messages(batch)]
    return batch_received(messages, counts, batch.key, "sampler-0")


@given(graphs(), st.sampled_from([2, -1]), st.sampled_from([{"edges": True}, {"totals": True}, {"weight": "weight"}]))
def test_batches_come_as_they_went(graph, fanout, how):
    seeds = {name: np.arange(nodes.count)[::3] for name, nodes in graph.nodes.items()}
    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    batch = TypedNeighbourSampler(graph, [fanout, 3], **how).sample(seeds, KEY)
    came = carried(batch, counts)
    same_batch(came, batch)
    assert list(came.seeds) == list(batch.seeds)
    assert all(np.array_equal(came.seeds[name], these) for name, these in seeds.items())
    assert came.key == KEY
    if graph.is_homogeneous:
        (only,) = seeds.values()
        plain = NeighbourSampler(graph, [fanout, 3], **how).sample(only, KEY)
        came = carried(plain, counts)
        same_batch(came, plain)
        same_arrays(came.seeds, plain.seeds)
        assert all(block.indices.flags.writeable for block in came.blocks)


def test_many_relations_take_several_messages():
    graph = typed_graph()
    batch = TypedNeighbourSampler(graph, [2] * 8, weight="w").sample({"item": np.arange(5)}, KEY)
    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    messages = batch_messages(batch)
    assert len(messages) > 1
    assert max(len(message.arrays) for message in messages) <= LIMITS.arrays
    same_batch(carried(batch, counts), batch)


def test_totals_travel_once():
    batch = NeighbourSampler(plain_graph(), [3, 3, 3], totals=True).sample(SEEDS, KEY)
    (message,) = batch_messages(batch)
    assert sum(array.dtype == np.float32 for array in message.arrays) == 1


@pytest.fixture
def two_samplers(tmp_path, owners):
    """`(a remote sampler, the same sampler here, the partition, the batches that each task drew)`."""

    def make(graph, how):
        partition = cut_at_random(graph, 2, tmp_path)
        worker, channels, *tasks = owners(partition, "sampler-0", "sampler-1")
        drew = {}
        for task in tasks:
            store = {part: task.channel(f"store-{part % 2}") for part in range(2)}
            inner = parted_sampler(partition, **how, channels=store.__getitem__)
            drew[task.name] = []
            serve_batches(task, {"train": _noting(inner, drew[task.name])})
        counts = {name: partition.book.count(name) for name in partition.book.node_types}
        names = {name: partition.original(name) for name in counts}
        remote = RemoteSampler([worker.channel(task.name) for task in tasks], "train", counts, names)
        return remote, parted_sampler(partition, **how, channels=channels), drew

    return make


def _noting(sampler, drew):
    """The sampler itself, with a note of every batch that it draws."""
    sample = sampler.sample
    sampler.sample = lambda seeds, key, **more: drew.append(key.batch) or sample(seeds, key, **more)
    return sampler


def test_remote_is_inline(two_samplers):
    graph = plain_graph()
    remote, inline, drew = two_samplers(graph, {"fanouts": [4, 3], "weight": "w"})
    exclude = some_edges(graph.edges["node", "to", "node"])
    for batch in range(4):
        for excluded in (None, exclude):
            key = BatchKey(1, 0, batch)
            came, here = remote.sample(SEEDS, key, exclude=excluded), inline.sample(SEEDS, key, exclude=excluded)
            same_batch(came, here)
            same_arrays(came.names, here.names)
            assert came.key == key
    assert drew == {"sampler-0": [0, 0, 2, 2], "sampler-1": [1, 1, 3, 3]}


def test_remote_is_inline_on_a_typed_graph(two_samplers):
    graph = typed_graph()
    remote, inline, _ = two_samplers(graph, {"fanouts": [3, -1], "totals": True})
    seeds = {"item": np.array([4, 1]), "user": np.array([100])}
    exclude = {"user__buys__item": some_edges(graph.edges["user", "buys", "item"])}
    for excluded in (None, {}, exclude, {("user", "buys", "item"): exclude["user__buys__item"]}):
        same_batch(remote.sample(seeds, KEY, exclude=excluded), inline.sample(seeds, KEY, exclude=excluded))


def test_seeds_that_are_refused(two_samplers):
    remote, _, _ = two_samplers(plain_graph(), {"fanouts": [2]})
    for seeds, exclude, message in [
        (np.array([300]), None, "id-out-of-range 0..299"),
        (np.array([4, 4]), None, "duplicate 4"),
        ({"item": np.array([1])}, None, "unknown-name item"),
        (SEEDS, np.zeros((3, 1), int), "shape-mismatch"),
        (SEEDS, np.full((2, 1), 300), "id-out-of-range 0..299"),
        (SEEDS, {"node__to__node": np.zeros((2, 1), int)}, "unsupported-combination"),
        ({"node": SEEDS}, None, "mismatched-inputs"),
    ]:
        with refused(message):
            remote.sample(seeds, KEY, exclude=exclude)


def test_requests_that_are_refused(posts):
    worker, task = posts("worker", "sampler")
    serve_batches(task, {"train": NeighbourSampler(plain_graph(), [2])})
    body = {"sampler": "train", "key": [1, 2, 3], "seeds": {"node": 4}, "excluded": None}
    for change, arrays, message in [
        ({"sampler": "trian"}, (SEEDS,), "unknown-name train"),
        ({"key": [1, 2]}, (SEEDS,), "malformed-message"),
        ({"key": [1, 2, "3"]}, (SEEDS,), "malformed-message"),
        ({"seeds": {"node": -4}}, (SEEDS,), "malformed-message seeds.node"),
        ({"seeds": {"item": 4}}, (SEEDS,), "unsupported-combination"),
        ({}, (), "malformed-message"),
        ({}, (SEEDS[:3],), "malformed-message"),
        ({}, (SEEDS / 2,), "shape-mismatch"),
        ({}, (SEEDS, np.zeros((2, 1), int)), "malformed-message"),
        ({"excluded": {"": 2}}, (SEEDS, np.zeros((2, 1), int)), "malformed-message"),
        ({"excluded": {"": 1}}, (SEEDS, np.full((2, 1), -1)), "id-out-of-range"),
    ]:
        with refused(message, RemoteError):
            list(worker.channel("sampler").start(Message("batch", {**body, **change}, arrays)).parts())


def test_there_must_be_somebody_to_ask():
    with refused("option-missing"):
        RemoteSampler([], "train", {"node": 3})


def _changed(body, path, value):
    body = copy.deepcopy(body)
    place = body
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return body


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["arrays"], 99, "malformed-message 99"),
        (["typed"], True, "malformed-message"),
        (["vertices"], {"item": 0}, "malformed-message"),
        (["vertices"], {}, "malformed-message"),
        (["vertices", "node"], 77, "malformed-message"),
        (["vertices", "node"], 1, "malformed-message"),
        (["seeds", "node"], 5, "malformed-message"),
        (["seeds"], {"item": 4}, "malformed-message"),
        (["whole"], 3, "malformed-message"),
        (["seed_weights"], 0, "malformed-message"),
        (["layers"], [], "malformed-message"),
        (["layers", 0, "num_src", "node"], 1000, "malformed-message"),
        (["layers", 0, "num_dst", "node"], 2, "malformed-message"),
        (["layers", 0, "relations"], [], "malformed-message"),
        (["layers", 0, "relations", 0, "kind"], ["node", "to", "node"], "malformed-message"),
        (["layers", 0, "relations", 0, "indices"], 0, "malformed-message"),
        (["layers", 0, "relations", 0, "counts"], 0, "malformed-message"),
        (["layers", 0, "relations", 0, "weights"], 0, "malformed-message"),
        (["layers", 0, "relations", 0, "totals"], [4, 1], "malformed-message"),
        (["layers", 0, "relations", 0, "totals"], [4, 100_000], "malformed-message"),
        (["layers", 0, "relations", 0, "totals"], [4], "malformed-message totals"),
        (["layers", 0, "extra"], 1, "malformed-message extra"),
    ],
)
def test_a_batch_is_not_believed(path, value, message):
    batch = NeighbourSampler(plain_graph(), [3, 2], weight="w").sample(SEEDS, KEY)
    (whole,) = batch_messages(batch)
    assert batch_received([whole], {"node": 300}, KEY, "sampler-0").num_edges == batch.num_edges
    with refused(message):
        batch_received([Message("batch", _changed(whole.body, path, value), whole.arrays)], {"node": 300}, KEY, "s")


def test_rows_and_vertices_of_a_batch_are_checked():
    batch = NeighbourSampler(plain_graph(), [3, 2]).sample(SEEDS, KEY)
    (whole,) = batch_messages(batch)
    for place, wrong in [(0, 300), (0, -1), (2, len(batch.vertices["node"])), (2, -1)]:
        arrays = list(whole.arrays)
        arrays[place] = arrays[place].copy()
        arrays[place][0] = wrong
        with refused("malformed-message"):
            batch_received([Message("batch", whole.body, tuple(arrays))], {"node": 300}, KEY, "s")
    with refused("malformed-message"):
        batch_received([], {"node": 300}, KEY, "s")
