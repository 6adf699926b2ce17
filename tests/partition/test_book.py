"""Owner and local lookups against the plain definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.partition import Book
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
