"""A store over parts answers as one over the whole graph, wherever the parts are."""

import numpy as np
import pytest

from penstock import Graph, NodeSet
from penstock.errors import PenstockError
from penstock.partition import Book
from penstock.store.parts import PartedStore, StoreService, requests
from penstock.store.source import LocalStore
from penstock.wire.channel import RemoteError
from refusals import refused

FIELDS = ["paper/x", "paper/wide", "paper/half", "paper/y", "paper/flag", "author/x/x"]


def nowhere(part):
    raise PenstockError(f"part {part} is here", code="unexpected-failure")


def open_store(partition, posts, local, wire_type="stored", narrowed=None):
    """(a reader that maps the parts `local`, services): two stores hold the parts in turn."""
    first, second, reader = posts("store-0", "store-1", "reader")
    shares = [{p: partition.part(p) for p in range(partition.parts) if p % 2 == k} for k in (0, 1)]
    services = [StoreService(endpoint, share) for endpoint, share in zip((first, second), shares, strict=True)]
    here = {p: LocalStore.of_graph(partition.part(p)) for p in local}
    book, channels = partition.book, lambda part: reader.channel(f"store-{part % 2}", "features")
    store = PartedStore(book, here, channels, wire_type, narrowed)
    return store, services


def some_ids(partition, node_type, count=300, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(0, partition.book.count(node_type), count)


@pytest.mark.covering(1)
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("local", ["all", "first", "none"])
def test_every_field_is_the_whole_graphs(whole, cuts, posts, parts, local):
    partition, one = cuts(parts), LocalStore.of_graph(whole)
    here = {"all": range(parts), "first": range(1), "none": range(0)}[local]
    store, _ = open_store(partition, posts, here)
    for field in FIELDS:
        node_type = field.rpartition("/")[0]
        ids = some_ids(partition, node_type)
        original = partition.original(node_type)[ids]
        assert store.source(field).shape == one.source(field).shape
        assert store.source(field).dtype == one.source(field).dtype
        np.testing.assert_array_equal(store.source(field).read(ids.astype(np.int32)), one.source(field).read(original))
        out = np.empty((len(ids), *one.source(field).row_shape()), one.source(field).dtype)
        assert store.source(field).read(ids, out) is out
        np.testing.assert_array_equal(out, one.source(field).read(original))
        assert len(store.source(field).read(ids[:0])) == 0
    ids = some_ids(partition, "paper")
    original = partition.original("paper")[ids]
    rows, exact = store.source("paper/x"), one.source("paper/x")
    for columns in (slice(2, 5), slice(None, 4), slice(3, 3), slice(-2, None), slice(0, 4, 2), [6, 1]):
        np.testing.assert_array_equal(rows.read(ids, columns=columns), exact.read(original, columns=columns))


def test_answers_in_many_parts_are_put_together_and_buffers_come_back(cuts, posts, whole, monkeypatch):
    monkeypatch.setattr(requests, "PART_BYTES", 256)
    partition = cuts(2)
    store, services = open_store(partition, posts, [])
    ids = np.random.default_rng(0).permutation(1200) % 600
    for wire_type in ("stored", "float16", "int8"):
        store._wire_type = wire_type
        got = store.source("paper/x").read(ids)
        np.testing.assert_allclose(got, whole.nodes["paper"].x[partition.original("paper")[ids]], atol=0.02)
    assert all(0 < service.buffers.waiting <= 32 for service in services)


def test_large_rows_go_out_of_the_buffers_they_were_gathered_into(cuts, posts):
    partition = cuts(2)
    store, services = open_store(partition, posts, [])
    store.make("paper/h", 5000)
    values = np.random.default_rng(0).random((600, 5000), np.float32)
    store.push("paper/h", np.arange(600), values)
    ids = np.random.default_rng(1).permutation(600)
    for _ in range(3):
        np.testing.assert_array_equal(store.source("paper/h").read(ids), values[ids])
    # Six megabytes each time, in twelve parts; far fewer buffers than that, as they are used again.
    assert all(service.buffers.waiting <= 12 for service in services)


def test_each_distinct_remote_row_travels_once_and_is_counted(cuts, posts):
    partition = cuts(2)
    store, _ = open_store(partition, posts, [0])
    first, last = partition.book.range(1, "paper")
    mine = np.arange(*partition.book.range(0, "paper"))[:9]
    ids = np.concatenate([[first, last - 1, first, first + 3, last - 1], mine, mine])
    store.source("paper/x").read(ids)
    assert vars(store.traffic()["paper/x"]) == {"rows": 3, "bytes": 3 * 28, "minimum": 3 * 28}
    store.source("paper/x").read(ids, columns=slice(1, 3))
    assert vars(store.traffic()["paper/x"]) == {"rows": 6, "bytes": 3 * 36, "minimum": 3 * 36}
    store.source("paper/y").read(mine)
    assert "paper/y" not in store.traffic()


def test_narrow_rows_are_near_and_smaller(cuts, posts, whole):
    partition = cuts(4)
    ids = some_ids(partition, "paper")
    original = partition.original("paper")[ids]
    for wire_type, row in (("float16", 14), ("int8", 11)):
        store, _ = open_store(partition, posts, [0], wire_type)
        for field, exact in whole.nodes["paper"].fields.items():
            got, want = store.source(f"paper/{field}").read(ids), exact[original]
            assert got.dtype == want.dtype
            if field not in ("x", "wide"):
                np.testing.assert_array_equal(got, want)
                continue
            size = (
                np.abs(want) if wire_type == "float16" else np.abs(want).max(tuple(range(1, want.ndim)), keepdims=True)
            )
            bound = size / 2048 + 2**-24 if wire_type == "float16" else size / 253.9
            assert (np.abs(got - want) <= bound).all()
            here = partition.book.owner(ids, "paper") == 0
            np.testing.assert_array_equal(got[here], want[here])
        count = store.traffic()["paper/x"]
        assert (count.bytes, count.minimum) == (count.rows * row, count.rows * 28)
        got = store.source("paper/x").read(ids, columns=slice(1, 4))
        np.testing.assert_allclose(got, whole.nodes["paper"].x[original, 1:4], atol=0.02)


def test_bad_requests_are_refused_with_a_sentence(cuts, posts):
    partition = cuts(2)
    store, _ = open_store(partition, posts, [0])
    remote, _ = open_store(partition, posts, [])
    for each in (store, remote):
        for bad in ([-1], [600], [0, 2**40]):
            with refused("id-out-of-range 0..599"):
                each.source("paper/x").read(np.array(bad))
        with refused("field-missing paper/wid paper/wide"):
            each.source("paper/wid").read(np.array([0]))
        with refused("unknown-name"):
            each.source("papers/x").read(np.array([0]))
        with refused("shape-mismatch"):
            each.source("paper/y").read(np.array([0]), columns=slice(0, 1))
        with refused("id-out-of-range 0..6"):
            each.source("paper/x").read(np.array([0]), columns=[0, 7])
        with refused("shape-mismatch"):
            each.source("paper/x").read(np.array([0]), np.empty((1, 6), np.float32))
        with refused("not-permitted"):
            each.push("paper/x", np.arange(600), np.zeros((600, 7)))
    with refused("unknown-name int4"):
        PartedStore(partition.book, {0: store._local[0]}, nowhere, "int4").source("paper/x").read(np.array([0]))


@pytest.mark.parametrize("wire_type", ["float16", "int8"])
def test_only_what_is_named_is_narrowed(whole, cuts, posts, wire_type):
    """Times and labels travel beside features, and nobody may round them."""
    partition = cuts(2)
    store, _ = open_store(partition, posts, [], wire_type, {"paper/x"})
    original = partition.original("paper")
    exact = whole.nodes["paper"].fields["wide"][original]
    np.testing.assert_array_equal(store.source("paper/wide").read(np.arange(600)), exact)
    assert not np.array_equal(store.source("paper/x").read(np.arange(600)), whole.nodes["paper"].fields["x"][original])


def test_fields_made_at_owners_are_written_read_and_dropped(cuts, posts):
    partition = cuts(4)
    store, services = open_store(partition, posts, [0])
    store.make("paper/level/1", 3)
    ids = np.random.default_rng(0).permutation(600)
    values = np.random.default_rng(1).normal(size=(600, 3))
    store.push("paper/level/1", ids, values)
    store.make("paper/level/1", 3)
    np.testing.assert_array_equal(store.source("paper/level/1").read(ids), values.astype(np.float32))
    assert store.traffic()["paper/level/1"].rows == 600
    with refused("duplicate"):
        store.make("paper/level/1", 4)
    with refused("shape-mismatch"):
        store.push("paper/level/1", ids, values[:, :2])
    store.drop("paper/level/1")
    store.drop("paper/level/1")
    assert all("paper/level/1" not in fields.fields for service in services for fields in service.parts.values())
    with refused("not-available"):
        store.make("paper/level/1", 3)
    with refused("field-missing paper/level/1"):
        store.source("paper/level/1").read(ids)
    with refused("not-permitted"):
        store.drop("paper/x")


def test_made_fields_above_the_limit_lie_in_a_nameless_file(cuts, posts, tmp_path):
    partition = cuts(2)
    (endpoint,) = posts("store")
    service = StoreService(endpoint, {p: partition.part(p) for p in range(2)}, in_memory=100, folder=tmp_path)
    store = PartedStore(partition.book, service.parts, nowhere)
    store.make("paper/h", 3)
    store.push("paper/h", np.arange(600), np.arange(1800).reshape(600, 3))
    np.testing.assert_array_equal(store.source("paper/h").read(np.array([599, 0]))[:, 0], [1797, 0])
    assert isinstance(service.parts[0].fields["paper/h"].base, np.memmap)
    assert not list(tmp_path.iterdir())
    service.parts[0]._folder = tmp_path / "gone"
    with refused("write-failed"):
        store.make("paper/i", 3)


def test_numbers_that_do_not_fit_the_wire_are_refused(posts):
    x = np.array([[1.0, -65519.0], [65520.0, 0.0], [np.inf, np.nan], [1e300, 2.0]])
    owner, reader = posts("store", "reader")
    StoreService(owner, {0: Graph({"n": NodeSet(4, {"x": x})}, {})})
    book = Book(1, 1, {"n": np.array([0, 4])})
    stores = {t: PartedStore(book, {}, lambda part: reader.channel("store"), t) for t in ("float16", "int8")}
    found = stores["float16"].source("n/x").read(np.array([0, 2]))
    np.testing.assert_array_equal(found, [[1, -65504], [np.inf, np.nan]])
    for row in (1, 3):
        with refused("value-out-of-range 65504", RemoteError):
            stores["float16"].source("n/x").read(np.array([row]))
    for row in (2, 3):
        with refused("not-finite", RemoteError):
            stores["int8"].source("n/x").read(np.array([0, row]))
