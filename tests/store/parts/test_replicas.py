"""Replicas of feature rows: the same bits along every path, and chunks that go where they arrive first."""

import itertools

import numpy as np
import pytest

from penstock.store.parts import PartedStore, StochasticRounding, StoreService
from penstock.store.parts.replicas import CHUNK_BYTES, HeldRows, ReplicaCopy, ReplicaReader, ReplicaService, RowPaths
from penstock.store.parts.requests import FarRows
from penstock.store.source import LocalStore
from penstock.wire.message import Message
from refusals import refused

FIELD = "paper/x"
WIRE_TYPES = ["stored", "float16", "int8", "float16-stochastic", "int8-stochastic"]


class Bed:
    """An owner of all parts, a second store with replicas of all but the first, and readers."""

    def __init__(self, partition, posts, wire_type, share=1.0, mapped=False, owner=True, ready=True, compact=False):
        ends = owner_end, copy_end, first, second = posts("owner", "copy", "first", "second")
        StoreService(owner_end, {part: partition.part(part) for part in range(partition.parts)})
        self.service, self.partition = ReplicaService(copy_end), partition
        self.held, copies = {}, {}
        for part in range(1, partition.parts):
            table = partition.part(part).nodes["paper"].fields["x"]
            numbers = None if share == 1.0 else np.flatnonzero(np.random.default_rng(part).random(len(table)) < share)
            self.held[part, FIELD] = HeldRows(
                table[numbers] if compact and numbers is not None else table, numbers, compact and numbers is not None
            )
            copies[part] = [ReplicaCopy("copy", numbers, table if mapped else None)]
        if ready:
            self.service.hold(self.held)
        here = {0: LocalStore.of_graph(partition.part(0))}
        self.stores = [
            PartedStore(
                partition.book,
                here,
                lambda part, end=end: end.channel("owner", "features"),
                wire_type.removesuffix("-stochastic"),
                rounding=StochasticRounding(5) if wire_type.endswith("-stochastic") else None,
            )
            for end in (first, second)
        ]
        self.reader, self.plain = self.stores
        paths = RowPaths(["owner"] * partition.parts, {part: ["copy"] for part in copies}, owner)
        self.reader.replicas = ReplicaReader({FIELD: copies}, paths, lambda store: first.channel(store, "features"))
        self.copy_channel = first.channel("copy", "features")
        assert len(ends) == 4

    def same(self, rounds=3):
        """Read the same rows with and without replicas."""
        rng = np.random.default_rng(1)
        for _ in range(rounds):
            ids = rng.integers(0, 600, 500)
            for columns in (None, slice(1, 4)):
                both = [each.source(FIELD).read(ids, columns=columns) for each in (self.reader, self.plain)]
                np.testing.assert_array_equal(*both)
        return self.reader.replicas.use()


WAYS = [{}, {"owner": False}, {"mapped": True}, {"share": 0.3}, {"share": 0.3, "compact": True}, {"ready": False}]


def cells():
    """Every way with every other type that is sent, among two parts and four in turn; the rest is long."""
    for (at, how), parts, (k, wire_type) in itertools.product(enumerate(WAYS), (1, 2, 4), enumerate(WIRE_TYPES)):
        taken = k == at % len(WIRE_TYPES) if parts == 1 else (at + k) % 2 == 0 and parts == (2, 4)[(at + k) // 2 % 2]
        name = f"{' '.join(how) or 'full'}-{parts}-{wire_type}"
        yield pytest.param(how, parts, wire_type, marks=[] if taken else pytest.mark.long, id=name)


@pytest.mark.parametrize("how, parts, wire_type", [*cells()])
def test_rows_have_the_same_bits_along_every_path(cuts, posts, monkeypatch, parts, wire_type, how):
    monkeypatch.setattr("penstock.store.parts.replicas.CHUNK_BYTES", 200)
    bed = Bed(cuts(parts), posts, wire_type, **how)
    use = bed.same()
    all_rows, came = bed.plain.traffic().get(FIELD), bed.reader.traffic().get(FIELD)
    if parts == 1:
        assert use == {} and all_rows is None
        return
    assert sum(each.rows for each in use.values()) == all_rows.rows
    assert sum(each.bytes for each in use.values()) == came.bytes
    paths = set(use)
    if how.get("mapped"):
        assert paths == {"here"} and came.bytes == 0
    elif how.get("owner") is False:
        assert paths == {"replica"}
    elif how.get("ready") is False:
        # Until the copy is there, the owner is asked for its rows too.
        assert paths == {"owner"}
    else:
        assert paths == {"owner", "replica"}


def test_other_fields_and_caches_go_on_as_they_were(cuts, posts):
    bed = Bed(cuts(4), posts, "int8")
    bed.reader.cache_remote_rows({FIELD: (np.arange(600), np.ones(600, np.int64))}, 1 << 20)
    bed.same()
    assert bed.reader.cache_use().hits > 0
    ids = np.arange(600)
    np.testing.assert_array_equal(*[each.source("paper/wide").read(ids) for each in bed.stores])


def test_what_a_replica_is_asked_for_is_checked(cuts, posts):
    bed = Bed(cuts(2), posts, "stored", share=0.3)
    numbers = bed.held[1, FIELD].numbers
    missing = np.setdiff1d(np.arange(numbers[-1]), numbers)[:1]
    for rows, body, said in (
        (missing, {}, "id-out-of-range"),
        (numbers + 10_000, {}, "id-out-of-range"),
        (numbers, {"columns": [3, 9]}, "shape-mismatch"),
        (numbers, {"part": 0}, "not-available"),
        (numbers, {"field": "paper/y"}, "not-available"),
    ):
        request = Message("replica-pull", {"part": 1, "field": FIELD, **body}, (rows,))
        with refused(said):
            list(bed.copy_channel.start(request).parts())


class Links:
    """Stores whose links carry so many chunks a second, one after the other; time is counted, not measured."""

    def __init__(self, rates):
        self.rates, self.now, self.sent = rates, 100.0, {}

    def pull(self, paths, wanted, held):
        """Seconds of a pull: when the last store has sent all that is asked of it."""
        along = paths.divide(wanted, held, CHUNK_BYTES)
        asked = dict.fromkeys(self.rates, 0)
        for each in along:
            asked[each.store] += len(each.wanted.rows)
        self.sent = {store: self.sent.get(store, 0) + rows for store, rows in asked.items()}
        # What one store sends at the same time ends at the same time.
        ends = [self.now + asked[each.store] / self.rates[each.store] for each in along]
        for each, end in zip(along, ends, strict=True):
            paths.completed(each, len(each.wanted.rows) * CHUNK_BYTES, end)
        took = max(ends) - self.now
        self.now = max(ends) + 0.01
        return took


def all_held(chunks, part=0):
    """One part's rows, a chunk each, all of which its replica has."""
    rows = np.arange(chunks)
    return [FarRows(part, rows, rows)], [np.ones(chunks, np.int64)]


def test_a_slow_owner_is_worked_around_and_used_again_when_it_is_fast():
    links = Links({"owner": 1000.0, "copy": 1000.0})
    paths = RowPaths(["owner"], {0: ["copy"]}, clock=lambda: links.now)
    alike = [links.pull(paths, *all_held(60)) for _ in range(30)]
    assert np.median(alike[10:]) <= 1.2 * 60 / 2000
    links.rates["owner"], links.sent = 100.0, {}
    slow = [links.pull(paths, *all_held(60)) for _ in range(60)]
    # All from the owner would take 0.6 s, the best division 60 / 1100 s.
    assert np.median(slow[10:]) <= 1.6 * 60 / 1100
    assert links.sent["owner"] < 0.25 * links.sent["copy"]
    links.rates["owner"] = 1000.0
    again = [links.pull(paths, *all_held(60)) for _ in range(200)]
    assert np.median(again[-50:]) <= 1.3 * 60 / 2000


def test_rows_that_only_the_owner_has_leave_the_others_to_the_replica():
    links = Links({"owner": 1000.0, "copy": 1000.0})
    paths = RowPaths(["owner"], {0: ["copy"]}, clock=lambda: links.now)
    rows = np.arange(60)
    held = (rows < 30).astype(np.int64)
    for _ in range(20):
        links.pull(paths, [FarRows(0, rows, rows)], [held])
    links.sent = {}
    for _ in range(20):
        links.pull(paths, [FarRows(0, rows, rows)], [held])
    assert links.sent["copy"] >= 0.8 * 30 * 20


def test_a_store_that_serves_its_own_part_is_not_overloaded_by_a_replica():
    """Part 1 has one path, over the link that the replica of part 0 would use."""
    links = Links({"owner": 1000.0, "copy": 1000.0})
    paths = RowPaths(["owner", "copy"], {0: ["copy"]}, clock=lambda: links.now)
    rows = np.arange(40)
    for _ in range(20):
        links.pull(
            paths, [FarRows(0, rows, rows), FarRows(1, rows, rows)], [np.ones(40, np.int64), np.zeros(40, np.int64)]
        )
    assert links.sent["owner"] >= 0.75 * 40 * 20


def test_requests_that_fail_give_their_places_back():
    paths = RowPaths(["owner"], {0: ["copy"]}, clock=lambda: 1.0)
    for each in paths.divide(*all_held(50), CHUNK_BYTES):
        assert paths.selector.in_progress
        paths.forget(each)
    assert paths.selector.in_progress == 0
