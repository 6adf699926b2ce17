"""A cut graph's batches are those of the uncut graph, however it is cut and wherever its parts are."""

import numpy as np
import pytest
from cut_and_sampled import (
    KEY,
    assert_same_but_for_numbers,
    cut_at_random,
    parted_batch,
    plain_graph,
    some_edges,
    typed_graph,
    whole_batch,
)
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling import NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.lists import Readers
from penstock.sampling.parts import OwnedPart, parted_sampler
from random_graphs import graphs
from refusals import refused

WAYS = {
    "uniform": {},
    "totals": {"totals": True},
    "replace": {"replace": True},
    "weight": {"weight": "w"},
    "weight and replace": {"weight": "w", "replace": True},
    "hash": {"relabel": "hash"},
}
SEEDS = np.array([7, 0, 299, 31, 150, 12])
TYPED_SEEDS = {"item": np.array([5, 69, 0]), "user": np.array([119, 3])}


@pytest.mark.covering(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("excluding", [False, True])
def test_parts_here(tmp_path, way, excluding):
    graph, how = plain_graph(), {"fanouts": [4, -1, 3], **WAYS[way]}
    exclude = some_edges(graph.edges["node", "to", "node"]) if excluding else None
    whole = whole_batch(graph, SEEDS, how, exclude)
    for parts in (1, 2, 4):
        partition = cut_at_random(graph, parts, tmp_path)
        parted = parted_batch(partition, parted_sampler(partition, **how), SEEDS, exclude)
        assert_same_but_for_numbers(partition, parted, whole)


@pytest.mark.covering(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("excluding", [False, True])
def test_parts_of_a_typed_graph_here(tmp_path, way, excluding):
    graph = typed_graph()
    how = {"fanouts": [3, {"user__buys__item": 2, "item__seen__user": -1}, 5], **WAYS[way]}
    exclude = {kind: some_edges(edges) for kind, edges in graph.edges.items()} if excluding else None
    whole = whole_batch(graph, TYPED_SEEDS, how, exclude)
    for parts in (1, 2, 4):
        partition = cut_at_random(graph, parts, tmp_path)
        parted = parted_batch(partition, parted_sampler(partition, **how), TYPED_SEEDS, exclude)
        assert_same_but_for_numbers(partition, parted, whole)


@pytest.mark.covering(1)
@pytest.mark.parametrize("way", ["totals", "replace", "weight"])
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_behind_the_wire(tmp_path, owners, way, parts):
    graph, how = plain_graph(), {"fanouts": [4, -1, 3], **WAYS[way]}
    exclude = some_edges(graph.edges["node", "to", "node"])
    partition = cut_at_random(graph, parts, tmp_path)
    _, channels = owners(partition)
    for local in ({}, {1: OwnedPart.of(partition, 1)}):
        sampler = parted_sampler(partition, **how, local=local, channels=channels)
        for excluded in (None, exclude):
            parted = parted_batch(partition, sampler, SEEDS, excluded)
            assert_same_but_for_numbers(partition, parted, whole_batch(graph, SEEDS, how, excluded))


def test_typed_parts_behind_the_wire(tmp_path, owners):
    graph, how = typed_graph(), {"fanouts": [3, -1, 5], "weight": "w"}
    exclude = {kind: some_edges(edges) for kind, edges in graph.edges.items()}
    partition = cut_at_random(graph, 4, tmp_path)
    _, channels = owners(partition)
    for local in ({}, {2: OwnedPart.of(partition, 2)}):
        sampler = parted_sampler(partition, **how, local=local, channels=channels)
        parted = parted_batch(partition, sampler, TYPED_SEEDS, exclude)
        assert_same_but_for_numbers(partition, parted, whole_batch(graph, TYPED_SEEDS, how, exclude))


@given(graphs(min_nodes=4), st.integers(2, 4), st.sampled_from([1, 3, -1]), st.booleans())
def test_any_graph(tmp_path_factory, graph, parts, fanout, replace):
    partition = cut_at_random(graph, parts, tmp_path_factory.mktemp("cut"))
    how = {"fanouts": [fanout, 2], "replace": replace, "totals": True}
    seeds = {name: np.arange(nodes.count)[:: 2 + place] for place, (name, nodes) in enumerate(graph.nodes.items())}
    sampler = parted_sampler(partition, **how)
    if isinstance(sampler, NeighbourSampler):
        (seeds,) = seeds.values()
    parted = parted_batch(partition, sampler, seeds)
    assert_same_but_for_numbers(partition, parted, whole_batch(graph, seeds, how))


def test_trainers_share_a_part(tmp_path):
    graph = plain_graph()
    partition = cut_at_random(graph, 2, tmp_path, trainers=3)
    parted = parted_batch(partition, parted_sampler(partition, [5, 5]), SEEDS)
    assert_same_but_for_numbers(partition, parted, whole_batch(graph, SEEDS, {"fanouts": [5, 5]}))


def test_no_seeds(tmp_path, owners):
    partition = cut_at_random(plain_graph(), 2, tmp_path)
    _, channels = owners(partition)
    batch = parted_sampler(partition, [3, 3], weight="w", channels=channels).sample(np.empty(0, np.int64), KEY)
    assert len(batch.vertices["node"]) == batch.num_edges == 0
    assert all(block.weights is not None and len(block.totals) == 0 for block in batch.blocks)


def test_a_whole_graph_that_was_renumbered_names_its_vertices():
    graph = plain_graph()
    names = np.arange(graph.num_nodes)[::-1].copy()
    batch = NeighbourSampler(graph, [3], original=names).sample(SEEDS, KEY)
    np.testing.assert_array_equal(batch.names["node"], names[batch.vertices["node"]])
    assert NeighbourSampler(graph, [3]).sample(SEEDS, KEY).names is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"time": "t"}, "field-missing t"),
        ({"weight": "nothing"}, "field-missing nothing"),
        ({"fanouts": [3, 0]}, "value-out-of-range"),
        ({"fanouts": [{"node__to__node": 3}]}, "unsupported-combination"),
        ({"relabel": "somehow"}, "unknown-name"),
        ({"local": {}}, "not-available"),
    ],
)
def test_what_cannot_be(tmp_path, how, message):
    partition = cut_at_random(plain_graph(), 2, tmp_path)
    with refused(message):
        parted_sampler(partition, **{"fanouts": [2], **how})


def test_lists_of_parts_without_time_refuse_times(tmp_path):
    partition = cut_at_random(plain_graph(), 2, tmp_path)
    lists = parted_sampler(partition, [2])._lists
    with refused("unsupported-combination"):
        lists.start_totals(Readers(SEEDS, SEEDS, SEEDS))


def test_samplers_over_lists_know_what_they_are_for(tmp_path):
    typed = parted_sampler(cut_at_random(typed_graph(), 2, tmp_path), [2])
    assert isinstance(typed, TypedNeighbourSampler)
    with refused("unknown-name sells"):
        typed.sample({}, KEY, exclude={"sells": np.zeros((2, 1), int)})
