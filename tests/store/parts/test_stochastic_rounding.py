"""Rows rounded at random on the wire: right in the mean, and the same whoever sends them beside whatever else."""

import numpy as np
import pytest

from penstock.hardware.cluster import ClusterDocument
from penstock.store.parts import ColumnSelection, PartedStore, StochasticRounding, StoreService
from penstock.store.parts.narrow import WIDE
from penstock.store.parts.requests import PartRows, encoding_for
from penstock.store.source import LocalStore
from refusals import refused

NARROW = ["float16", "int8"]
KEYS = 4000


def received(way, table, rows, part=0):
    """What arrives of some rows."""
    rows = np.asarray(rows)
    sent = way.pack(table, rows, np.empty(len(rows) * way.row_bytes, np.uint8), PartRows(part, rows))
    out = np.zeros((len(rows), *table.shape[1:]), table.dtype)
    way.unpack(sent, np.arange(len(rows)), out)
    return out


SMALL = {
    "float16": [0, -0.0, 1, -1, 3e-5, -3e-6, 1e-7, 2**-24 / 3, 1e-30],
    "int8": [0, -0.0, 1, -1, 3e-3, -3e-3, 0.2, 0.1, -0.9],
}


@pytest.mark.parametrize("wire_type", NARROW)
def test_the_mean_over_keys_is_the_number(wire_type):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3, 9)).astype(np.float32)
    table[1] = SMALL[wire_type]
    table[2] *= 1000
    found = np.empty((KEYS, *table.shape))
    for key in range(KEYS):
        found[key] = received(encoding_for(wire_type, table.dtype, (9,), None, key), table, range(3))
    error = found.std(0, ddof=1) / np.sqrt(KEYS)
    assert (np.abs(found.mean(0) - table) <= 4.5 * error + 1e-6 * np.abs(table) + 1e-16).all()
    # Rounding to the nearest errs always alike.
    nearest = received(encoding_for(wire_type, table.dtype, (9,), None), table, range(3))
    assert (np.abs(nearest - table) > 9 * error + 1e-6 * np.abs(table)).any()


def test_halves_become_one_of_their_two_neighbours():
    numbers = np.abs(np.random.default_rng(1).normal(size=500)).astype(np.float32)
    numbers = np.concatenate([numbers, numbers * 1e-5, numbers * 1e4, [65504, 65503, 6.1e-5, 5.9e-8]]).astype(
        np.float32
    )
    exact = np.sort(WIDE[:0x7C00])
    below = exact[np.searchsorted(exact, numbers, "right") - 1]
    above = exact[np.searchsorted(exact, numbers, "left")]
    for sign in (1, -1):
        table = (sign * numbers)[:, None]
        found = sign * received(encoding_for("float16", table.dtype, (1,), None, 7), table, range(len(table)))[:, 0]
        assert ((found == below) | (found == above)).all()
        assert (found == below).any() and (found == above).any()


def test_numbers_that_can_be_sent_stay_and_others_are_refused():
    table = np.array([[65504, -65504, np.inf, -np.inf, 0.5, 2**-24]], np.float32)
    way = encoding_for("float16", table.dtype, (6,), None, 3)
    np.testing.assert_array_equal(received(way, table, [0]), table)
    assert np.isnan(received(way, np.full((1, 6), np.nan, np.float32), [0])).all()
    with refused("value-out-of-range 65504"):
        # To the nearest it would be 65504, and at random infinite now and then.
        received(way, np.full((1, 6), 65510, np.float32), [0])
    with refused("not-finite"):
        received(encoding_for("int8", table.dtype, (6,), None, 3), table, [0])
    whole = np.array([[127, -127, 5, 0]], np.float32)
    np.testing.assert_array_equal(received(encoding_for("int8", whole.dtype, (4,), None, 9), whole, [0]), whole)


@pytest.mark.parametrize("wire_type", NARROW)
def test_a_row_is_rounded_alike_in_whatever_company(wire_type):
    table = np.random.default_rng(2).normal(size=(50, 8)).astype(np.float32)
    way = encoding_for(wire_type, table.dtype, (8,), None, 11)
    every = received(way, table, range(50))
    np.testing.assert_array_equal(received(way, table, [40, 3, 3]), every[[40, 3, 3]])
    assert not np.array_equal(received(way, table, range(50), part=1), every)
    assert not np.array_equal(received(encoding_for(wire_type, table.dtype, (8,), None, 12), table, range(50)), every)


@pytest.fixture
def stores(cuts, posts):
    """Makes readers over three remote parts and one that is here."""
    partition = cuts(4)
    owner, reader = posts("owner", "reader")
    StoreService(owner, {part: partition.part(part) for part in range(partition.parts)})
    here = {0: LocalStore.of_graph(partition.part(0))}

    def make(wire_type, rounding):
        channels = lambda part: reader.channel("owner", "features")  # noqa: E731
        return PartedStore(partition.book, here, channels, wire_type, rounding=rounding)

    return make, np.arange(partition.book.count("paper"))


@pytest.mark.parametrize("wire_type", NARROW)
def test_every_epoch_rounds_anew_and_the_same_epoch_alike(stores, wire_type):
    make, every = stores
    source = make(wire_type, StochasticRounding(1)).source("paper/x")
    first = source.in_epoch(0).read(every)
    again = make(wire_type, StochasticRounding(1)).source("paper/x").in_epoch(0).read(every)
    np.testing.assert_array_equal(first, again)
    for other in (source.in_epoch(1), source, make(wire_type, StochasticRounding(2)).source("paper/x").in_epoch(0)):
        assert not np.array_equal(first, other.read(every))


@pytest.mark.parametrize("wire_type", NARROW)
def test_kept_rows_have_one_rounding_with_columns_and_without(stores, wire_type):
    make, every = stores
    plain, cached = (make(wire_type, StochasticRounding(1, rows_are_kept=True)) for _ in range(2))
    cached.cache_remote_rows({"paper/x": (every, every + 1)}, 1 << 20)
    selection = ColumnSelection(2, np.array([0, 2, 3]))
    for epoch in range(3):
        both = [each.source("paper/x").in_epoch(epoch) for each in (plain, cached)]
        np.testing.assert_array_equal(*(each.read(every) for each in both))
        np.testing.assert_array_equal(*(each.selecting(selection).read(every) for each in both))
        np.testing.assert_array_equal(*(each.read(every, columns=slice(2, 5)) for each in both))
    assert cached.cache_use().hits > 0


def test_rounding_at_random_needs_something_to_round():
    machine = {"machines": [{"name": "m"}]}
    assert ClusterDocument.model_validate({**machine, "wire_type": "int8", "wire_rounding": "stochastic"})
    with pytest.raises(ValueError, match="wire_type"):
        ClusterDocument.model_validate({**machine, "wire_rounding": "stochastic"})
