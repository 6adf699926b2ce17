"""Remote rows with some of their columns: the others are the part's means, whatever is cached and whoever restarts."""

import numpy as np
import pytest

from penstock.store.parts import ColumnSelection, PartedStore, StoreService
from penstock.store.source import LocalStore
from penstock.wire.channel import RemoteError
from penstock.wire.message import Message
from refusals import refused

COLUMNS = np.array([0, 2, 3])


@pytest.fixture
def reached(cuts, posts):
    """A partition of three parts, of which the reader has the first, and the ways to make stores."""
    partition = cuts(4)
    owner, reader = posts("owner", "reader")

    def serve():
        StoreService(owner, {part: partition.part(part) for part in range(partition.parts)})

    serve()
    here = {0: LocalStore.of_graph(partition.part(0))}

    def store(wire_type="stored"):
        return PartedStore(partition.book, here, lambda part: reader.channel("owner", "features"), wire_type)

    return partition, store, serve, reader


def expected(partition, rows, ids, columns=COLUMNS, field="x"):
    found = rows.copy()
    absent = np.setdiff1d(np.arange(rows.shape[1]), columns)
    for part in range(1, partition.parts):
        first, last = partition.book.range(part, "paper")
        table = partition.part(part).nodes["paper"].fields[field]
        means = np.asarray(table, np.float64).mean(0).astype(rows.dtype)
        mine = (ids >= first) & (ids < last)
        found[np.ix_(mine, absent)] = means[absent]
    return found


def test_remote_rows_have_the_chosen_columns_and_means(reached):
    partition, store, _, _ = reached
    ids = np.random.default_rng(0).integers(0, partition.book.count("paper"), 400)
    made = store()
    whole = made.source("paper/x").read(ids)
    before = made.traffic()["paper/x"]
    found = made.source("paper/x").selecting(ColumnSelection(1, COLUMNS)).read(ids)
    np.testing.assert_array_equal(found, expected(partition, whole, ids))
    after = made.traffic()["paper/x"]
    assert (after.bytes - before.bytes) * 7 == before.bytes * 3
    assert made.selected_traffic.bytes == after.bytes - before.bytes
    half = made.source("paper/half")
    np.testing.assert_array_equal(
        half.selecting(ColumnSelection(1, np.array([1]))).read(ids),
        expected(partition, half.read(ids), ids, [1], "half"),
    )
    assert half.selecting(ColumnSelection(1, np.arange(3))) is half


@pytest.mark.parametrize("wire_type", ["stored", "float16", "int8"])
def test_bits_do_not_depend_on_the_cache(reached, wire_type):
    partition, store, _, _ = reached
    plain, cached = store(wire_type), store(wire_type)
    every = np.arange(partition.book.count("paper"))
    cached.cache_remote_rows({"paper/x": (every, every + 1)}, 1 << 20)
    cached.source("paper/x").read(every)
    selection = ColumnSelection(2, COLUMNS)
    found = [each.source("paper/x").selecting(selection).read(every) for each in (plain, cached)]
    np.testing.assert_array_equal(*found)
    if wire_type != "int8":
        assert cached.selected_traffic.rows == 0


def test_an_owner_that_starts_again_is_told_again(reached):
    partition, store, serve, _ = reached
    made, ids = store(), np.arange(partition.book.count("paper"))
    source = made.source("paper/x").selecting(ColumnSelection(1, COLUMNS))
    before = source.read(ids)
    serve()
    np.testing.assert_array_equal(source.read(ids), before)
    later = [made.source("paper/x").selecting(ColumnSelection(version, COLUMNS)) for version in range(2, 9)]
    assert all(np.array_equal(each.read(ids), before) for each in later)
    np.testing.assert_array_equal(source.read(ids), before)


def test_selections_of_columns_that_are_none_are_refused(reached):
    _, _, _, reader = reached
    body = {"field": "paper/x", "part": 1, "version": 1, "means": True}
    for columns in (np.array([2, 1]), np.array([0, 7]), np.array([-1]), np.empty(0, np.int64), np.array([0.5])):
        with refused("malformed-message", RemoteError):
            reader.channel("owner", "features").call(Message("select", body, (columns,)))
    with refused("shape-mismatch", RemoteError):
        reader.channel("owner", "features").call(Message("select", {**body, "field": "paper/wide"}, (COLUMNS,)))
    with refused("not-available", RemoteError):
        pull = {"field": "paper/x", "part": 1, "selected": 9}
        list(reader.channel("owner", "features").start(Message("pull", pull, (np.arange(3),))).parts())
