"""Edge batches: ends, rows, exclusions, for any types of ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_graphs import RATED, RATES, shop_graph

from penstock.graph.csr import build_lists
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.sampling.block import merge_edges
from penstock.sampling.links import EdgeBatcher, InBatch, Joint, Uniform, find_reverse, known, negatives_named
from random_graphs import directed_graph, graphs, power_law_graph
from refusals import refused

KEY = BatchKey(3, 1, 4)
POLICIES = [
    None,
    Uniform(3),
    Uniform(2, "both", True),
    Joint(4),
    Joint(5, 3, "both", True),
    Joint(4, 100, "source"),
    InBatch(),
    InBatch("both", True),
]


def assert_contract(batch, edges):
    """What holds for every batch: rows point at their vertices, and pairs are what the fields say."""
    source_type, _, destination_type = batch.edge_type
    of_source, of_destination = batch.nodes[source_type], batch.nodes[destination_type]
    np.testing.assert_array_equal(of_source[batch.source_rows], batch.source)
    np.testing.assert_array_equal(of_destination[batch.destination_rows], batch.destination)
    np.testing.assert_array_equal(of_source[batch.negative_source_rows], batch.negative_source)
    np.testing.assert_array_equal(of_destination[batch.negative_destination_rows], batch.negative_destination)
    np.testing.assert_array_equal(edges.indices[batch.edges], batch.source)
    np.testing.assert_array_equal(edges.destinations()[batch.edges], batch.destination)
    parts = {kind: [] for kind in (source_type, destination_type)}
    parts[source_type].append(batch.source)
    parts[destination_type] += [batch.destination, batch.negative_destination.ravel()]
    parts[source_type].append(batch.negative_source.ravel())
    for kind, some in parts.items():
        flat = [int(vertex) for part in some for vertex in part]
        assert batch.nodes[kind].tolist() == list(dict.fromkeys(flat))


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=15, deadline=None)
@given(graph=graphs(), seed=st.integers(0, 99), amount=st.integers(0, 20))
def test_batches_keep_the_contract_on_any_types(policy, graph, seed, amount):
    edge_type = graph.edge_types[seed % len(graph.edges)]
    edges = graph.edges[edge_type]
    positions = np.random.default_rng(seed).integers(0, max(edges.count, 1), amount if edges.count else 0)
    batch = EdgeBatcher(graph, edge_type, policy).batch(positions, KEY)
    assert len(batch) == len(positions)
    assert_contract(batch, edges)
    rows, columns, labels = batch.pairs()
    sources, destinations, counts = batch.ranking()
    assert sources.shape == destinations.shape == counts.shape
    assert counts[:, 0].all()
    assert len(rows) == len(columns) == len(labels) == counts.sum()
    assert labels.sum() == len(batch)
    own = np.stack([batch.source_rows, batch.destination_rows], 1)
    np.testing.assert_array_equal(np.stack([rows, columns], 1)[: len(batch)], own)
    # No negative that counts is its own positive.
    wrong = (sources == own[:, :1]) & (destinations == own[:, 1:]) & counts
    assert not wrong[:, 1:].any()


def test_ends_are_found_beside_empty_lists():
    graph = directed_graph(500, 300, seed=3)
    edges = next(iter(graph.edges.values()))
    batch = EdgeBatcher(graph).batch(np.arange(edges.count), KEY)
    np.testing.assert_array_equal(batch.destination, edges.destinations())
    np.testing.assert_array_equal(batch.source, edges.indices)


def test_the_seed_edges_and_their_reverses_are_excluded():
    graph = power_law_graph(200, 4)
    batcher = EdgeBatcher(graph, negatives=Uniform())
    assert batcher.reverse == "same"
    batch = batcher.batch(np.arange(0, 300, 7), KEY)
    pairs = set(zip(*batch.exclude.tolist(), strict=True))
    wanted = set(zip(batch.source.tolist(), batch.destination.tolist(), strict=True))
    assert pairs == wanted | {(b, a) for a, b in wanted}
    np.testing.assert_array_equal(batch.seeds, batch.nodes["node"])


def test_a_sampler_given_the_batch_never_draws_its_edges():
    graph = power_law_graph(200, 4)
    batch = EdgeBatcher(graph, negatives=Uniform(2)).batch(np.arange(0, 300, 7), KEY)
    sampled = NeighbourSampler(graph, [-1, -1]).sample(batch.seeds, KEY, exclude=batch.exclude)
    sources, destinations = sampled.vertices["node"][merge_edges(sampled.blocks)]
    drawn = set(zip(sources.tolist(), destinations.tolist(), strict=True))
    assert len(drawn) > 500
    assert not drawn & set(zip(*batch.exclude.tolist(), strict=True))


def test_mapped_graphs_give_the_same_batches(tmp_path):
    graph = power_law_graph(100, 4)
    mapped = graph.save(tmp_path / "g")
    policy = Uniform(2, "both", True)
    here, there = (EdgeBatcher(some, negatives=policy).batch(np.arange(50), KEY) for some in (graph, mapped))
    for left, right in zip(here.pairs(), there.pairs(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_exclusions_of_a_directed_graph_go_one_way():
    batch = EdgeBatcher(directed_graph(100, 300)).batch(np.arange(9), KEY)
    np.testing.assert_array_equal(batch.exclude, np.stack([batch.source, batch.destination]))


def test_reverses_are_found_by_a_search_as_by_cursors():
    rng, kernels, answers = np.random.default_rng(0), (known._all_turned, known._all_found_turned), set()
    for turned in (True, False) * 5:
        ends = rng.integers(0, 20, (2, 40))
        lists = [*build_lists(*ends, 20, 20)[:2], *build_lists(*ends[::-1], 20, 20)[:2]]
        if not turned:
            lists[3] = np.sort(rng.integers(0, 20, 40)).astype(lists[3].dtype)
        found = [bool(kernel(*lists)) for kernel in kernels]
        assert found[0] == found[1]
        answers.add(found[0])
    assert answers == {True, False}


def test_exclusions_of_a_typed_graph_name_the_reverse_relation():
    graph = shop_graph()
    assert find_reverse(graph, RATES) == RATED
    assert find_reverse(graph, RATED) == RATES
    batch = EdgeBatcher(graph, RATES, Uniform(2)).batch(np.arange(12), KEY)
    forward = np.stack([batch.source, batch.destination])
    assert set(batch.exclude) == {RATES, RATED}
    np.testing.assert_array_equal(batch.exclude[RATES], forward)
    np.testing.assert_array_equal(batch.exclude[RATED], forward[::-1])
    assert batch.seeds is batch.nodes
    assert set(EdgeBatcher(graph, RATES, reverse="none").batch(np.arange(3), KEY).exclude) == {RATES}


def test_edge_classification_carries_labels_and_no_negatives():
    graph = shop_graph()
    positions = np.array([5, 0, 77])
    batch = EdgeBatcher(graph, RATES, labels="stars").batch(positions, KEY)
    np.testing.assert_array_equal(batch.labels, graph.edges[RATES].fields["stars"][positions])
    assert batch.negative_destination.size == batch.negative_source.size == 0
    assert batch.pairs()[2].tolist() == [1, 1, 1]


def test_pairs_outside_the_lists_make_batches_too():
    pairs = np.array([[0, 1], [39, 24]])
    batch = EdgeBatcher(shop_graph(), RATES, Uniform(2)).batch_of_pairs(pairs, KEY)
    assert batch.edges.tolist() == [-1, -1]
    np.testing.assert_array_equal(np.stack([batch.source, batch.destination], 1), pairs)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EdgeBatcher(shop_graph()), "option-missing"),
        (lambda: EdgeBatcher(shop_graph(), ("a", "b", "c")), "unknown-name"),
        (lambda: EdgeBatcher(shop_graph(), RATES, reverse="same"), "unsupported-combination"),
        (lambda: EdgeBatcher(shop_graph(), RATES, reverse=("x", "y", "z")), "unknown-name"),
        (lambda: EdgeBatcher(shop_graph(), RATES, reverse=RATES), "unsupported-combination"),
        (lambda: EdgeBatcher(shop_graph(), RATES, labels="star"), "field-missing star"),
        (lambda: EdgeBatcher(shop_graph(), RATES).batch(np.array([150]), KEY), "id-out-of-range 0..149"),
        (lambda: EdgeBatcher(shop_graph(), RATES).batch_of_pairs(np.array([[40, 0]]), KEY), "id-out-of-range 40"),
        (lambda: EdgeBatcher(shop_graph(), RATES).batch_of_pairs(np.array([1, 2]), KEY), "shape-mismatch [m 2]"),
        (lambda: Uniform(0), "value-out-of-range 1"),
        (lambda: Uniform(1, "ends"), "unknown-name"),
        (lambda: Joint(group=0), "value-out-of-range 0"),
        (lambda: negatives_named("unifrom"), "unknown-name uniform"),
        (lambda: negatives_named("in-batch", k=3), "unknown-name k"),
        (lambda: EdgeBatcher(shop_graph(items=1), RATES, Uniform()).batch(np.arange(2), KEY), "missing-data"),
    ],
)
def test_mistakes_are_one_sentence(make, sentence):
    with refused(sentence):
        make()
