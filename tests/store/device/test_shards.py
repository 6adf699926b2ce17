"""Tables whose shares lie side by side, each made by another process: here threads, and the host's memory."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from host_shares import Host, HostMemory, shared_on_host
from penstock.errors import PenstockError
from penstock.nn.device.gather import DeviceLists, gather
from penstock.store.device import shards
from penstock.store.device.copies import fill_part
from penstock.store.device.shards import (
    GpuGroup,
    own_bytes,
    reason_against_sharing,
    share_bytes,
    shared_by_gpus,
    shares_of,
    to_shares,
)
from penstock.store.device.tables import ResidentTable
from refusals import refused

HOST = torch.device("cpu")


@pytest.fixture
def small_pages(monkeypatch):
    shared_on_host(monkeypatch)


def shared_table(array, group, dtype=None):
    """A table as one process maps it."""
    with shared_by_gpus(group):
        return to_shares(array, HOST, dtype)


@given(st.integers(0, 1 << 40), st.integers(1, 64))
def test_shares_are_the_whole(size, count):
    shares, largest = shares_of(size, count), share_bytes(size, count)
    assert largest % (2 << 20) == 0 and size <= count * largest < size + count * (2 << 20)
    assert [first for first, _ in shares] == [min(rank * largest, size) for rank in range(count)]
    assert [last for _, last in shares] == [*(first for first, _ in shares[1:]), size]
    for rank in range(count):
        with shared_by_gpus(GpuGroup(count, rank)):
            first, last = shares[rank]
            assert own_bytes(size) == (largest if last > first else 0)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [3, 1000])
def test_every_process_reads_all_rows(small_pages, count, dtype, rows):
    """Rows of 13 numbers lie across the ends of shares, and few rows in fewer shares than there are processes."""
    array = np.random.default_rng(0).normal(size=(rows, 13)).astype(np.float32)
    host = Host(count)
    tables = host.at_once(lambda group: shared_table(array, group, dtype))
    expected = torch.from_numpy(array).to(dtype or torch.float32)
    assert all(torch.equal(table, expected) and table.is_contiguous() for table in tables)
    assert len(host.offered) == min(count, -(-expected.nbytes // share_bytes(expected.nbytes, count)))
    # There is one copy of each row.
    tables[0][rows // 2] = 7
    assert all((table[rows // 2] == 7).all() for table in tables)


def test_tables_of_one_shape_are_not_mixed_up(small_pages):
    arrays = [np.full((600, 9), number, np.float32) for number in (1, 2)]

    def both(group):
        return [shared_table(array, group) for array in arrays]

    for tables in Host(2).at_once(both):
        assert [float(table.min()) for table in tables] == [float(table.max()) for table in tables] == [1, 2]


def test_a_process_that_is_started_again_finds_its_share(small_pages):
    array = np.arange(6000, dtype=np.float32).reshape(-1, 5)
    host = Host(3)
    tables = host.at_once(lambda group: shared_table(array, group))
    # What it would write now is told from what it wrote before it was lost.
    again = shared_table(-array, host.group(1, again=True))
    assert all(torch.equal(table, torch.from_numpy(array)) for table in (*tables, again))


def test_a_share_that_nobody_had_seen_is_made_again(small_pages):
    array = np.arange(6000, dtype=np.float32).reshape(-1, 5)
    host = Host(2)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(shared_table, array, host.group(rank, again=rank == 1)) for rank in range(2)]
        assert all(torch.equal(each.result(30), torch.from_numpy(array)) for each in found)


@pytest.mark.parametrize("first, last", [(0, 91), (0, 1), (5, 64), (12, 13), (13, 26), (90, 91)])
@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_a_part_of_an_array(first, last, chunk_bytes):
    array = np.arange(91, dtype=np.float64).reshape(7, 13)
    part = torch.full((last - first,), -1, dtype=torch.float32)
    fill_part(array, part, first, chunk_bytes=chunk_bytes)
    assert part.tolist() == list(range(first, last))


def test_kernels_read_shares_as_one_table(small_pages, device):
    """A gather, and a layer that reads the neighbours in their table, to the bit."""
    if device.type == "cuda":
        pytest.skip("the shares of this test are the host's")
    array = np.random.default_rng(1).normal(size=(700, 12)).astype(np.float32)
    whole = torch.from_numpy(array)
    ids = torch.tensor([0, 699, 85, 86, 171, -1, 342], dtype=torch.int32)
    lists = DeviceLists(torch.tensor([0, 2, 2, 6], dtype=torch.int32), ids[[0, 1, 2, 3, 4, 6]])
    for table in Host(4).at_once(lambda group: shared_table(array, group)):
        assert torch.equal(ResidentTable(table).gather(ids), ResidentTable(whole).gather(ids))
        assert torch.equal(gather(lists, table), gather(lists, whole))


# The trial.


def findings(count, action):
    """What processes say that find something out with each other, as `reason_against_sharing` asks them to."""
    barrier, found = threading.Barrier(count), {}

    def agreeing(rank):
        def agree(matter, find):
            found[matter, rank] = find()
            barrier.wait(20)
            return [found[matter, each] for each in range(count)]

        return agree

    host = Host(count)
    return host.at_once(lambda group: action(group, agreeing(group.rank)))


def test_pages_of_all_can_be_read(small_pages):
    reasons = findings(3, lambda group, agree: reason_against_sharing(HOST, group, agree))
    assert reasons == ["", "", ""]


def test_memory_that_one_cannot_share(small_pages, monkeypatch):
    """All know why, and nobody waits for a page that will never come."""
    ranks = iter(range(3))
    lock = threading.Lock()

    def create(self, size):
        with lock:
            if next(ranks) == 1:
                raise PenstockError("cuMemCreate answers CUDA_ERROR_NOT_SUPPORTED", code="not-available")
        return make(self, size)

    make = HostMemory.create
    monkeypatch.setattr(HostMemory, "create", create)
    (reason,) = set(findings(3, lambda group, agree: reason_against_sharing(HOST, group, agree)))
    assert reason.startswith("GPU ") and reason.endswith("CUDA_ERROR_NOT_SUPPORTED")


def test_pages_that_cannot_be_mapped_are_given_back(small_pages, monkeypatch):
    """Training goes on without them, and a descriptor would hold the memory."""
    seen = []

    def refuse(self, address, size, descriptor):
        seen.append(descriptor)
        raise PenstockError("cuMemMap answers CUDA_ERROR_INVALID_VALUE", code="not-available")

    monkeypatch.setattr(HostMemory, "map", refuse)
    (reason,) = findings(1, lambda group, agree: reason_against_sharing(HOST, group, agree))
    assert reason == "GPU 0: cuMemMap answers CUDA_ERROR_INVALID_VALUE" and len(seen) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(seen[0])


def test_pages_that_are_read_wrongly(small_pages, monkeypatch):
    """As where another GPU's memory is mapped and cannot be reached."""
    mapped, own = HostMemory.map, set()

    def map_empty(self, address, size, descriptor):
        # Memory is mapped first by the process that made it.
        memory = os.fstat(descriptor).st_ino
        seen = memory in own
        own.add(memory)
        mapped(self, address, size, self.create(size) if seen else descriptor)

    monkeypatch.setattr(HostMemory, "map", map_empty)
    (reason,) = set(findings(2, lambda group, agree: reason_against_sharing(HOST, group, agree)))
    assert reason == "GPU 0: numbers [1, 2] of the GPUs were read as [1, 0]"


def test_memory_of_the_host_is_not_a_gpus():
    with refused("unsupported-combination cpu"):
        shards.memory_of(HOST)
