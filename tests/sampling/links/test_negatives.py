"""Negatives: never true edges when filtered, even, and the same whatever the threads and the order."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from link_graphs import RATES, complete_graph, shop_graph, true_pairs

from penstock.sampling import BatchKey
from penstock.sampling.links import EdgeBatcher, InBatch, Joint, Uniform, known_edges
from random_graphs import directed_graph, power_law_graph

KEY = BatchKey(5, 0, 2)


def only_edges(graph):
    return next(iter(graph.edges.values()))


def assert_even(drawn, allowed):
    """Chi-square of draws over the allowed vertices, within five deviations of what chance gives."""
    counts = np.bincount(drawn, minlength=max(allowed) + 1)[allowed]
    assert counts.sum() == len(drawn)
    expected = len(drawn) / len(allowed)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(allowed) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("corrupt", ["destination", "source", "both"])
@pytest.mark.parametrize("policy", [Uniform, Joint, InBatch])
def test_filtered_negatives_that_count_are_never_true_edges(policy, corrupt):
    graph = directed_graph(60, 900, seed=2)
    edges = only_edges(graph)
    true = true_pairs(edges)
    batcher = EdgeBatcher(graph, negatives=policy(corrupt=corrupt, filtered=True))
    batch = batcher.batch(np.arange(0, edges.count, 5), KEY)
    nodes = batch.nodes["node"]
    rows, columns, labels = batch.pairs()
    pairs = list(zip(nodes[rows].tolist(), nodes[columns].tolist(), strict=True))
    assert sum(labels == 0) > 100
    assert all((pair in true) == bool(label) for pair, label in zip(pairs, labels, strict=True))


def test_clashes_are_counted_and_masked_alone():
    graph = directed_graph(60, 900, seed=2)
    true = true_pairs(only_edges(graph))
    batch = EdgeBatcher(graph, negatives=Joint(40, filtered=True)).batch(np.arange(0, 900, 5), KEY)
    pairs = [(s, v) for s in batch.source.tolist() for v in batch.negative_destination[0].tolist()]
    own = np.repeat(batch.destination, 40) == np.tile(batch.negative_destination[0], len(batch))
    clash = np.array([pair in true for pair in pairs]) & ~own
    assert batch.clashes == clash.sum() > 0
    np.testing.assert_array_equal(batch.negative_destination_mask.ravel(), ~clash & ~own)


def test_held_out_pairs_are_avoided_in_both_directions_of_a_symmetric_graph():
    graph = power_law_graph(60, 3)
    source = int(only_edges(graph).indices[0])
    held = np.array([[v, source] for v in range(60) if v != 7])
    known = known_edges(graph, held_out=[held])
    position = np.zeros(1, np.int64)
    batch = EdgeBatcher(graph, negatives=Uniform(20, filtered=True), known=known).batch(position, KEY)
    own = batch.destination[0]
    expected = [] if own == 7 or (source, 7) in true_pairs(only_edges(graph)) else [7]
    counted = np.ones((1, 20), bool) if batch.negative_destination_mask is None else batch.negative_destination_mask
    assert set(batch.negative_destination[counted].tolist()) == set(expected)


def test_where_every_pair_is_true_nothing_counts():
    graph = complete_graph()
    for policy in (Uniform(4, filtered=True), Joint(4, filtered=True)):
        batch = EdgeBatcher(graph, negatives=policy).batch(np.arange(1), KEY)
        self_pairs = batch.negative_destination == batch.source[0]
        mask = batch.negative_destination_mask
        np.testing.assert_array_equal(np.ones_like(self_pairs) if mask is None else mask, self_pairs)
        assert (batch.negative_destination != batch.destination[0]).all()


@pytest.mark.parametrize("filtered", [False, True])
def test_uniform_negatives_are_even_over_what_is_allowed(filtered):
    graph = directed_graph(50, 600, seed=4)
    true = true_pairs(only_edges(graph))
    batch = EdgeBatcher(graph, negatives=Uniform(20_000, "both", filtered)).batch(np.array([100]), KEY)
    source, destination = int(batch.source[0]), int(batch.destination[0])
    others = [v for v in range(50) if v != destination and not (filtered and (source, v) in true)]
    assert_even(batch.negative_destination[0], np.array(others))
    others = [v for v in range(50) if v != source and not (filtered and (v, destination) in true)]
    assert_even(batch.negative_source[0], np.array(others))


def test_joint_negatives_that_count_are_even_for_every_positive():
    graph = directed_graph(50, 600, seed=4)
    true = true_pairs(only_edges(graph))
    batch = EdgeBatcher(graph, negatives=Joint(20_000, filtered=True)).batch(np.array([0, 100, 333]), KEY)
    for i in range(3):
        source, own = int(batch.source[i]), int(batch.destination[i])
        allowed = [v for v in range(50) if v != own and (source, v) not in true]
        assert_even(batch.negative_destination[0][batch.negative_destination_mask[i]], np.array(allowed))


def test_groups_share_their_negatives_and_no_others():
    graph = shop_graph()
    batch = EdgeBatcher(graph, RATES, Joint(50, group=4)).batch(np.arange(10), KEY)
    assert batch.negative_destination.shape == (3, 50)
    assert batch.group == 4
    assert len({tuple(row) for row in batch.negative_destination.tolist()}) == 3
    _, destinations, _ = batch.ranking()
    wanted = batch.negative_destination[np.arange(10) // 4]
    np.testing.assert_array_equal(batch.nodes["item"][destinations[:, 1:]], wanted)


def test_in_batch_negatives_are_the_other_destinations():
    batch = EdgeBatcher(shop_graph(), RATES, InBatch()).batch(np.arange(0, 60, 6), KEY)
    np.testing.assert_array_equal(batch.negative_destination, batch.destination[None])
    np.testing.assert_array_equal(batch.negative_destination_mask, batch.destination[:, None] != batch.destination)
    assert len(batch.nodes["item"]) == len(np.unique(batch.destination))


def test_draws_do_not_depend_on_order_or_company():
    graph = directed_graph(300, 3000, seed=1)
    batcher = EdgeBatcher(graph, negatives=Uniform(5, "both", True))
    positions = np.random.default_rng(0).permutation(3000)[:400]
    whole = batcher.batch(positions, KEY)
    turned = batcher.batch(positions[::-1], KEY)
    part = batcher.batch(positions[100:120], KEY)
    np.testing.assert_array_equal(turned.negative_destination[::-1], whole.negative_destination)
    np.testing.assert_array_equal(turned.negative_source[::-1], whole.negative_source)
    np.testing.assert_array_equal(part.negative_destination, whole.negative_destination[100:120])
    other = batcher.batch(positions, BatchKey(5, 0, 3))
    assert (other.negative_destination != whole.negative_destination).mean() > 0.9


def test_parallel_edges_draw_apart():
    graph = shop_graph(users=2, items=50, amount=300)
    edges = graph.edges[RATES]
    twins = np.flatnonzero((np.diff(edges.indices) == 0) & (np.diff(edges.destinations()) == 0))
    batch = EdgeBatcher(graph, RATES, Uniform(20)).batch(np.array([twins[0], twins[0] + 1]), KEY)
    assert batch.source[0] == batch.source[1]
    assert (batch.negative_destination[0] != batch.negative_destination[1]).any()


@pytest.mark.parametrize("policy", [Uniform(4, filtered=True), Joint(16, 8, filtered=True), InBatch()])
def test_batches_are_the_same_on_any_threads(policy):
    graph = power_law_graph(400, 5)
    batcher = EdgeBatcher(graph, negatives=policy)
    edges = only_edges(graph)
    order = np.random.default_rng(1).permutation(edges.count)[:1024].reshape(16, 64)

    def work(i):
        return batcher.batch(order[i], BatchKey(0, 0, i))

    alone = [work(i) for i in range(16)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, reversed(range(16))))[::-1]
    for a, b in zip(alone, together, strict=True):
        for left, right in zip(a.pairs(), b.pairs(), strict=True):
            np.testing.assert_array_equal(left, right)
        np.testing.assert_array_equal(a.nodes["node"], b.nodes["node"])
