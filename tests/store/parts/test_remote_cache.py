"""A cache of remote rows: the same bits as without it, fewer rows on the wire, no more memory than it was given."""

import itertools
import threading

import numpy as np
import pytest

from penstock.store.parts import PartedStore, StoreService
from penstock.store.parts.store import CachePlan, CacheUse, ReadCounts, RemoteRowCache, plan_caches
from penstock.store.source import LocalStore

FIELDS = ["paper/x", "paper/wide", "author/x/x"]
WIRE_TYPES = ["stored", "float16", "int8"]
PLENTY = 1 << 20


def stores_over(partition, posts, wire_type, local=(0,)):
    """Two readers of the same parts, the first of which will have a cache."""
    owner, *readers = posts("owner", "first", "second")
    StoreService(owner, {part: partition.part(part) for part in range(partition.parts)})
    here = {part: LocalStore.of_graph(partition.part(part)) for part in local}

    def channels(reader):
        return lambda part: reader.channel("owner", "features")

    return [PartedStore(partition.book, here, channels(reader), wire_type) for reader in readers]


def reads_of(partition, field, rows=200, seed=0):
    """Rows of a field, all different, and how often each will be read."""
    count = partition.book.count(field.rpartition("/")[0])
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.permutation(count)[:rows])
    return ids, rng.integers(1, 50, len(ids))


def cells():
    """Every room with every type that is sent, among two parts and four in turn; the rest of the product is long."""
    for (at, room), parts, (k, wire_type) in itertools.product(
        enumerate((1, 4000, PLENTY)), (1, 2, 4), enumerate(WIRE_TYPES)
    ):
        taken = k == at if parts == 1 else parts == (2, 4)[(at + k) % 2]
        yield pytest.param(room, parts, wire_type, marks=[] if taken else pytest.mark.long)


@pytest.mark.parametrize("room, parts, wire_type", [*cells()])
def test_rows_have_the_same_bits_with_a_cache(cuts, posts, parts, wire_type, room):
    partition = cuts(parts)
    cached, plain = stores_over(partition, posts, wire_type)
    cached.cache_remote_rows({field: reads_of(partition, field) for field in FIELDS}, room)
    rng = np.random.default_rng(1)
    for _ in range(4):
        for field in FIELDS:
            ids = rng.integers(0, partition.book.count(field.rpartition("/")[0]), 300)
            np.testing.assert_array_equal(cached.source(field).read(ids), plain.source(field).read(ids))
        ids, some = rng.integers(0, 600, 100), slice(1, 4)
        both = [each.source("paper/x").read(ids, columns=some) for each in (cached, plain)]
        np.testing.assert_array_equal(*both)
    use, came, all_rows = cached.cache_use(), cached.traffic(), plain.traffic()
    saved = sum(all_rows[field].bytes - came[field].bytes for field in all_rows) if parts > 1 else 0
    assert use.bytes_saved == saved and plain.cache_use() is None
    assert (use.hits > 0) == (parts > 1 and room > 1)
    if room == PLENTY:
        everything = np.arange(partition.book.count("paper"))
        cached.source("paper/x").read(everything)
        before = cached.cache_use()
        cached.source("paper/x").read(everything)
        after = cached.cache_use()
        far = len(everything) - len(partition.part(0).nodes["paper"].fields["x"])
        assert (after.hits - before.hits, after.misses - before.misses) == (far, 0)


def test_rows_that_are_read_most_are_kept_and_the_bound_holds():
    ids = np.arange(100)
    narrow = ReadCounts(ids, np.arange(100), 40, 100)
    wide = ReadCounts(ids + 1000, np.full(100, 90), 400, 5000)
    plans = plan_caches({"narrow": narrow, "wide": wide}, 10 * 65 + 3 * 425)
    np.testing.assert_array_equal(plans["narrow"].reserved, np.arange(90, 100))
    assert (plans["narrow"].rows, plans["wide"].rows) == (10, 3)
    for room in (0, 1, 64, 65, 1000, 10_000, 123_456):
        caches = [
            RemoteRowCache(plan, np.dtype(np.float32), (each.row_bytes // 4,))
            for each, plan in zip(
                (narrow, wide), plan_caches({"narrow": narrow, "wide": wide}, room).values(), strict=True
            )
        ]
        # An empty cache has an index of one number.
        assert sum(cache.nbytes for cache in caches if cache.rows) <= room
    # What is left when all rows that were counted have a place is for whatever comes, but for no more than there is.
    plans = plan_caches({"narrow": narrow}, PLENTY)
    assert plans["narrow"].rows == 100
    assert plan_caches({"wide": wide}, PLENTY)["wide"].rows == PLENTY // 425


def test_nothing_is_replaced_and_what_has_no_place_is_left():
    cache = RemoteRowCache(CachePlan(3, np.array([7, 5])), np.dtype(np.float32), (2,))
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    ids = np.array([1, 5, 2, 7])
    np.testing.assert_array_equal(cache.find(ids, 8), [-1, -1, -1, -1])
    cache.keep(ids, np.array([0, 1, 2, 3]), rows)
    slots = cache.find(ids, 8)
    # Row 1 took the free place, row 2 found none.
    assert slots.tolist() == [2, 1, -1, 0]
    out = np.zeros((4, 2), np.float32)
    cache.place(slots[slots >= 0], np.flatnonzero(slots >= 0), out)
    np.testing.assert_array_equal(out, [[0, 1], [2, 3], [0, 0], [6, 7]])
    cache.keep(ids, np.array([4, 4, 4, 4]), rows)
    cache.place(slots[slots >= 0], np.flatnonzero(slots >= 0), out)
    np.testing.assert_array_equal(out, [[0, 1], [2, 3], [0, 0], [6, 7]])
    assert cache.use == CacheUse(3, 5, 24)


def test_threads_share_a_cache():
    table = np.random.default_rng(0).random((5000, 3), np.float32)
    cache = RemoteRowCache(CachePlan(1000, np.arange(0, 5000, 10)), np.dtype(np.float32), (3,))
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            ids = np.unique(rng.integers(0, 5000, 400))
            slots, out = cache.find(ids, 12), table[ids].copy()
            found = np.flatnonzero(slots >= 0)
            out[found] = 0
            cache.place(slots[found], found, out)
            if not np.array_equal(out, table[ids]):
                wrong.append(ids)
            cache.keep(ids, np.arange(len(ids)), out)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.use.hits > 0 and int(cache._present.sum()) == cache._used == 1000
