"""Chunks: every row once and in order, no more read at a time than there is room for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.train.layerwise.inference import cut_into_chunks


def lists(rng, sources, destinations, longest):
    lengths = rng.integers(0, longest + 1, destinations)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return EdgeSet(indptr, rng.integers(0, sources, indptr[-1]).astype(np.int32))


def two_types(seed, size):
    rng = np.random.default_rng(seed)
    edges = {
        ("a", "to", "a"): lists(rng, size, size, 8),
        ("b", "to", "a"): lists(rng, size, size, 8),
        ("a", "to", "b"): lists(rng, size, size, 3),
    }
    return Graph({"a": NodeSet(size), "b": NodeSet(size)}, edges)


def inputs(graph, chunk):
    """(different vertices that a chunk reads, its edges and rows)."""
    read, edges = {(chunk.node_type, int(row)) for row in chunk.rows}, len(chunk.rows)
    for (source, _, destination), into in graph.edges.items():
        if destination == chunk.node_type:
            for row in chunk.rows:
                some = into.indices[into.indptr[row] : into.indptr[row + 1]]
                read |= {(source, int(other)) for other in some}
                edges += len(some)
    return len(read), edges


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 80), st.integers(1, 200))
def test_chunks_hold_every_row_once_and_fit(seed, size, room, most_edges):
    graph = two_types(seed, size)
    rows = {"a": np.flatnonzero(np.arange(size) % 3), "b": np.arange(size)}
    chunks = list(cut_into_chunks(graph, rows, room, most_edges))
    for name, numbers in rows.items():
        mine = [chunk for chunk in chunks if chunk.node_type == name]
        assert np.array_equal(np.concatenate([np.empty(0, np.int64), *(chunk.rows for chunk in mine)]), numbers)
        assert [chunk.start for chunk in mine] == list(np.cumsum([0, *(len(chunk.rows) for chunk in mine)])[:-1])
    for chunk in chunks:
        read, edges = inputs(graph, chunk)
        assert len(chunk.rows) == 1 or (read <= room and edges <= max(most_edges, room // 8))


@pytest.mark.parametrize("count", [50, 500])
def test_shared_neighbours_are_counted_once(count):
    # Everyone reads the same ten vertices: what is read grows by the rows alone.
    indices = np.tile(np.arange(10, dtype=np.int32), count)
    graph = Graph({"node": NodeSet(count)}, {("node", "to", "node"): EdgeSet(np.arange(count + 1) * 10, indices)})
    (chunk,) = cut_into_chunks(graph, {"node": np.arange(count)}, count, 1 << 30)
    assert len(chunk.rows) == count
