"""Grouping by owner, and rows on the wire, against their plain definitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.partition import Book
from penstock.partition.owners import split_by_owner
from penstock.store.parts import requests
from penstock.store.parts.requests import PartRows, encoding_for
from penstock.wire.message import Message
from refusals import refused


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data())
def test_every_vertex_is_asked_of_its_owner_and_repeats_once(sizes, data):
    book = Book(len(sizes), 1, {"a": np.concatenate([[0], np.cumsum(sizes)])})
    bounds = book.bounds("a")
    once = np.array(data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes))))
    most = max(0, sum(sizes) - 1)
    ids = np.array(data.draw(st.lists(st.integers(0, most), max_size=40 if sum(sizes) else 0)), np.int64)
    split = split_by_owner(ids, bounds, once)
    back = np.full(len(ids), -1)
    for part in range(len(sizes)):
        rows, places = split.of(part)
        assert (np.diff(places) > 0).all()
        assert not once[part] or len(np.unique(rows)) == len(rows)
        back[places] = rows + bounds[part]
    back[split.again] = back[split.first]
    np.testing.assert_array_equal(back, ids)
    np.testing.assert_array_equal(
        book.owner(ids[split.places]), np.repeat(np.arange(len(sizes)), np.diff(split.starts))
    )


def test_numbers_of_no_vertex_are_refused():
    bounds = np.array([0, 3, 5])
    for bad in ([5], [-1], [0, 7]):
        with refused("id-out-of-range 0..4"):
            split_by_owner(np.array(bad), bounds, np.array([True, False]))


FLOATS = hnp.arrays(np.float32, (6, 3), elements=st.floats(-65504, 65504, width=32))


@given(FLOATS, st.sampled_from([np.float32, np.float64]))
def test_halves_are_numpys(x, dtype):
    x = x.astype(dtype)
    way = encoding_for("float16", x.dtype, (3,), None)
    rows = np.array([5, 0, 0, 3])
    (sent,) = way.pack(x, rows, np.empty(1000, np.uint8), PartRows(0, rows))
    np.testing.assert_array_equal(sent, x[rows].astype(np.float16))
    out = np.zeros((8, 3), dtype)
    way.unpack((sent,), np.array([7, 1, 2, 4]), out)
    np.testing.assert_array_equal(out[[7, 1, 2, 4]], sent.astype(dtype))
    assert not out[[0, 3, 5, 6]].any()


def test_every_half_is_its_own_and_the_midpoints_round_to_even():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = np.sort(every[np.isfinite(every)].astype(np.float32))
    middle = (every[1:] + every[:-1]) / 2
    for numbers in (every, middle, np.nextafter(middle, np.float32(9e9)), np.nextafter(middle, np.float32(-9e9))):
        way = encoding_for("float16", numbers.dtype, (1,), None)
        rows, buffer = np.arange(len(numbers)), np.empty(2 * len(numbers), np.uint8)
        (sent,) = way.pack(numbers[:, None], rows, buffer, PartRows(0, rows))
        np.testing.assert_array_equal(sent[:, 0], numbers.astype(np.float16))


@given(hnp.arrays(np.float32, (5, 4), elements=st.floats(-(2.0**127), 2.0**127, width=32)))
def test_scaled_rows_are_within_their_step(x):
    way = encoding_for("int8", x.dtype, (4,), (1, 4))
    rows = np.array([4, 2, 1])
    sent = way.pack(x, rows, np.empty(100, np.uint8), PartRows(0, rows))
    assert sum(array.nbytes for array in sent) == 3 * way.row_bytes
    out = np.empty((3, 3), np.float32)
    way.unpack(sent, np.arange(3), out)
    want = x[rows, 1:].astype(np.float64)
    bound = np.abs(want).max(1, keepdims=True) / 253.9 + 1.5e-36
    assert (np.abs(out - want) <= bound).all()


def test_what_arrives_in_another_shape_is_refused():
    way = encoding_for("stored", np.dtype(np.float32), (3,), None)
    with refused("malformed-message"):
        way.unpack((np.zeros((2, 4), np.float32),), np.arange(2), np.zeros((2, 3), np.float32))


def test_requests_are_checked():
    for body, words in [
        ({}, "malformed-message"),
        ({"part": True}, "malformed-message part"),
        ({"part": 0, "field": "x", "q": 1}, "malformed-message"),
    ]:
        with refused(words):
            requests.checked(Message("push", body), requests.FieldRequest if "field" in body else requests.PartRequest)
    for arrays in ((), (np.zeros(3),), (np.zeros((2, 2), np.int64),)):
        with refused("malformed-message"):
            requests.row_numbers(Message("pull", {}, arrays))
