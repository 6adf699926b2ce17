"""Tables whose rows lie in the memories of several GPUs of one host, each of which reads all of them.

Every process has one GPU, and holds a share of a table's bytes there. A share is memory with a descriptor, which the
other processes import. Each of them maps all shares one after the other at a range of addresses of its own, so that a
table is one tensor like any other: who reads a row, in a captured step or outside, knows nothing of shares, and the
GPU's address translation finds the memory that a row is in. A share may end in the middle of a row.

Shared memory lives as long as any process has it mapped. If a process is killed, the others go on reading its share,
and the one that takes its place maps it again.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.errors import Code, PenstockError
from penstock.graph.arrays import Array
from penstock.progress import SILENT, Progress
from penstock.store.device.copies import fill_part, placed_type
from penstock.traced import is_traced

_GRANULE = 2 << 20
"""Bytes of which a share is a multiple: GPUs map memory in pages of this size."""


TRIAL = "trial"
"""The name of the pages by which it is tried whether GPUs can read each other's memory."""


class Peers(NamedTuple):
    """How this process exchanges shares with the others: by the name of the table and the rank whose share it is."""

    find: Callable[[str, int], int | None]
    """The descriptor of a share. Waits for another rank's; the own one is None unless others hold it for this process,
    which was lost and started again.
    """
    keep: Callable[[str, int, int, int], None]
    """Takes the descriptor of a share that is here, and its bytes, for whoever asks for it."""


@dataclass(frozen=True)
class GpuGroup:
    """The GPUs that hold features together."""

    count: int
    rank: int = 0
    held: int = 0
    """Bytes of this GPU that others hold for this process already, which it does not need again."""
    all_fit: bool = True
    """Whether a GPU that has room for all features may hold them: all GPUs do alike."""
    peers: Peers | None = None
    """None where memory is only predicted."""
    _named: dict[str, int] = field(default_factory=dict)

    def name(self, what: str) -> str:
        """A name for a table: those of one kind are counted in the order in which they are made."""
        self._named[what] = self._named.get(what, 0) + 1
        return f"{what} {self._named[what]}"


@contextmanager
def shared_by_gpus(group: GpuGroup | None) -> Iterator[None]:
    """Within the context, in this thread, features may lie in the memories of several GPUs."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def current_gpu_group() -> GpuGroup | None:
    """The GPUs that may hold features together; None where each is on its own."""
    return _group.get()


def share_bytes(size: int, count: int) -> int:
    """Bytes of the largest of `count` shares of so many bytes."""
    return -(-size // (count * _GRANULE)) * _GRANULE


def shares_of(size: int, count: int) -> list[tuple[int, int]]:
    """The bytes [first, last) of each share; the last ones may have none."""
    share = share_bytes(size, count)
    return [(min(rank * share, size), min((rank + 1) * share, size)) for rank in range(count)]


def own_bytes(size: int) -> int:
    """Bytes of this process's share of a table of so many."""
    group = _group.get()
    assert group is not None
    first, last = shares_of(size, group.count)[group.rank]
    return share_bytes(size, group.count) if first < last else 0


def to_shares(
    array: Array,
    device: torch.device,
    dtype: torch.dtype | None = None,
    what: str = "features",
    progress: Progress = SILENT,
) -> Tensor:
    """A table whose share for this process is copied to its GPU, converted to `dtype` where given, and whose other
    shares are in the memories of other GPUs. It stays mapped until the process ends.
    """
    group, dtype = _group.get(), placed_type(array, dtype, what)
    assert group is not None
    if is_traced():
        # A prediction knows how much of it is on this GPU.
        return torch.empty(array.shape, dtype=dtype, device=device)
    assert group.peers is not None
    if not array.size:
        return torch.empty(array.shape, dtype=dtype, device=device)
    memory, size = memory_of(device), array.size * dtype.itemsize
    name = group.name(f"{what} {dtype} {list(array.shape)}")

    def fill(part: Tensor, first: int) -> None:
        fill_part(array, part.view(dtype), first // dtype.itemsize, what, progress)

    with progress.step(f"placing {what} in the memories of {group.count} GPUs", array.nbytes // group.count, "bytes"):
        mapped = map_shares(memory, group, name, size, fill)
    return mapped[:size].view(dtype).view(array.shape)


def map_shares(
    memory: "ShareMemory", group: GpuGroup, name: str, size: int, fill: Callable[[Tensor, int], None]
) -> Tensor:
    """All shares of `size` bytes as one tensor of bytes. `fill` writes this process's share, given with its first byte,
    before others can see it, unless an earlier process of this rank has done so.
    """
    assert group.peers is not None
    shares, length = shares_of(size, group.count), share_bytes(size, group.count)
    filled = [rank for rank, (first, last) in enumerate(shares) if first < last]
    address = memory.reserve(length * len(filled))
    mapped = memory.tensor(address, length * len(filled))
    # The own share first: others wait for it.
    for rank in sorted(filled, key=lambda rank: rank != group.rank):
        first, last = shares[rank]
        descriptor = group.peers.find(name, rank)
        is_new = descriptor is None
        if descriptor is None:
            descriptor = memory.create(length)
        with ExitStack() as failed:
            failed.callback(os.close, descriptor)
            memory.map(address + first, length, descriptor)
            if is_new:
                fill(mapped[first:last], first)
                memory.finish()
            failed.pop_all()
        group.peers.keep(name, rank, descriptor, length)
    return mapped


def reason_against_sharing(
    device: torch.device, group: GpuGroup, agree: Callable[[str, Callable[[], str]], Sequence[str]]
) -> str:
    """Why the GPUs cannot read each other's memory, tried with one page of each; empty where they can.

    `agree` gives what all processes have found about a matter, by rank; it calls the function where this one has not
    found it yet. The pages stay mapped.
    """
    # First alone: a process that cannot even share its memory would have the others wait for it.
    alone = GpuGroup(1, peers=Peers(lambda *_: None, lambda name, rank, descriptor, size: os.close(descriptor)))
    for matter, gpus in (("memory can be shared", alone), ("shared memory can be read", group)):
        found = agree(matter, partial(_reason_against, device, gpus))
        reason = next((f"GPU {rank}: {each}" for rank, each in enumerate(found) if each), "")
        if reason:
            return reason
    return ""


def _reason_against(device: torch.device, group: GpuGroup) -> str:
    def fill(part: Tensor, first: int) -> None:
        part.fill_(group.rank + 1)

    try:
        pages = map_shares(memory_of(device), group, TRIAL, group.count * _GRANULE, fill)
        found = pages[_GRANULE - 1 :: _GRANULE].tolist()
    except (PenstockError, OSError, RuntimeError) as error:
        return str(error).splitlines()[0].rstrip(".")
    expected = list(range(1, group.count + 1))
    return "" if found == expected else f"numbers {expected} of the GPUs were read as {found}"


# Memory of a GPU that has a descriptor, and ranges of addresses at which it is mapped.


class ShareMemory(Protocol):
    """What shares are made of."""

    def create(self, size: int) -> int:
        """The descriptor of so much new memory, which lives until it is closed and mapped nowhere."""

    def reserve(self, size: int) -> int:
        """The address of a range at which nothing is mapped yet."""

    def map(self, address: int, size: int, descriptor: int) -> None:
        """Map memory into a reserved range. The descriptor stays open."""

    def tensor(self, address: int, size: int) -> Tensor:
        """The bytes of a range; those at which nothing is mapped may not be touched."""

    def finish(self) -> None:
        """Wait until everything that was written is there."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """What kind of memory is allocated and where: CUDA's CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """Which device may read and write a mapping: CUDA's CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_PINNED, _DESCRIPTOR, _DEVICE, _READ_WRITE = 1, 1, 1, 3
"""Constants of the driver: memory that stays where it is, with a file descriptor, on a device, read and written."""
_OUT_OF_MEMORY = 2


class CudaMemory:
    """Memory of a GPU by the CUDA driver's functions for virtual memory.

    The runtime's handles (cudaIpcGetMemHandle) would not do: memory that they give is mapped where the driver likes, so
    that shares of a table would not lie side by side, and it is gone when the process that made it ends.
    """

    def __init__(self, device: torch.device) -> None:
        # torch makes the context in which addresses are valid.
        torch.cuda.current_stream(device)
        torch.zeros(1, device=device)
        self._device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise PenstockError(f"the CUDA driver cannot be called ({error})", code="not-available") from None
        self._where = _Location(_DEVICE, self._device.index)

    def create(self, size: int) -> int:
        wanted = _Properties(_PINNED, _DESCRIPTOR, self._where)
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int(-1)
        self._call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(wanted), ctypes.c_uint64(0))
        try:
            self._call(
                "cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, ctypes.c_int(_DESCRIPTOR),
                ctypes.c_uint64(0),
            )  # fmt: skip
        finally:
            self._call("cuMemRelease", handle)
        os.set_inheritable(descriptor.value, False)
        return descriptor.value

    def reserve(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call(
            "cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(_GRANULE),
            ctypes.c_uint64(0), ctypes.c_uint64(0),
        )  # fmt: skip
        return address.value

    def map(self, address: int, size: int, descriptor: int) -> None:
        handle = ctypes.c_uint64()
        self._call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor),
            ctypes.c_int(_DESCRIPTOR),
        )  # fmt: skip
        at, length = ctypes.c_uint64(address), ctypes.c_size_t(size)
        try:
            self._call("cuMemMap", at, length, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        finally:
            self._call("cuMemRelease", handle)
        access = _Access(self._where, _READ_WRITE)
        self._call("cuMemSetAccess", at, length, ctypes.byref(access), ctypes.c_size_t(1))

    def tensor(self, address: int, size: int) -> Tensor:
        return tensor_at(address, size, self._device)

    def finish(self) -> None:
        torch.cuda.synchronize(self._device)

    def _call(self, function: str, *arguments: Any) -> None:
        answer = int(getattr(self._driver, function)(*arguments))
        if answer:
            name = ctypes.c_char_p()
            self._driver.cuGetErrorName(answer, ctypes.byref(name))
            said = (name.value or b"error %d" % answer).decode()
            code: Code = "out-of-memory" if answer == _OUT_OF_MEMORY else "not-available"
            raise PenstockError(f"{function} of the CUDA driver answers {said}", code=code)


@cache
def memory_of(device: torch.device) -> ShareMemory:
    """The memory of a device that processes can share."""
    if device.type != "cuda":
        raise PenstockError(f"Memory of {device} is not shared by GPUs: use cuda.", code="unsupported-combination")
    return CudaMemory(device)


def tensor_at(address: int, size: int, device: torch.device) -> Tensor:
    """The bytes at an address as a tensor that owns nothing.

    torch is told the device: at one range of addresses there may be memory of several.
    """
    storage = torch._C._construct_storage_from_data_pointer(address, device, size)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


_group: ContextVar[GpuGroup | None] = ContextVar("_group", default=None)
