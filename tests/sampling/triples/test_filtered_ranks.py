"""Filtered ranks against a plain loop over all candidates in float64."""

import numpy as np
import pytest
import torch

from knowledge_graph import family_graph, shop_graph
from penstock.errors import NotFinite
from penstock.sampling.triples import (
    Entities,
    KnownTriples,
    Triples,
    filtered_ranks,
    held_out_triples,
    relations_of,
    training_triples,
)
from penstock.sampling.triples import ranks as ranks_module


def parts_of(graph):
    """Entities, triples of all splits, and those to rank."""
    relations = relations_of(graph.edges)
    entities = Entities({name: nodes.count for name, nodes in graph.nodes.items()}, relations)
    splits = [held_out_triples(graph, relations, entities, name) for name in ("val", "test")]
    return entities, Triples.joined([training_triples(graph, relations, entities), *splits]), splits[1]


def plain_rank(table, vectors, triple, end, true, low, high):
    """One triple among all others with an end replaced."""

    def score(head, relation, tail):
        return float((table[head] * vectors[relation] * table[tail]).sum())

    head, relation, tail = triple
    own, higher, level = score(*triple), 0, 0
    for entity in range(low, high):
        made = (head, relation, entity) if end == "destination" else (entity, relation, tail)
        if made != triple and made not in true:
            higher += score(*made) > own
            level += score(*made) == own
    return 1 + higher + level / 2


@pytest.mark.covering(2)
@pytest.mark.parametrize("graph", [family_graph(), shop_graph()], ids=["one type", "two types"])
@pytest.mark.parametrize("end", ["destination", "source"])
@pytest.mark.parametrize("block_bytes", [64 << 20, 600])
@pytest.mark.parametrize("on_device", [False, True])
def test_ranks_are_those_of_a_plain_loop(graph, end, block_bytes, on_device, monkeypatch):
    """Small whole numbers, so that many scores are equal and none is rounded."""
    if on_device:
        monkeypatch.setattr(ranks_module, "_counted", ranks_module._counted_on_device)
    entities, every, test = parts_of(graph)
    rng = np.random.default_rng(1)
    table, vectors = rng.integers(-2, 3, (entities.count, 6)), rng.integers(-1, 2, (4, 6))
    rows, relations = torch.tensor(table, dtype=torch.float32), torch.tensor(vectors, dtype=torch.float32)

    def score(kept, relation, end, low, high):
        return (rows[kept] * relations[relation]) @ rows[low:high].T

    found = filtered_ranks(score, test, end, entities, KnownTriples(every, entities.count), block_bytes)
    true = set(zip(*(column.tolist() for column in every), strict=True))
    low, high = entities.limits(test.relation, end)
    plain = [
        plain_rank(table.astype(np.float64), vectors.astype(np.float64), triple, end, true, int(a), int(b))
        for triple, a, b in zip(zip(*(column.tolist() for column in test), strict=True), low, high, strict=True)
    ]
    np.testing.assert_array_equal(found, plain)
    assert (found % 1 == 0.5).any()


@pytest.mark.parametrize("on_device", [False, True])
def test_nan_is_refused(on_device, monkeypatch):
    if on_device:
        monkeypatch.setattr(ranks_module, "_counted", ranks_module._counted_on_device)
    entities, every, test = parts_of(family_graph())
    known = KnownTriples(every, entities.count)
    with pytest.raises(NotFinite):
        filtered_ranks(
            lambda kept, *_: torch.full((len(kept), entities.count), torch.nan), test, "source", entities, known
        )
    assert len(filtered_ranks(lambda *_: torch.empty(0), test.at(slice(0, 0)), "source", entities, known)) == 0
