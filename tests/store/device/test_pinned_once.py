"""One pinned copy of a table for all processes of a machine."""

import mmap
import os

import numpy as np
import pytest
import torch

from penstock.store.device.copies import SharedMemory, pinned_already, pinned_once, to_pinned

HOST = torch.device("cpu")


@pytest.fixture
def files():
    """Memory by its name, as a store keeps it."""
    made: dict[str, int] = {}
    yield made
    for file in made.values():
        os.close(file)


def memory_of(files, rank=0, processes=1):
    """The shared memory of one of several processes."""

    def mapped(name, size):
        if name not in files:
            files[name] = os.memfd_create("test")
            os.ftruncate(files[name], size)
        return np.frombuffer(mmap.mmap(files[name], size), np.uint8)

    def held():
        return sum(512 * os.fstat(file).st_blocks for file in files.values())

    return SharedMemory(mapped, held, rank, processes)


@pytest.mark.parametrize("rows", [1, 63, 64, 1000])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_all_processes_read_one_copy(files, rows, dtype):
    array = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    tables = []
    for rank in range(3):
        with pinned_once(memory_of(files, rank, 3)):
            tables.append(to_pinned(array, HOST, dtype, chunk_bytes=64))
    expected = torch.from_numpy(array).to(dtype or torch.float32)
    assert len(files) == 1 and all(torch.equal(table, expected) for table in tables)
    tables[0][0] = 7
    assert (tables[2][0] == 7).all()


def test_slices_that_nobody_has_finished_are_copied(files):
    """A process that dies leaves slices unmarked: the next one copies them, and no others."""
    array = np.arange(640, dtype=np.int64)
    memory = memory_of(files)
    with pinned_once(memory):
        to_pinned(array, HOST)
    (name,) = files
    seen = memory.mapped(name, 640 * 8 + 64)
    numbers = seen[: 640 * 8].view(np.int64)
    numbers[:] = -1
    seen[640 * 8 + 3] = 0
    with pinned_once(memory_of(files, 1, 2)):
        table = to_pinned(array, HOST)
    assert table[30:40].tolist() == list(range(30, 40))
    assert (table[:30] == -1).all() and (table[40:] == -1).all()


def test_tables_of_one_shape_are_kept_apart(files):
    first, second = np.zeros(100, np.float32), np.ones(100, np.float32)
    for rank in range(2):
        with pinned_once(memory_of(files, rank, 2)):
            tables = [to_pinned(each, HOST) for each in (first, second)]
        assert tables[0].sum() == 0 and tables[1].sum() == 100
    assert len(files) == 2


def test_what_is_pinned_already_is_not_needed_again(files):
    assert pinned_already() == 0
    with pinned_once(memory_of(files)):
        assert pinned_already() == 0
        to_pinned(np.zeros(1 << 20, np.uint8), HOST)
        assert pinned_already() >= 1 << 20
    assert pinned_already() == 0
    assert not to_pinned(np.zeros(3), HOST).sum() and len(files) == 1
