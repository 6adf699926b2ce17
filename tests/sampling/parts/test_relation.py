"""One relation read from its owners is the uncut graph's, and nobody draws what is held out of it."""

import numpy as np
import pytest
from cut_and_sampled import KEY, assert_same_but_for_numbers, cut_at_random, plain_graph, typed_graph, whole_batch

from penstock.sampling.links import split_and_tell, split_edges
from penstock.sampling.parts import HoldoutSampler, OwnedPart, RelationReader, RemoteSampler, parted_sampler
from penstock.sampling.parts.batches import serve_batches
from penstock.sampling.parts.graph import edge_types_in
from penstock.wire.channel import RemoteError
from penstock.wire.message import Message
from refusals import refused
from training_graphs import community_graph

BUYS = ("user", "buys", "item")
SEEDS = np.array([7, 0, 199, 31, 150, 12])


def assert_same_edges(found, edges):
    """Lists, and held-out pairs in their order; fields are rows of a store."""
    np.testing.assert_array_equal(found.indptr, edges.indptr)
    np.testing.assert_array_equal(found.indices, edges.indices)
    assert not found.fields
    assert list(found.held_out) == list(edges.held_out)
    for name, pairs in found.held_out.items():
        np.testing.assert_array_equal(pairs, edges.held_out[name])


@pytest.mark.parametrize("parts", [1, 3])
def test_relations_are_read_whole(tmp_path, owners, parts):
    graph = split_edges(typed_graph(), BUYS, (0.1, 0.2), reverse="none")
    graph.edges[BUYS].categories["w"] = ["light", "heavy"]
    partition = cut_at_random(graph, parts, tmp_path)
    _, channels = owners(partition)
    for local in ({}, {0: OwnedPart.of(partition, 0)}):
        reader = RelationReader(partition, local, channels)
        for kind, edges in graph.edges.items():
            assert_same_edges(reader.lists(kind), edges)
            values = reader.no_values(kind, "w")
            assert (values.shape, values.dtype) == ((0,), edges.fields["w"].dtype)
        assert reader.names(BUYS, "w") == (["w"], ["val", "test"], ["light", "heavy"])
        assert reader.names(("tag", "on", "item"), "w") == (["w"], [], None)
    about = {"part": 0, "relation": "user__buys__item", "label": ""}
    for pairs in (False, True):
        said = channels(0).call(Message("held-out", {**about, "pairs": pairs}))
        assert said.body["held_out"] == ["val", "test"] and len(said.arrays) == (4 if pairs else 0)


def test_owners_give_no_more_than_there_is(tmp_path, owners):
    partition = cut_at_random(plain_graph(), 2, tmp_path)
    _, channels = owners(partition)
    about = {"part": 0, "relation": "node__to__node"}
    for kind, body in [
        ("degrees", {**about, "first": 0, "last": 10**6}),
        ("degrees", {**about, "first": 5, "last": 4}),
        ("edges", {**about, "first": 0, "last": 10**6}),
        ("edges", {**about, "first": 0, "last": 1, "field": "w"}),
        ("edges", {**about, "first": 0}),
        ("held-out", {**about, "label": 7, "pairs": True}),
        ("held-out", {**about, "label": "", "pairs": 1}),
        ("held-out", {**about, "part": "0", "label": "", "pairs": True}),
    ]:
        with pytest.raises(RemoteError):
            channels(0).call(Message(kind, body))


@pytest.mark.covering(1)
@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_nobody_draws_what_is_held_out(tmp_path, owners, weight, symmetric):
    """Batches are those of the split graph, though the parts still have all edges; also drawn by a sampler task."""
    graph = community_graph() if symmetric else plain_graph()
    ((kind, edges),) = graph.edges.items()
    edges.fields["w"] = np.random.default_rng(0).uniform(0.5, 2, edges.count).astype(np.float32)
    split, absent = split_and_tell(graph, kind, (0.2, 0.1), 5)
    assert absent[kind].unordered == symmetric and split.edges[kind].count < edges.count
    partition = cut_at_random(graph, 3, tmp_path)
    how = {"fanouts": [4, -1, 3], "weight": weight, "totals": True}
    whole = whole_batch(split, SEEDS, how)
    worker, channels, helper = owners(partition, "sampler-0")
    made = []

    def lacking(rules):
        made.append(rules)
        return parted_sampler(partition, **how, local={1: OwnedPart.of(partition, 1)}, channels=channels, absent=rules)

    sampler = HoldoutSampler(lacking, edge_types_in({}, channels))
    seeds = partition.new_ids(SEEDS)
    assert_same_but_for_numbers(partition, sampler.sample(seeds, KEY, absent=absent), whole)
    serve_batches(helper, {"train": sampler})
    remote = RemoteSampler(
        [worker.channel("sampler-0", "batches")], "train", {"node": graph.num_nodes}, {"node": partition.original()}
    )
    assert_same_but_for_numbers(partition, remote.sample(seeds, KEY, absent=absent), whole)
    assert made == [{}, absent]
    assert_same_but_for_numbers(partition, remote.sample(seeds, KEY), whole_batch(graph, SEEDS, how))


def test_a_reverse_relation_lacks_the_same_edges(tmp_path):
    graph = typed_graph()
    edges = graph.edges[BUYS]
    back = np.lexsort((edges.destinations(), edges.indices))
    reverse = type(edges)(
        np.searchsorted(edges.indices[back], np.arange(121)), edges.destinations()[back], {"w": edges.fields["w"][back]}
    )
    graph.edges["item", "bought", "user"] = reverse
    split, absent = split_and_tell(graph, BUYS, (0.2, 0.2), 1)
    assert absent["item", "bought", "user"].turned
    partition = cut_at_random(graph, 2, tmp_path)
    how = {"fanouts": [3, -1], "weight": "w"}
    seeds = {"item": np.array([5, 69, 0]), "user": np.array([119, 3])}
    sampler = parted_sampler(partition, **how, absent=absent)
    new = {name: partition.new_ids(these, name) for name, these in seeds.items()}
    assert_same_but_for_numbers(partition, sampler.sample(new, KEY), whole_batch(split, seeds, how))


def test_a_sampler_of_the_whole_graph_says_that_it_lacks_nothing(tmp_path, owners):
    graph = community_graph()
    (kind,) = graph.edges
    partition = cut_at_random(graph, 2, tmp_path)
    worker, channels, helper = owners(partition, "sampler-0")
    serve_batches(helper, {"train": parted_sampler(partition, [2], channels=channels)})
    remote = RemoteSampler([worker.channel("sampler-0", "batches")], "train", {"node": 200})
    _, absent = split_and_tell(graph, kind, (0.2, 0.1), 5)
    with refused("unsupported-combination", RemoteError):
        remote.sample(SEEDS, KEY, absent=absent)
    lacking = HoldoutSampler(lambda rules: parted_sampler(partition, [2], absent=rules), [kind])
    with refused("unknown-name"):
        lacking.sample(SEEDS, KEY, absent={("node", "likes", "node"): absent[kind]})
