"""Numbering vertices: directly or by hashing, the same rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neighbourhoods import same_batch
from penstock import EdgeSet, Graph
from penstock.sampling import BatchKey, NeighbourSampler, lists
from random_graphs import power_law_graph
from refusals import refused

KEY = BatchKey(2, 0, 0)


def test_direct_and_hashed_batches_are_the_same():
    graph = power_law_graph(6000)  # larger batches than the smallest table holds
    samplers = [NeighbourSampler(graph, [6, 5, 4], totals=True, edges=True, relabel=way) for way in ("direct", "hash")]
    for seeds in (np.arange(10), np.arange(2000, 2600), np.empty(0, int), np.arange(6000)):
        direct, hashed = (sampler.sample(seeds, KEY) for sampler in samplers)
        same_batch(direct, hashed)
        assert direct.vertices["node"].dtype == hashed.vertices["node"].dtype


@given(st.lists(st.integers(0, 2**40), min_size=0, max_size=300), st.integers(0, 5))
def test_hashed_rows_are_numbers_in_order_of_appearance(numbers, repeats):
    rows = lists.HashedRows(np.dtype(np.int64))
    for _ in range(2):
        found = rows.number_these(np.array(numbers * repeats, np.int64))
        order = list(dict.fromkeys(numbers * repeats))
        assert rows.vertices[: rows.known].tolist() == order
        assert [order[row] for row in found] == numbers * repeats
        rows.forget()


def test_the_table_grows_without_losing_rows():
    rows = lists.HashedRows(np.dtype(np.int32))
    first = rows.number_these(np.arange(50_000, dtype=np.int32) * 4096)
    np.testing.assert_array_equal(first, np.arange(50_000))
    np.testing.assert_array_equal(rows.number_these(np.arange(49_999, -1, -1, dtype=np.int32) * 4096), first[::-1])
    assert rows.known == 50_000


def test_the_graphs_size_chooses(monkeypatch):
    assert isinstance(lists.rows_for(100), lists.DirectRows)
    monkeypatch.setattr(lists, "DIRECT_LIMIT", 99)
    assert isinstance(lists.rows_for(100), lists.HashedRows)
    assert isinstance(lists.rows_for(100, "direct"), lists.DirectRows)
    assert isinstance(lists.rows_for(100, limit=100), lists.DirectRows)
    assert isinstance(lists.rows_for(99, limit=98), lists.HashedRows)


@pytest.mark.parametrize("way", ["direct", "hash"])
def test_a_repeated_seed_gets_a_sentence_and_spoils_nothing(way):
    graph = power_law_graph()
    sampler = NeighbourSampler(graph, [3], relabel=way)
    with refused("duplicate 7"):
        sampler.sample(np.array([7, 3, 7, 3]), KEY)
    same_batch(sampler.sample(np.array([7, 3]), KEY), NeighbourSampler(graph, [3]).sample(np.array([7, 3]), KEY))


def test_an_unknown_way_gets_a_sentence():
    with refused("unknown-name"):
        NeighbourSampler(power_law_graph(), [3], relabel="sorted")


@pytest.mark.parametrize("way", ["direct", "hash"])
def test_wide_vertex_numbers_are_numbered_alike(way):
    graph = power_law_graph()
    (kind, edges), *_ = graph.edges.items()
    wide = Graph(graph.nodes, {kind: EdgeSet(edges.indptr, edges.indices.astype(np.int64))})
    seeds = np.arange(50)
    batch = NeighbourSampler(wide, [4, 3], relabel=way).sample(seeds, KEY)
    same_batch(batch, NeighbourSampler(graph, [4, 3]).sample(seeds, KEY))
    assert batch.blocks[0].indices.dtype == np.int32
