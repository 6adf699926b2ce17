"""Rows that are read from their file past the page cache are those of the table, whatever is cached."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.graph.arrays import is_on_disk, open_array, write_array
from penstock.store import disk_rows
from penstock.store.disk_rows import MISSING, DiskRows, SieveCache, cached_rows
from refusals import refused

ROWS = 3000
SHAPES = [(np.float32, (37,)), (np.float16, (3,)), (np.int8, (1,)), (np.float64, ()), (np.uint8, (4096,)),
          (np.float32, (5, 7)), (np.int64, (1500,))]  # fmt: skip
"""Rows that straddle pages, that are smaller and larger than a page or exactly one, and of two dimensions."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """By dtype and shape of a row, a table and the same mapped from a file; some rows are in its last page."""
    folder, made = tmp_path_factory.mktemp("tables"), {}
    rng = np.random.default_rng(0)
    for number, (dtype, shape) in enumerate(SHAPES):
        rows = ROWS if np.prod(shape, dtype=int) < 1000 else 150
        table = rng.integers(0, 100, (rows, *shape)).astype(dtype)
        write_array(folder / f"{number}.npy", table)
        made[dtype, shape] = table, open_array(folder / f"{number}.npy")
    return made


@pytest.mark.covering(1)
@pytest.mark.parametrize("cache", [0, 1, 50, ROWS])
@pytest.mark.parametrize("kind", SHAPES, ids=str)
def test_rows_are_those_of_the_table(tables, kind, cache):
    table, mapped = tables[kind]
    source, rng = DiskRows(mapped, cache), np.random.default_rng(1)
    assert source.shape == table.shape and source.dtype == table.dtype
    for count in (1, 7, 200, 1000, 0):
        ids = rng.integers(0, len(table), count)
        np.testing.assert_array_equal(source.read(ids), table[ids])
        out, places = (
            np.full((count + 9, *table.shape[1:]), 101).astype(table.dtype),
            rng.permutation(count + 9)[:count],
        )
        source.fill(ids.astype(np.int32), out, places)
        np.testing.assert_array_equal(out[places], table[ids])
        assert (np.delete(out, places, 0) == np.array(101).astype(table.dtype)).all()
        if table.ndim == 2 and table.shape[1] > 2:
            np.testing.assert_array_equal(source.read(ids, columns=slice(1, 3)), table[ids, 1:3])
    every = np.arange(len(table))
    np.testing.assert_array_equal(source.read(every), table)
    assert len(source.cache) <= cache


def test_each_page_is_read_once_for_all_rows_on_it(tables):
    table, mapped = tables[np.float32, (37,)]
    source = DiskRows(mapped)
    ids = np.random.default_rng(2).permutation(np.tile(np.arange(len(table)), 3))
    np.testing.assert_array_equal(source.read(ids), table[ids])
    size = Path(source.path).stat().st_size
    requests = -(-size // disk_rows._REQUEST_BYTES)
    assert size - 4096 <= source.bytes_read <= size + 4096 * (1 + requests)


def test_rows_that_are_cached_are_not_read_again(tables):
    _, mapped = tables[np.float32, (37,)]
    source, ids = DiskRows(mapped, 500), np.arange(0, ROWS, 10)
    source.read(ids)
    before = source.bytes_read
    source.read(ids[::-1])
    assert source.bytes_read == before
    assert source.hit_rate() == 0.5


def test_threads_that_ask_at_the_same_time_get_their_own_rows(tables):
    table, mapped = tables[np.float32, (37,)]
    source, wrong = DiskRows(mapped, 200), []
    begin = threading.Barrier(8)

    def read(number):
        rng = np.random.default_rng(number)
        begin.wait()
        for _ in range(20):
            ids = rng.integers(0, ROWS, 300)
            if not np.array_equal(source.read(ids), table[ids]):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert source.rounds < 8 * 20


def test_a_thread_that_is_interrupted_leaves_the_others_their_rows(tables, monkeypatch):
    table, mapped = tables[np.float32, (37,)]
    source, ids, waiting = DiskRows(mapped, 20), np.arange(50), []

    def interrupted(_):
        # Another thread asks while this one is about to begin a round, and is then the one to read.
        waiting.append(threading.Thread(target=lambda: waiting.append(source.read(ids))))
        waiting[0].start()
        while len(source._asked) < 2:
            pass
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(source._all_ask, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.read(ids)
    waiting[0].join()
    np.testing.assert_array_equal(waiting[1], table[ids])
    np.testing.assert_array_equal(source.read(ids), table[ids])


def test_without_direct_io_rows_are_the_same(tables, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    table, mapped = tables[np.float32, (37,)]
    source, ids = DiskRows(mapped, 10), np.arange(ROWS)[::-3]
    np.testing.assert_array_equal(source.read(ids), table[ids])


def test_a_file_that_was_shortened_is_named_with_the_position(tmp_path):
    path = tmp_path / "x.npy"
    write_array(path, np.ones((5000, 16), np.float32))
    source = DiskRows(open_array(path), 100)
    os.truncate(path, 100_000)
    with refused("damaged-file x.npy 100,000 shortened"):
        source.read(np.arange(5000))
    # What was admitted to the cache and not read is forgotten.
    np.testing.assert_array_equal(source.read(np.arange(1000)), np.ones((1000, 16), np.float32))


def test_a_file_that_is_gone_and_a_disk_that_fails_are_named(tmp_path, monkeypatch):
    path = tmp_path / "x.npy"
    write_array(path, np.ones((5000, 16), np.float32))
    read, gone = DiskRows(open_array(path)), DiskRows(open_array(path))
    read.read(np.arange(3))
    path.unlink()
    with refused("damaged-file x.npy byte 0 directory"):
        gone.read(np.arange(3))

    def fails(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fails)
    monkeypatch.setattr(disk_rows, "_serve", lambda *rest: 0)
    with refused("damaged-file x.npy 4,096 Input/output"):
        read.read(np.array([100]))


def test_ids_outside_the_table_and_buffers_that_do_not_fit_are_refused(tables):
    source = DiskRows(tables[np.float32, (37,)][1])
    with refused("id-out-of-range 2999"):
        source.read(np.array([ROWS]))
    with refused("shape-mismatch"):
        source.fill(np.arange(3), np.empty((2, 37), np.float32))


def test_only_arrays_mapped_from_files_are_on_disk(tables):
    table, mapped = tables[np.float32, (37,)]
    assert is_on_disk(mapped)
    assert not is_on_disk(table) and not is_on_disk(mapped[:, 1:]) and not is_on_disk(mapped[100:200])


def test_a_cache_takes_no_more_than_its_bytes(tables):
    _, mapped = tables[np.float32, (37,)]
    for size in (0, 9 << 20, 10 << 20, 1 << 30):
        rows = cached_rows(mapped, size)
        assert 0 <= rows <= ROWS
        assert not rows or DiskRows(mapped, rows).memory_bytes <= size


class Sieve:
    """SIEVE as its paper has it (Zhang et al., NSDI 2024, algorithm 1): `queue` from the head to the tail."""

    def __init__(self, most):
        self.most, self.queue, self.visited, self.hand = most, [], {}, None

    def read(self, row):
        """Whether a row is cached; else it is admitted."""
        if row in self.visited:
            self.visited[row] = True
            return True
        if len(self.queue) == self.most:
            self.remove()
        self.queue.insert(0, row)
        self.visited[row] = False
        return False

    def remove(self):
        """Remove the row that the hand finds."""
        at = self.queue.index(self.hand) if self.hand is not None else len(self.queue) - 1
        while self.visited[self.queue[at]]:
            self.visited[self.queue[at]] = False
            at = at - 1 if at else len(self.queue) - 1
        self.hand = self.queue[at - 1] if at else None
        del self.visited[self.queue.pop(at)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.lists(st.lists(st.integers(0, 20), max_size=30), max_size=12))
def test_the_cache_keeps_what_sieve_keeps(most, rounds):
    cache, sieve = SieveCache(21, most, 8), Sieve(most)
    for ids in rounds:
        before = set(sieve.queue)
        slots = cache.admit(np.array(ids, np.int64))
        admitted = set()
        for row, slot in zip(ids, slots, strict=True):
            hit = sieve.read(row)
            admitted |= set() if hit else {row}
            # Rows that this round has admitted have no bytes yet, even where they were cached before it.
            assert (slot != MISSING) == (hit and row in before and row not in admitted)
        assert cache.cached == set(sieve.queue)
