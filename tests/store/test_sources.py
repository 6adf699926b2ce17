"""Every source of rows, and sources over sources, give the rows of the plain array."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meeting_posts import meeting_posts
from penstock import EdgeSet, Graph, NodeSet
from penstock.partition import Book
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.store.device.copies import to_pinned
from penstock.store.device.tables import CachedTable, PinnedTable, ResidentTable
from penstock.store.parts import PartedStore, StoreService
from penstock.store.source import ArraySource, LocalStore, RowSource, SplitSource, cached_source, replicated_source
from refusals import refused
from training_graphs import lists_of

ROWS, WIDTH, CUT = 60, 7, 23
TYPES = [np.float32, np.float16, np.int8]
COLUMNS = [None, slice(2, 5), [3], [6, 0, 0, 4], slice(0, 7, 3), [], np.arange(WIDTH)]


class CountingRows(RowSource):
    """A toy source, as docs/extending.md shows it: row i is i, i + 1, i + 2, ... computed when it is asked for."""

    def __init__(self, rows, width, dtype=np.float32):
        self.shape, self.dtype = (rows, width), np.dtype(dtype)

    def fill(self, ids, out, places=None, span=None):
        """Compute the rows."""
        first, last = span or (0, self.shape[1])
        out[slice(None) if places is None else places] = ids[:, None] + np.arange(first, last)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """By type, an array whose every number says its row and column; and the same mapped from a file."""
    folder = tmp_path_factory.mktemp("tables")
    made = {}
    for dtype in TYPES:
        table = (np.arange(ROWS)[:, None] + np.arange(WIDTH)).astype(dtype)
        np.save(folder / f"{np.dtype(dtype).name}.npy", table)
        made[dtype] = table, np.load(folder / f"{np.dtype(dtype).name}.npy", mmap_mode="r").view(np.ndarray)
    return made


@pytest.fixture
def posts():
    """Posts by name that know each other, closed when the test ends."""
    with meeting_posts() as make:
        yield make


@pytest.fixture
def sources(tables, posts, device):
    """All kinds of sources of one array, and compositions of them."""
    owner, reader = posts("store", "reader")
    book = Book(2, 1, {"n": np.array([0, CUT, ROWS])})
    parts = {}
    for number, (first, last) in enumerate(((0, CUT), (CUT, ROWS))):
        fields = {np.dtype(dtype).name: mapped[first:last] for dtype, (_, mapped) in tables.items()}
        parts[number] = Graph({"n": NodeSet(last - first, fields, first=first, total=ROWS)}, {})
    StoreService(owner, parts)

    def channel(part):
        return reader.channel("store", "features")

    here = {0: LocalStore.of_graph(parts[0])}
    partly, remote = PartedStore(book, here, channel), PartedStore(book, {}, channel)

    def made(dtype):
        table, mapped = tables[dtype]
        name = f"n/{np.dtype(dtype).name}"
        hot, far = np.array([3, 59, 22, 23, 0]), remote.source(name)
        resident = ResidentTable(torch.from_numpy(table.copy()).to(device))
        pinned = PinnedTable(to_pinned(table, device), device)
        near = ResidentTable(torch.from_numpy(table[hot]).to(device))
        below, above = ArraySource(table[:30]), ArraySource(table[30:])
        return {
            "memory": ArraySource(table),
            "mapped": ArraySource(mapped),
            "remote": far,
            "partly remote": partly.source(name),
            "device": resident,
            "pinned": pinned,
            "cached on a device": CachedTable(pinned.table, torch.tensor([1, 5, 59]), device),
            "computed": CountingRows(ROWS, WIDTH, dtype),
            "cache over parts": cached_source(partly.source(name), hot),
            "cache on a device over parts": cached_source(partly.source(name), hot, near),
            "cache over a cache": cached_source(cached_source(far, hot), np.array([7, 3])),
            "replicas": replicated_source([ArraySource(table), far, resident]),
            "cache over replicas": cached_source(replicated_source([ArraySource(mapped), far]), hot),
            "devices alone": replicated_source([resident, pinned]),
            "by halves": SplitSource(ROWS, [below, above], lambda ids: (ids // 30, ids % 30)),
        }

    return made


def on_host(rows):
    """Rows on the host."""
    return rows if isinstance(rows, np.ndarray) else rows.cpu().numpy()


def chosen(rows, columns):
    """Some columns of rows, by NumPy."""
    return rows if columns is None else rows[:, columns if isinstance(columns, slice) else np.array(columns, int)]


def test_a_cache_knows_how_often_it_served():
    source = cached_source(CountingRows(ROWS, WIDTH), np.array([3, 59]))
    assert source.hit_rate() == 0
    source.read(np.array([3, 4, 59, 3]))
    assert source.hit_rate() == 0.75


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.__name__)
def test_every_source_gives_the_rows_of_the_array(tables, sources, dtype, device):
    rng, (table, _) = np.random.default_rng(0), tables[dtype]
    for name, source in sources(dtype).items():
        assert source.shape == table.shape
        for number, columns in enumerate(COLUMNS if dtype is np.float32 else COLUMNS[::3]):
            ids = rng.integers(0, ROWS, 20).astype(np.int32 if number % 2 else np.int64)
            expected, where = chosen(table[ids], columns), f"{name}, columns {columns}"
            np.testing.assert_array_equal(on_host(source.read(ids, columns=columns)), expected, where)
            out = np.full(expected.shape, 99, dtype)
            assert source.read(ids, out, columns) is out
            np.testing.assert_array_equal(out, expected, where)
            wide = np.full(expected.shape, 99, np.float32)
            np.testing.assert_array_equal(source.read(ids, wide, columns), expected.astype(np.float32), where)
            there = source.read(ids, device, columns, torch.float32)
            assert there.dtype == torch.float32 and there.device.type == device.type
            np.testing.assert_array_equal(on_host(there), expected.astype(np.float32), where)
            tensor = torch.full(expected.shape, 99.0, device=device)
            assert source.read(torch.from_numpy(ids).to(device), tensor, columns) is tensor
            np.testing.assert_array_equal(on_host(tensor), expected.astype(np.float32), where)
        assert len(source.read(np.empty(0, np.int64))) == 0


@pytest.mark.gpu
def test_several_sources_fill_one_destination_at_given_places(tables, sources, device):
    table, _ = tables[np.float32]
    ids, places = np.array([59, 0, 3, 3, 40]), np.array([1, 5, 0, 6, 2])
    for out in (np.full((8, 3), -1, np.float32), torch.full((8, 3), -1.0, device=device)):
        for name, source in sources(np.float32).items():
            out[:] = -1
            source.put(ids, out, places, (2, 5))
            np.testing.assert_array_equal(on_host(out)[places], table[ids, 2:5], name)
            assert (out[[3, 4, 7]] == -1).all()


@given(st.lists(st.integers(0, ROWS - 1)), st.sets(st.integers(0, ROWS - 1)), st.sets(st.integers(0, WIDTH - 1)))
def test_a_cache_changes_nothing_but_where_rows_come_from(ids, hot, columns):
    table = np.random.default_rng(1).random((ROWS, WIDTH)).astype(np.float32)
    asked = []

    class Counted(ArraySource):
        def fill(self, ids, out, places=None, span=None):
            asked.extend(ids.tolist())
            super().fill(ids, out, places, span)

    source = cached_source(Counted(table), np.array(sorted(hot), np.int64))
    asked.clear()
    picked = sorted(columns)
    np.testing.assert_array_equal(source.read(np.array(ids, np.int64), columns=picked), table[ids][:, picked])
    assert sorted(asked) == sorted(row for row in ids if row not in hot)


def test_what_is_not_there_is_refused(sources, device):
    for name, source in sources(np.float32).items():
        if not source.on_device or isinstance(source, SplitSource):
            for bad in ([-1], [ROWS]):
                if name != "computed":
                    with refused("id-out-of-range 0.."):
                        source.read(np.array(bad))
        with refused("id-out-of-range 0..6"):
            source.read(np.array([0]), columns=[7])
        with refused("shape-mismatch"):
            source.read(np.array([0]), np.empty((2, WIDTH), np.float32))
        with refused("shape-mismatch"):
            source.read(np.array([0]), torch.empty((1, WIDTH - 1), device=device))
    with refused("mismatched-inputs"):
        replicated_source([ArraySource(np.zeros((3, 2))), ArraySource(np.zeros((3, 2), np.float32))])


def test_threads_may_read_one_source_at_once(sources, tables):
    table, found = tables[np.float32][0], {}

    def read(number, source):
        ids = np.random.default_rng(number).integers(0, ROWS, 500)
        found[number] = np.array_equal(source.read(ids), table[ids])

    source = sources(np.float32)["cache over parts"]
    threads = [threading.Thread(target=read, args=(number, source)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


def test_the_documentations_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M):
        exec(code, names)
    np.testing.assert_array_equal(names["rows"], names["table"][[5, 999, 5]])
    np.testing.assert_array_equal(names["part"], names["table"][[7]][:, [0, 3]].astype(np.float64))
    np.testing.assert_array_equal(names["again"], names["whole"])
    rows = names["CountingRows"](9, 4).read(np.array([8, 0]), columns=[3, 1])
    assert rows.tolist() == [[11, 9], [3, 1]]


def test_fields_of_edges_are_rows_by_the_positions_that_blocks_know():
    rng, count = np.random.default_rng(0), 30
    lists = lists_of(*rng.integers(0, count, (2, 200)), count, count)
    values = rng.random((200, 3)).astype(np.float32)
    edges = EdgeSet(lists.indptr, lists.indices, {"v": values})
    graph = Graph({"node": NodeSet(count, {"x": np.zeros((count, 1), np.float32)})}, {("node", "to", "node"): edges})
    source = LocalStore.of_graph(graph).source("node__to__node/v")
    for block in NeighbourSampler(graph, [4, 3], edges=True).sample(np.arange(10), BatchKey(0, 0, 0)).blocks:
        assert len(block.edges) == block.num_edges
        np.testing.assert_array_equal(source.read(block.edges), values[block.edges])
