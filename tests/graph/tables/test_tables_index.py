"""The id index against a dictionary, and what it does when asked from several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph.ids import StringIds
from penstock.graph.tables.index import IdIndex, IntegerIndex, StringIndex

STRINGS = st.lists(st.lists(st.text(max_size=20), max_size=60), max_size=5)
INTEGERS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=60), max_size=5)


def _against_dictionary(index: IdIndex, batches: list[list[object]], kind: pa.DataType) -> None:
    known: dict[object, int] = {}
    for batch in batches:
        found = index.find(pa.array(batch, kind))
        assert found.tolist() == [known.get(value, -1) for value in batch]
        numbers = index.add(pa.array(batch, kind))
        assert numbers.tolist() == [known.setdefault(value, len(known)) for value in batch]
        assert index.count == len(known)
    ids = index.ids()
    expected = list(known)
    if ids is None:
        assert expected == list(range(len(known)))
    else:
        assert ids.tolist() == expected
        assert isinstance(ids, StringIds) or expected != list(range(len(known)))


@given(STRINGS)
def test_strings(batches: list[list[object]]) -> None:
    _against_dictionary(StringIndex(), batches, pa.string())


@given(INTEGERS)
def test_integers(batches: list[list[object]]) -> None:
    _against_dictionary(IntegerIndex(), batches, pa.int64())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_grows_and_answers_many_threads(kind: pa.DataType) -> None:
    names = pa.array([f"user_{i * 7919}" for i in range(50_000)], kind)
    index = StringIndex()
    for start in range(0, len(names), 7000):
        index.add(names.slice(start, 7000))
    asked = np.random.default_rng(0).permutation(len(names))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: index.find(names.take(pa.array(asked))), range(4)))
    assert all(np.array_equal(answer, asked) for answer in answers)
    assert (index.find(pa.array([f"user_{i * 7919 + 1}" for i in range(1000)], kind)) == -1).all()


def test_slices_and_dictionaries_are_read_in_place() -> None:
    index = StringIndex()
    index.add(pa.array(["a", "b", "c"]))
    assert index.find(pa.array(["x", "c", "a", "y"]).slice(1, 2)).tolist() == [2, 0]
    encoded = pa.array(["b", "z", "b", "a"]).dictionary_encode()
    assert index.find(encoded).tolist() == [1, -1, 1, 0]
    assert index.find(encoded.slice(2)).tolist() == [1, 0]
    assert index.add(encoded).tolist() == [1, 3, 1, 0]


def test_strings_of_equal_hash_bits_are_told_apart() -> None:
    """Prefixes, suffixes and lengths around the eight bytes that are read at once."""
    names = ["x" * n for n in range(40)] + ["x" * n + "y" for n in range(40)] + ["y" + "x" * n for n in range(40)]
    index = StringIndex()
    numbers = index.add(pa.array(list(dict.fromkeys(names))))
    assert len(set(numbers.tolist())) == len(set(names))


def test_counting_integers_keep_nothing() -> None:
    index = IntegerIndex()
    index.add(pa.array(np.arange(1000)))
    index.add(pa.array(np.arange(1000, 1500)))
    assert index.ids() is None
    assert index.find(pa.array([0, 1499, 1500, -1])).tolist() == [0, 1499, -1, -1]
    assert index.add(pa.array([7, 5000])).tolist() == [7, 1500]
    assert index.find(pa.array([1499, 5000, 1500])).tolist() == [1499, 1500, -1]
