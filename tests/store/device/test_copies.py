"""Arrays of the host's on their way to where a device reads them."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.progress import Progress
from penstock.store.device import copies
from penstock.store.device.copies import page_locked, to_device, to_pinned
from refusals import refused

pytestmark = pytest.mark.gpu

PLACERS = [to_device, to_pinned]


class Counting(Progress):
    def __init__(self):
        super().__init__()
        self.steps, self.done = [], 0

    def start(self, what, total, unit):
        self.steps.append((what, total, unit))

    def advance(self, amount):
        self.done += amount


@pytest.fixture
def mapped(tmp_path):
    """A function that stores an array and maps it read-only, as a graph folder's are."""

    def store(array):
        np.save(tmp_path / "array.npy", array)
        return np.load(tmp_path / "array.npy", mmap_mode="r").view(np.ndarray)

    return store


@pytest.mark.parametrize("place", PLACERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32, np.int64, np.uint8, np.bool_, ">f4"])
def test_a_read_only_mapping_arrives_whole_in_chunks(device, mapped, place, dtype):
    array = (np.arange(1003 * 7).reshape(1003, 7) % 251).astype(dtype)
    progress = Counting()
    placed = place(mapped(array), device, what="colours", progress=progress, chunk_bytes=999)
    np.testing.assert_array_equal(placed.cpu().numpy(), array)
    assert placed.dtype == torch.from_numpy(array.astype(np.dtype(dtype).newbyteorder("="))).dtype
    assert placed.device.type == (device.type if place is to_device else "cpu")
    assert progress.done == progress.steps[0][1] == array.nbytes
    assert "colours" in progress.steps[0][0]


@pytest.mark.parametrize("place", PLACERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_are_converted(device, mapped, place, dtype):
    array = np.random.default_rng(3).normal(size=(301, 12)).astype(np.float32)
    array[7, 3], array[8, 2], array[9, 1] = np.inf, np.nan, 65504
    placed = place(mapped(array), device, dtype, chunk_bytes=4096)
    expected = torch.from_numpy(array).to(dtype)
    assert placed.dtype == dtype
    assert torch.equal(placed.cpu().nan_to_num(nan=-1, posinf=-2), expected.nan_to_num(nan=-1, posinf=-2))


@pytest.mark.parametrize("place", PLACERS)
@pytest.mark.parametrize("value", [65520.0, -1e6])
def test_a_value_that_becomes_infinite_is_refused(device, place, value):
    array = np.zeros((100, 3), np.float32)
    array[2, 0] = np.nan
    array[71, 2] = value
    with refused(f"value-out-of-range 71 features {value:g} torch.float16"):
        place(array, device, torch.float16, chunk_bytes=256)
    with refused("value-out-of-range 71"):
        place(array[:, 2].astype(np.int64).reshape(100, 1), device, torch.float16)
    assert place(array, device, torch.bfloat16)[71, 2].item() == torch.tensor(value).bfloat16().item()


@pytest.mark.parametrize("place", PLACERS)
def test_arrays_of_any_layout_and_none_at_all(device, place):
    array = np.arange(60, dtype=np.float32).reshape(6, 10)
    for view in (array[::-1], array.T, array[:, ::2], array.reshape(6, 5, 2), array[:, 0], array[:0], array[:, :0]):
        np.testing.assert_array_equal(place(view, device, chunk_bytes=16).cpu().numpy(), view)


@pytest.mark.parametrize("place", PLACERS)
def test_what_torch_cannot_hold_is_refused(device, place):
    with refused("wrong-type <U1"):
        place(np.array(["a"]), device, what="names")
    with refused("wrong-type torch.int8"):
        place(np.zeros(3, np.float32), device, torch.int8)


def test_the_source_is_left_as_it_was(device):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    placed = to_device(array, device)
    placed.zero_()
    to_pinned(array, device).zero_()
    assert array.sum() == 66


def test_page_locked_memory_starts_as_zeros(device):
    room = page_locked((5, 3), torch.bfloat16, device)
    assert room.shape == (5, 3) and not room.any()
    room.fill_(2)
    assert room.float().sum() == 30


def _driver(monkeypatch, answer):
    """In the place of CUDA's: what is locked, by address, and an answer to locking."""
    gc.collect()  # What earlier tests locked is CUDA's to unlock.
    locked = {}

    def register(address, size, flags):
        locked[address] = size
        return answer

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=locked.pop)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: calls)
    return locked


def test_locked_memory_is_of_the_size_asked_for_and_released_with_its_last_view(monkeypatch):
    locked = _driver(monkeypatch, 0)
    room = to_pinned(np.ones((1003, 7), np.float32), torch.device("cuda"), torch.bfloat16)
    assert locked == {room.data_ptr(): 1003 * 7 * 2}
    view = room[1:, :3]
    del room
    gc.collect()
    assert locked and view.float().sum() == 1002 * 3
    del view
    gc.collect()
    assert not locked


def test_memory_that_cannot_be_locked_is_one_sentence(monkeypatch):
    _driver(monkeypatch, 2)
    with refused("out-of-memory 0.0 2"):
        page_locked((5, 3), torch.float32, torch.device("cuda"))


def test_page_locked_memory_is_pinned_and_unlocked_when_it_dies(cuda_device, monkeypatch):
    unlock, unlocked = copies._unlock, []
    monkeypatch.setattr(copies, "_unlock", lambda address: (unlock(address), unlocked.append(address)))
    room = page_locked((3000, 1000), torch.float32, cuda_device)
    address, view = room.data_ptr(), room[5]
    assert room.is_pinned() and view.is_pinned()
    del room
    gc.collect()
    assert view.is_pinned() and not unlocked
    del view
    gc.collect()
    assert unlocked == [address]


def test_copies_through_staging_overlap_without_mixing_chunks(cuda_device):
    array = np.arange(40_000_000, dtype=np.int64)
    placed = to_device(array, cuda_device, chunk_bytes=1 << 20)
    assert torch.equal(placed, torch.arange(40_000_000, device=cuda_device))
