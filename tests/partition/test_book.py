"""Owner and local lookups against the plain definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.partition import Book, owners
from penstock.partition.owners import is_plain_permutation, new_ids_by_search
from refusals import refused


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_lookups_agree_with_ranges(parts, trainers, data):
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=parts * trainers, max_size=parts * trainers))
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    book = Book(parts, trainers, {"a": bounds})
    ids = np.arange(bounds[-1])
    owner, local, trainer = book.owner(ids), book.local(ids), book.trainer(ids)
    for v in ids:
        p, t = int(owner[v]), int(trainer[v])
        first, last = book.range(p)
        assert first <= v < last
        assert local[v] == v - first
        low, high = book.range(p, trainer=t)
        assert low <= v < high
    assert book.count() == len(ids)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9), st.data())
def test_original_ids_are_searched_for(labels, window, data):
    """Vertices by the label of their sub-part, of which some are empty; windows smaller than sub-parts, and larger."""
    original, count = np.argsort(labels, kind="stable"), len(labels)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=4))]).astype(np.int64)
    ids = np.array(sorted(data.draw(st.lists(st.integers(0, count - 1), max_size=50))) if count else [], np.int64)
    found = new_ids_by_search(original, bounds, ids)
    assert found is not None and found.dtype == np.int64
    np.testing.assert_array_equal(original[found], ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owners, "_WINDOW", window)
        assert is_plain_permutation(original, bounds)
        for place in range(count):
            for wrong in {-1, count, int(original[place]) - 1, int(original[place - 1])} - {int(original[place])}:
                harmed = original.copy()
                harmed[place] = wrong
                assert not is_plain_permutation(harmed, bounds)


def test_ids_in_another_order_are_not_found():
    bounds, ids = np.array([0, 3, 6]), np.arange(6)
    assert new_ids_by_search(np.array([0, 2, 4, 5, 3, 1]), bounds, ids) is None


def test_ids_outside_are_refused():
    book = Book(2, 1, {"a": np.array([0, 3, 5])})
    for bad in ([5], [-1]):
        with refused("id-out-of-range 0..4"):
            book.owner(np.array(bad))


def test_the_type_must_be_named_when_there_are_several():
    book = Book(1, 1, {"a": np.array([0, 3]), "b": np.array([0, 2])})
    assert book.count("b") == 2
    with refused("option-missing"):
        book.owner(np.array([0]))
