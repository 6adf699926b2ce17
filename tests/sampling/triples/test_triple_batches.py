"""Batches of triples: what is drawn, what counts, and what a share of a batch keeps."""

import numpy as np
import pytest

from knowledge_graph import family_graph, shop_graph
from penstock.sampling import BatchKey
from penstock.sampling.triples import (
    Entities,
    KnownTriples,
    TripleBatcher,
    Triples,
    held_out_triples,
    relations_of,
    training_triples,
    triple_negatives,
)
from penstock.sampling.triples import batcher as batcher_of_triples
from penstock.sampling.triples.batcher import weight_sums
from penstock.train.dataset.prepared_graph import with_reverses
from refusals import refused

KEY = BatchKey(3, 1, 2)


def batcher(graph, name="uniform", k=4, group=0, power=0.0, filtered=True):
    """A batcher of both ends, its triples and what is true."""
    relations = relations_of(graph.edges)
    entities = Entities({name: nodes.count for name, nodes in graph.nodes.items()}, relations)
    triples = training_triples(graph, relations, entities)
    known = KnownTriples(triples, entities.count)
    policy = triple_negatives(name, k, group, power, filtered)
    ends = "destination", "source"
    return TripleBatcher(triples, entities, relations, list(graph.edges), policy, ends, known), triples, known


def mask_of(drawn, count):
    mask = np.zeros((count, drawn.entities.shape[1]), bool)
    mask.ravel()[drawn.masked] = True
    return mask


def against(batch, end, i):
    """The entities that count against a triple at an end."""
    drawn = batch.corrupted[end]
    return drawn.entities[i // drawn.group][~mask_of(drawn, len(batch))[i]]


def test_triples_are_those_of_the_lists():
    graph = shop_graph()
    found, triples, known = batcher(graph)
    relations = relations_of(graph.edges)
    for number, kind in enumerate(relations):
        some = triples.at(triples.relation == number)
        start = {"person": 0, "thing": 30}
        pairs = np.stack([some.head - start[kind[0]], some.tail - start[kind[2]]])
        np.testing.assert_array_equal(pairs, graph.edges[kind].edge_index())
    held = held_out_triples(graph, relations, found.entities, "val")
    assert held.total == 16 and held.tail[held.relation == 0].min() >= 30
    assert known.contains(triples).all() and not known.contains(held).any()


@pytest.mark.parametrize("name, group", [("uniform", 0), ("joint", 0), ("joint", 5)])
def test_tables_of_a_batch_serve_as_tables_of_all_entities(monkeypatch, name, group):
    found, triples, _ = batcher(shop_graph(), name, 6, group)
    positions = np.random.default_rng(0).permutation(triples.total)[:32]
    direct = found.batch(positions, KEY)
    monkeypatch.setattr(batcher_of_triples, "_DIRECT", 5)
    hashed = found.batch(positions, KEY)
    np.testing.assert_array_equal(hashed.numbers, direct.numbers)
    for end, drawn in direct.corrupted.items():
        np.testing.assert_array_equal(hashed.corrupted[end].entities, drawn.entities)
        np.testing.assert_array_equal(hashed.corrupted[end].masked, drawn.masked)
    assert name == "uniform" or any(len(drawn.masked) for drawn in direct.corrupted.values())


@pytest.mark.parametrize("name, group", [("uniform", 0), ("joint", 0), ("joint", 5), ("all", 0)])
@pytest.mark.parametrize("graph", [family_graph(), shop_graph()], ids=["one type", "two types"])
def test_what_counts_makes_no_true_triple(graph, name, group):
    found, triples, known = batcher(graph, name, 6, group)
    positions = np.random.default_rng(0).permutation(triples.total)[:32]
    batch = found.batch(positions, KEY)
    counted = 0
    for end in ("destination", "source"):
        for i in range(len(batch)):
            these = against(batch, end, i)
            own = batch.triples.at(np.full(len(these), i))
            low, high = found.entities.limits(own.relation, end)
            assert ((these >= low) & (these < high)).all()
            made = own._replace(tail=these) if end == "destination" else own._replace(head=these)
            assert not known.contains(made).any()
            counted += len(these)
            if name == "all":
                true = known.bounds(
                    own.relation[:1], own.end("source" if end == "destination" else "destination")[:1], end
                )
                assert len(these) == high[0] - low[0] - int(true[1][0] - true[0][0])
    assert counted > 32


def test_a_batch_is_a_function_of_its_key():
    found, triples, _ = batcher(family_graph(), "joint", 8, 4)
    positions = np.arange(0, triples.total, 3)
    one, same, other = (found.batch(positions, key) for key in (KEY, KEY, BatchKey(3, 1, 3)))
    for end in one.corrupted:
        np.testing.assert_array_equal(one.corrupted[end].entities, same.corrupted[end].entities)
        assert (one.corrupted[end].entities != other.corrupted[end].entities).any()
    np.testing.assert_array_equal(one.numbers, np.unique(one.numbers))
    np.testing.assert_array_equal(one.numbers[one.rows(one.triples.head)], one.triples.head)


def test_degrees_decide_how_often_an_entity_is_drawn():
    graph = shop_graph()
    found, triples, _ = batcher(graph, "joint", 20_000, 0, 0.75, False)
    drawn = found.batch(np.flatnonzero(triples.relation == 1)[:4], KEY).corrupted["destination"].entities.ravel()
    degree = np.bincount(np.concatenate([triples.head, triples.tail]), minlength=50)[:30] ** 0.75
    share = np.bincount(drawn, minlength=50)
    assert share[30:].sum() == 0
    np.testing.assert_allclose(share[:30] / len(drawn), degree / degree.sum(), atol=0.01)
    assert weight_sums(triples, found.entities, 0.0) is None


@pytest.mark.parametrize("name, group", [("uniform", 0), ("joint", 0), ("joint", 5), ("all", 0)])
def test_shares_of_a_batch_are_the_batch(name, group):
    found, triples, _ = batcher(shop_graph(), name, 5, group)
    batch = found.batch(np.arange(0, triples.total, 2), KEY)
    places = np.arange(len(batch))
    for share in (places[places % 3 == 0], places[places % 3 > 0], places[:0]):
        part = found.share(batch, share)
        assert part.whole.positives == len(batch)
        for end in ("destination", "source"):
            for new, old in enumerate(share):
                np.testing.assert_array_equal(against(part, end, new), against(batch, end, old))
        for column, whole in zip(part.triples, batch.triples, strict=True):
            np.testing.assert_array_equal(column, whole[share])


def test_a_batch_s_own_triples_and_their_reverses_carry_no_messages():
    graph = with_reverses(family_graph())
    found, triples, _ = batcher(graph)
    assert len(found._relations) == 4
    batch = found.batch(np.flatnonzero(triples.relation == 2)[:3], KEY)
    kind, reverse = ("entity", "twin", "entity"), ("entity", "rev-twin", "entity")
    assert set(batch.exclude) == {kind, reverse}
    np.testing.assert_array_equal(batch.exclude[kind], batch.exclude[reverse][::-1])
    np.testing.assert_array_equal(batch.exclude[kind], [batch.triples.head, batch.triples.tail])


def test_unknown_negatives_are_refused():
    with refused("unknown-name in-batch"):
        triple_negatives("in-batch", 3)
    assert Triples.joined([]).total == 0
