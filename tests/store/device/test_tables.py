"""Gathering on a device against indexing on the host."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.residence import Sizes, cache_bytes
from penstock.store.device.copies import page_locked
from penstock.store.device.tables import CachedTable, DeviceSource, PinnedTable, ResidentTable
from refusals import refused

pytestmark = pytest.mark.gpu

ROWS = 37
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
]


def _values(dtype, *shape):
    """Small whole numbers, which every type holds exactly; never zero, so that a zero row is one that was not read."""
    values = torch.arange(1, 1 + int(np.prod(shape))).remainder(127).add(1).view(shape)
    return values.to(dtype)


def _tables(values, device, cached=(3, 0, 11)):
    pinned = page_locked(tuple(values.shape), values.dtype, device, lambda room: room.copy_(values))
    tables: list[DeviceSource] = [
        ResidentTable(values.to(device)),
        PinnedTable(pinned, device),
        CachedTable(pinned, torch.tensor(cached, dtype=torch.int64), device),
    ]
    return tables


def _expected(values, ids, count, dtype):
    live = (ids >= 0) & (torch.arange(len(ids)) < count)
    rows = values[ids.long().where(live, 0)].to(dtype)
    rows[~live] = 0
    return rows


@pytest.mark.parametrize("width", [1, 3, 100, 128, 172, 1100])
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_a_gather_is_indexing(device, width, id_type):
    values = _values(torch.float32, ROWS, width)
    ids = torch.tensor([5, 36, 0, -1, 5, 3, 11, 20, 1, -7, 2], dtype=id_type)
    for table in _tables(values, device):
        assert (table.shape, table.dtype) == ((ROWS, width), torch.float32)
        found = table.gather(ids.to(device))
        assert torch.equal(found.cpu(), _expected(values, ids, len(ids), torch.float32)), table.where


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_rows_of_any_shape(device, dtype):
    ids = torch.tensor([36, 0, -1, 3, 3])
    for shape in ((ROWS,), (ROWS, 5), (ROWS, 2, 3)):
        values = _values(dtype, *shape)
        for table in _tables(values, device):
            found = table.gather(ids.to(device))
            assert found.dtype == dtype and found.shape == (5, *shape[1:])
            assert torch.equal(found.cpu(), _expected(values, ids, 5, dtype)), table.where


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("wanted", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_are_converted_on_the_way(device, stored, wanted):
    values, ids = _values(stored, ROWS, 8), torch.tensor([1, 3, 36], dtype=torch.int32)
    for table in _tables(values, device):
        out = torch.full((3, 8), 7, dtype=wanted, device=device)
        assert table.gather(ids.to(device), out) is out
        assert torch.equal(out.cpu(), values[ids.long()].to(wanted)), table.where


@pytest.mark.parametrize("count", [0, 1, 4, 6, 9])
def test_ids_behind_the_count_are_never_looked_up(device, count):
    values = _values(torch.float32, ROWS, 100)
    ids = torch.tensor([2, 3, 4, -1, 11, 6])
    ids[count:] = 2**40
    size = torch.tensor([count], dtype=torch.int32, device=device)
    for table in _tables(values, device):
        out = torch.full((6, 100), 7.0, device=device)
        table.gather(ids.to(device), out, size)
        assert torch.equal(out.cpu(), _expected(values, ids, count, torch.float32)), table.where


def test_no_ids_no_rows_and_no_columns(device):
    for table in _tables(_values(torch.float32, ROWS, 4), device):
        assert table.gather(torch.empty(0, dtype=torch.int32, device=device)).shape == (0, 4)
    for table in _tables(torch.empty(ROWS, 0), device):
        assert table.gather(torch.zeros(3, dtype=torch.int32, device=device)).shape == (3, 0)
    for table in _tables(torch.empty(0, 4), device, cached=()):
        assert not table.gather(torch.full((3,), -1, device=device)).any()


def test_rows_go_into_some_columns_of_a_wider_buffer(device):
    values, ids = _values(torch.float16, ROWS, 12), torch.tensor([9, 11], device=device)
    for table in _tables(values, device):
        buffer = torch.zeros(2, 20, device=device)
        table.gather(ids, buffer[:, 4:16])
        assert torch.equal(buffer[:, 4:16].cpu(), values[[9, 11]].float())
        assert not buffer[:, :4].any() and not buffer[:, 16:].any()


@settings(max_examples=15)
@given(data=st.data())
def test_a_cache_changes_nothing_but_its_counts(data, device):
    width = data.draw(st.sampled_from([1, 3, 16]))
    values = _values(torch.float16, ROWS, width)
    cached = data.draw(st.lists(st.integers(0, ROWS - 1), unique=True))
    ids = data.draw(st.lists(st.integers(-1, ROWS - 1), max_size=50))
    count = data.draw(st.integers(0, 50))
    resident, _, table = _tables(values, device, cached)
    on_device = torch.tensor(ids, dtype=torch.int32, device=device)
    size = torch.tensor([count], dtype=torch.int32, device=device)
    out = torch.empty(len(ids), width, device=device)
    assert torch.equal(table.gather(on_device, out, size), resident.gather(on_device, torch.empty_like(out), size))
    read = [row for row in ids[:count] if row >= 0]
    hits = sum(row in cached for row in read)
    assert table.hits_and_reads() == (hits, len(read))
    table.gather(on_device, out)
    whole = [row for row in ids if row >= 0]
    hits += sum(row in cached for row in whole)
    assert table.hit_rate() == (hits / (len(read) + len(whole)) if whole or read else 0.0)
    reads = table.hits_and_reads()[1]
    table.gather(on_device[:1], out[:1])
    assert table.hits_and_reads()[1] - reads == len([row for row in ids[:1] if row >= 0])


def test_hits_are_exact_over_many_programs(device):
    table = _tables(_values(torch.uint8, 300, 128), device, cached=range(0, 300, 3))[2]
    table.gather(torch.arange(300, device=device).repeat(2))
    assert table.hits_and_reads() == (200, 600)


def test_tables_say_what_they_take_of_the_device(device):
    resident, pinned, cached = _tables(_values(torch.float16, ROWS, 10), device)
    assert [table.where for table in (resident, pinned, cached)] == ["device", "pinned", "cached"]
    assert (resident.device_bytes, pinned.device_bytes) == (ROWS * 20, 0)
    sizes = Sizes(0, ROWS * 20, 20, ROWS, 0, 0, 0, 0)
    assert cached.cached_rows == 3
    assert cached.device_bytes == cache_bytes(sizes, 3)


def test_what_cannot_be_gathered_is_refused(device):
    table = ResidentTable(_values(torch.float32, ROWS, 4).to(device))
    ids = torch.tensor([1, 2], device=device)
    with refused("shape-mismatch"):
        table.gather(ids, torch.empty(3, 4, device=device))
    with refused("shape-mismatch"):
        table.gather(ids, torch.empty(4, 2, device=device).T)
    with refused("wrong-type int32 int64"):
        table.gather(ids.float())
    with refused("wrong-type"):
        ResidentTable(torch.zeros(4, 4, device=device).T)


def test_large_numbers_make_addresses_of_64_bits(cuda_device):
    # 2^31 bytes and more behind the first row, from int32 ids.
    table = torch.zeros(70_000, 64 * 1024, dtype=torch.uint8, device=cuda_device)
    table[69_999] = 5
    found = ResidentTable(table).gather(torch.tensor([69_999, 0], dtype=torch.int32, device=cuda_device))
    assert found[0].eq(5).all() and not found[1].any()


def test_plain_host_memory_is_refused_by_the_gpu(cuda_device):
    with refused("unsupported-combination to_pinned"):
        PinnedTable(torch.zeros(4, 4), cuda_device)


def test_a_captured_gather_reads_the_ids_of_its_replay(cuda_device):
    values = _values(torch.float16, 1000, 128)
    for table in _tables(values, cuda_device, cached=range(0, 1000, 2)):
        ids = torch.zeros(64, dtype=torch.int32, device=cuda_device)
        count = torch.zeros(1, dtype=torch.int32, device=cuda_device)
        out = torch.empty(64, 128, device=cuda_device)
        table.gather(ids, out, count)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            table.gather(ids, out, count)
        for start, used in ((100, 64), (900, 10), (0, 0)):
            new = torch.arange(start, start + 64, dtype=torch.int32)
            ids.copy_(new)
            count.fill_(used)
            before = table.hits_and_reads() if isinstance(table, CachedTable) else (0, 0)
            graph.replay()
            assert torch.equal(out.cpu(), _expected(values, new, used, torch.float32)), table.where
            if isinstance(table, CachedTable):
                hits, reads = table.hits_and_reads()
                assert (hits - before[0], reads - before[1]) == (used // 2, used)
