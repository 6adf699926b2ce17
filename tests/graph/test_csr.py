"""Neighbour lists against NumPy's sort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph import data
from penstock.graph.csr import build_lists, deduplicate_lists, transpose_lists
from penstock.graph.data import EdgeSet


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 100), st.integers(0, 999), st.booleans())
def test_lists_are_stable_and_sorted(sources, targets, edges, seed, wide):
    rng = np.random.default_rng(seed)
    dtype = np.int64 if wide else np.int32
    src, dst = rng.integers(0, sources, edges).astype(dtype), rng.integers(0, targets, edges).astype(dtype)
    indptr, indices, order = build_lists(src, dst, sources, targets, True)
    expected = np.lexsort((np.arange(edges), src, dst))
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(indices, src[expected])
    np.testing.assert_array_equal(np.diff(indptr), np.bincount(dst, minlength=targets))
    plain = build_lists(src, dst, sources, targets)
    np.testing.assert_array_equal(plain[1], indices)
    assert plain[2] is None
    assert indices.dtype == np.int32

    out_indptr, out_indices = transpose_lists(indptr, indices, sources)
    there = np.lexsort((dst, src))
    np.testing.assert_array_equal(out_indices, dst[there])
    np.testing.assert_array_equal(np.diff(out_indptr), np.bincount(src, minlength=sources))

    once_indptr, once, kept = deduplicate_lists(indptr, indices)
    pairs = {(int(d), int(s)) for s, d in zip(src, dst, strict=True)}
    rows = np.repeat(np.arange(targets), np.diff(once_indptr))
    assert list(zip(rows.tolist(), once.tolist(), strict=True)) == sorted(pairs)
    np.testing.assert_array_equal(indices[kept], once)


@pytest.mark.parametrize("at_a_time", [1, 3, 100])
def test_destinations_of_lists_read_in_blocks(monkeypatch, at_a_time):
    monkeypatch.setattr(data, "_LISTS", at_a_time)
    edges = EdgeSet(np.array([0, 0, 2, 2, 5, 5, 6, 6]), np.arange(6, dtype=np.int32))
    np.testing.assert_array_equal(edges.destinations(), [1, 1, 3, 3, 3, 5])
    assert edges.destinations().dtype == np.int32
    assert EdgeSet(np.zeros(1, np.int64), np.empty(0, np.int32)).destinations().shape == (0,)
