"""Batches of triples drawn by a device's kernels: those of the host, entity for entity."""

import numpy as np
import pytest
import torch

from interpreted_kernels import overflow_unchecked
from knowledge_graph import family_graph
from penstock.graph.hashing import key_of
from penstock.sampling.block import BatchKey
from penstock.sampling.triples import (
    Entities,
    KnownTriples,
    TripleBatcher,
    relations_of,
    training_triples,
    triple_negatives,
)
from penstock.sampling.triples.batcher import weight_sums

pytestmark = pytest.mark.gpu
SIZE, SEED = 40, 5
POLICIES = {
    "own": ("uniform", 7, 0, 0.0, True),
    "unfiltered": ("uniform", 5, 0, 0.0, False),
    "by-degree": ("joint", 9, 16, 0.75, True),
    "shared": ("joint", 130, 0, 0.0, True),
    "shared-by-two": ("joint", 3, 2, 0.0, True),
    "all": ("all", 1, 0, 0.0, True),
    "all-unfiltered": ("all", 1, 0, 0.0, False),
}


@pytest.fixture(autouse=True)
def _quick_sums(monkeypatch):
    if not torch.cuda.is_available():
        overflow_unchecked(monkeypatch)


def made(policy, device, count=12):
    """The host's batcher, the device's batches, and the triples of a small graph with many true triples."""
    from penstock.sampling.device.triples import DeviceTriples

    graph = family_graph(count)
    relations = relations_of(graph.edges)
    entities = Entities({"entity": count}, relations)
    triples = training_triples(graph, relations, entities)
    known, negatives = KnownTriples(triples, count), triple_negatives(*policy)
    ends = ("destination", "source")
    host = TripleBatcher(triples, entities, relations, [], negatives, ends, known)
    weights = weight_sums(triples, entities, negatives.power)
    there = DeviceTriples(
        triples, known, count, negatives, weights, ends, np.arange(triples.total), SIZE, torch.device(device)
    )
    return host, there, triples.total


@pytest.mark.parametrize("name", POLICIES)
def test_batches_are_the_hosts(device, name):
    host, there, total = made(POLICIES[name], device)
    order_key = key_of(SEED, "{}/order", 1)
    there.fill(SEED, 1, order_key, 0)
    order = there.order[:total].cpu().numpy()
    assert sorted(order) == list(range(total))
    for number in range(there.batches):
        positions = order[number * SIZE : (number + 1) * SIZE]
        expected, found = host.batch(positions, BatchKey(SEED, 1, number)), there.batch()
        size = len(positions)
        assert found.counts.cpu().tolist() == [i < size for i in range(SIZE)]
        for own, column in zip(expected.triples, (found.head, found.relation, found.tail), strict=True):
            assert np.array_equal(own, column[:size].cpu().numpy())
        for end, drawn in expected.corrupted.items():
            groups, k = drawn.entities.shape
            mask = np.zeros((size, k), np.bool_)
            mask.ravel()[drawn.masked] = True
            if name.startswith("all"):
                assert found.drawn[end] is None
                # The own end is the loss's to count.
                mask[np.arange(size), expected.triples.end(end)] = False
            else:
                assert np.array_equal(drawn.entities, found.drawn[end][:groups].cpu().numpy())
            ours = np.zeros_like(mask) if found.masked[end] is None else found.masked[end][:size].cpu().numpy()
            assert np.array_equal(ours, mask)
        there.cursor.add_(1)
