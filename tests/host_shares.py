"""Shares of tables in the host's memory, where there is no GPU: mapped side by side by the system instead of CUDA."""

import ctypes
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from penstock.store.device.shards import GpuGroup, Peers, tensor_at

PAGE = mmap.PAGESIZE
_NO_ACCESS, _FIXED, _NO_RESERVE = 0, 0x10, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)


class HostMemory:
    """What `CudaMemory` is of a GPU."""

    def create(self, size):
        """Memory with a descriptor."""
        number = os.memfd_create("share", os.MFD_CLOEXEC)
        os.ftruncate(number, size)
        return number

    def reserve(self, size):
        """A range of addresses that may not be touched yet."""
        return self._mapped(None, size, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1)

    def map(self, address, size, descriptor):
        """Memory at an address of a range."""
        access = mmap.PROT_READ | mmap.PROT_WRITE
        assert self._mapped(address, size, access, mmap.MAP_SHARED | _FIXED, descriptor) == address

    def tensor(self, address, size):
        """Its bytes."""
        return tensor_at(address, size, torch.device("cpu"))

    def finish(self):
        """The host writes at once."""

    def _mapped(self, *arguments):
        address = _libc.mmap(*arguments, 0)
        assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
        return address


class Host:
    """What processes of one host have offered each other."""

    def __init__(self, count):
        self.count, self.offered, self._changed = count, {}, threading.Condition()

    def group(self, rank, again=False):
        """As a process sees it; `again`: it was lost and started again."""

        def find(name, owner):
            with self._changed:
                if owner == rank and not again:
                    return None
                if owner != rank:
                    assert self._changed.wait_for(lambda: (name, owner) in self.offered, 20)
                return self.offered.get((name, owner))

        def keep(name, owner, descriptor, size):
            assert os.fstat(descriptor).st_size == size
            with self._changed:
                self.offered.setdefault((name, owner), descriptor)
                self._changed.notify_all()

        return GpuGroup(self.count, rank, peers=Peers(find, keep))

    def at_once(self, action):
        """What an action gives for each process's group."""
        with ThreadPoolExecutor(self.count) as threads:
            return list(threads.map(lambda rank: action(self.group(rank)), range(self.count)))


def shared_on_host(monkeypatch):
    """Shares are the host's while a test runs, and multiples of its small pages."""
    monkeypatch.setattr("penstock.store.device.shards._GRANULE", PAGE)
    monkeypatch.setattr("penstock.store.device.shards.memory_of", lambda device: HostMemory())
