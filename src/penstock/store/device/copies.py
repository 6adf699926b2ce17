"""From an array on the host, possibly mapped and larger than memory, to a tensor that a device can read."""

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, release_pages
from penstock.processes import ranges
from penstock.progress import SILENT, Progress
from penstock.traced import is_traced

# Page-locked host memory of exactly the size asked for. torch's own pinned allocations are rounded up to a power of
# two: 28 GB would take 32. So memory is mapped here and registered with CUDA, and unregistered when the last tensor on
# it is freed.


def page_locked(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    fill: Callable[[Tensor], object] | None = None,
) -> Tensor:
    """A host tensor that a CUDA device can read in place; zeros, or what `fill` writes. Plain memory for other devices.

    It is locked after it is filled: threads that fill it touch its pages much faster than locking would.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    memory = _mapped(size)
    tensor = torch.from_numpy(memory).view(dtype).view(shape)
    if fill is not None:
        fill(tensor)
    _lock(memory, device)
    return tensor


def zeros_for_copies(shape: int | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros on the host for copies from and to a device that nobody waits for: for a GPU, in page-locked memory."""
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")


def _mapped(size: int) -> Array:
    """Bytes of a private mapping, on large pages where the system has them: they are locked much faster."""
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise PenstockError(
            f"There is no room for {size / 1e9:.1f} GB in host memory ({error}): set features to host, or free memory.",
            code="out-of-memory",
        ) from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


def _lock(memory: Array, device: torch.device) -> None:
    """Lock the pages of memory that a GPU reads; other devices need none."""
    if device.type != "cuda":
        return
    address = memory.ctypes.data
    answer = torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0)  # type: ignore[no-untyped-call]
    if int(answer) != 0:
        raise PenstockError(
            f"{memory.nbytes / 1e9:.1f} GB of host memory could not be page-locked for the GPU ({answer}): place what"
            " is pinned on host or device, or free memory.",
            code="out-of-memory",
        )
    # A finalizer on the array runs before its memory is freed. None runs at exit, when the driver may be gone already.
    weakref.finalize(memory, _unlock, address).atexit = False


def _unlock(address: int) -> None:
    # A launched gather may still be reading.
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


_CHUNK_BYTES = 64 << 20
"""The size of a staging buffer: over a millisecond of bus time, long compared with a launch, and small compared with
any table.
"""
_RELEASE_BYTES = 1 << 30


def to_device(
    array: Array,
    device: torch.device,
    dtype: torch.dtype | None = None,
    what: str = "features",
    progress: Progress = SILENT,
    chunk_bytes: int = _CHUNK_BYTES,
) -> Tensor:
    """A copy in the device's memory, converted to `dtype` where given. While a chunk is copied the next one is read."""
    source = _Source(array, dtype, what)
    try:
        placed = torch.empty(array.shape, dtype=source.dtype, device=device)
    except torch.OutOfMemoryError:
        size = array.size * source.dtype.itemsize / 1e9
        raise PenstockError(
            f"There is no room for {what} ({size:.1f} GB) on {device}: set them to pinned, or free device memory.",
            code="out-of-memory",
        ) from None
    if is_traced():
        return placed
    with progress.step(f"placing {what} on the device", array.nbytes, "bytes"):
        if device.type == "cuda":
            _through_staging(source, placed.view(-1), 0, chunk_bytes, progress)
        else:
            _straight(source, placed, chunk_bytes, progress)
    return placed


def placed_type(array: Array, dtype: torch.dtype | None, what: str = "features") -> torch.dtype:
    """The type of a placed array: `dtype` where given, which must be able to hold its numbers."""
    return _Source(array, dtype, what).dtype


def fill_part(
    array: Array,
    part: Tensor,
    first: int,
    what: str = "features",
    progress: Progress = SILENT,
    chunk_bytes: int = _CHUNK_BYTES,
) -> None:
    """Copy the array's numbers from the one numbered `first` on, counted row by row, into `part`, as many as it has."""
    _through_staging(_Source(array, part.dtype, what), part, first, chunk_bytes, progress)


def to_pinned(
    array: Array,
    device: torch.device,
    dtype: torch.dtype | None = None,
    what: str = "features",
    progress: Progress = SILENT,
    chunk_bytes: int = _CHUNK_BYTES,
) -> Tensor:
    """A copy in host memory that `device` reads in place, converted to `dtype` where given."""
    source = _Source(array, dtype, what)
    if is_traced():
        # Untouched pages take no memory.
        return page_locked(array.shape, source.dtype, device)

    def fill(tensor: Tensor) -> None:
        _straight(source, tensor, chunk_bytes, progress)

    shared = _shared.get()
    with progress.step(f"placing {what} in pinned memory", array.nbytes, "bytes"):
        if shared is not None and array.size:
            return _pinned_once(source, shared, device, chunk_bytes, progress)
        return page_locked(array.shape, source.dtype, device, fill)


# Pinned tables that several processes of one machine read: one copy in memory that all of them map and page-lock. It is
# filled slice by slice, each process beginning at another one. A slice that is done is marked behind the table. Whoever
# finds one unmarked copies it, so that a process that dies leaves nothing undone. Two that copy one slice write equal
# bytes.

_SLICES = 64


@dataclass(frozen=True)
class SharedMemory:
    """Memory of the host that several processes map."""

    mapped: Callable[[str, int], Array]
    """Bytes by their name and number, the same in all processes; zeros at first."""
    held: Callable[[], int]
    """Bytes that are in use already, which a further process does not need again."""
    rank: int
    processes: int
    _named: dict[str, int] = field(default_factory=dict)

    def name(self, what: str) -> str:
        """A name of something in shared memory: those of one kind are counted in the order in which they are made."""
        self._named[what] = self._named.get(what, 0) + 1
        return f"{what} {self._named[what]}"


@contextmanager
def pinned_once(shared: SharedMemory | None) -> Iterator[None]:
    """Within the context, in this thread, `to_pinned` places tables in shared memory, if there is any."""
    token = _shared.set(shared)
    try:
        yield
    finally:
        _shared.reset(token)


def pinned_already() -> int:
    """Bytes of pinned tables that other processes have filled for this one as well."""
    shared = _shared.get()
    return 0 if shared is None else shared.held()


def _pinned_once(
    source: "_Source", shared: SharedMemory, device: torch.device, chunk_bytes: int, progress: Progress
) -> Tensor:
    shape, dtype = source.array.shape, source.dtype
    size = math.prod(shape) * dtype.itemsize
    memory = shared.mapped(shared.name(f"{source.what} {dtype} {list(shape)}"), size + _SLICES)
    tensor, done = torch.from_numpy(memory[:size]).view(dtype).view(shape), memory[size:]
    slices = list(ranges(len(tensor), -(-len(tensor) // _SLICES)))
    first = shared.rank * len(slices) // shared.processes
    for number in [*range(first, len(slices)), *range(first)]:
        start, stop = slices[number]
        if not done[number]:
            _straight(source, tensor, chunk_bytes, progress, start, stop)
            done[number] = 1
    _lock(memory, device)
    return tensor


class _Source:
    """Reads rows of the array into a tensor of another type, with torch's threads."""

    def __init__(self, array: Array, dtype: torch.dtype | None, what: str) -> None:
        self.array, self.what = array, what
        stored = self._tensor(0, 0).dtype
        self.dtype = dtype or stored
        self.converted = self.dtype != stored
        if self.converted and not self.dtype.is_floating_point:
            raise PenstockError(
                f"{what} are {stored} and cannot be stored as {dtype}: choose a type of real numbers.",
                code="wrong-type",
            )
        # Pages of a file are dropped once read; private pages of a mapping that was written to would be lost.
        self.mapped = isinstance(array.base, np.memmap) and array.base.mode == "r"
        self.unreleased = 0

    def chunk_rows(self, chunk_bytes: int) -> int:
        """Rows whose larger form, as stored or as placed, is at most a chunk; at least one."""
        values = max(1, self.array.size // max(1, len(self.array)))
        return max(1, chunk_bytes // (values * max(self.array.itemsize, self.dtype.itemsize)))

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return int(self.array.nbytes // max(1, len(self.array)))

    def read(self, start: int, stop: int, into: Tensor) -> None:
        """Read rows start..stop; a value that is finite as stored and infinite as placed is an error."""
        rows = self._tensor(start, stop)
        into.copy_(rows)
        if self.converted:
            self._check_range(start, rows, into)
        self.unreleased += rows.nbytes
        if self.mapped and self.unreleased > _RELEASE_BYTES:
            release_pages(self.array)
            self.unreleased = 0

    def _check_range(self, start: int, rows: Tensor, placed: Tensor) -> None:
        if not rows.numel():
            return
        if rows.is_floating_point():
            # One fast pass clears nearly every chunk; NaN compares false and is examined with the rest.
            low, high = (float(bound) for bound in rows.aminmax())
            limit = torch.finfo(self.dtype).max
            if -limit <= low and high <= limit:
                return
        lost = (placed.isinf() & rows.isfinite()).nonzero()
        if len(lost):
            place = tuple(lost[0].tolist())
            raise PenstockError(
                f"Row {start + place[0]} of {self.what} holds {rows[place].item():g}, which {self.dtype} cannot hold: "
                "scale the values, or choose a type of wider range.",
                code="value-out-of-range",
            )

    def _tensor(self, start: int, stop: int) -> Tensor:
        rows = np.ascontiguousarray(self.array[start:stop])
        rows = rows.astype(rows.dtype.newbyteorder("="), copy=False)
        try:
            return torch.from_numpy(np.asarray(_Writable(rows)))
        except TypeError:
            raise PenstockError(
                f"{self.what} are {rows.dtype}, which torch does not support: convert them.", code="wrong-type"
            ) from None


class _Writable:
    """Marks an array as writable, as torch requires. It is not written to."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__: dict[str, Any] = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _straight(
    source: _Source, placed: Tensor, chunk_bytes: int, progress: Progress, first: int = 0, last: int | None = None
) -> None:
    for start, stop in ranges((len(placed) if last is None else last) - first, source.chunk_rows(chunk_bytes)):
        rows = first + start, first + stop
        source.read(*rows, placed[slice(*rows)])
        progress.advance((stop - start) * source.row_bytes)


def _through_staging(source: _Source, placed: Tensor, first: int, chunk_bytes: int, progress: Progress) -> None:
    """Copy numbers of the array from `first` on into `placed`, which is flat: by whole rows, the ends cut off."""
    width = max(1, source.array.size // max(1, len(source.array)))
    last, row = first + len(placed), first // width
    rows = min(source.chunk_rows(chunk_bytes), max(1, len(source.array)))
    on_gpu, shape = placed.device.type == "cuda", (rows, *source.array.shape[1:])
    buffers = [torch.empty(shape, dtype=placed.dtype, pin_memory=on_gpu) for _ in range(1 + on_gpu)]
    copied = [torch.cuda.Event() for _ in buffers] if on_gpu else []  # type: ignore[no-untyped-call]
    for number, (start, stop) in enumerate(ranges(-(-last // width) - row, rows)):
        buffer, begin = buffers[number % len(buffers)][: stop - start], (row + start) * width
        if copied:
            # An event that was never recorded counts as reached.
            copied[number % 2].synchronize()
        source.read(row + start, row + stop, buffer)
        low, high = max(first, begin), min(last, (row + stop) * width)
        placed[low - first : high - first].copy_(buffer.view(-1)[low - begin : high - begin], non_blocking=True)
        if copied:
            copied[number % 2].record(torch.cuda.current_stream(placed.device))
        progress.advance((stop - start) * source.row_bytes)
    for done in copied:
        done.synchronize()


# Copies on a device that several runs of one process share: those of the same array are made once.


class SharedCopies:
    """The copies that runs of this process have on devices; one is freed when the last run that uses it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, torch.dtype | None, str], tuple[weakref.ref[Tensor], Array]] = {}
        """By the array's identity, which is unique because the array is kept here."""
        self._streams: dict[str, Any] = {}
        """Copies belong to no run: they are allocated on streams of their own."""

    def copy(
        self, array: Array, device: torch.device, dtype: torch.dtype | None, what: str, progress: Progress
    ) -> Tensor:
        """The copy of an array; callers that ask while it is made wait for it."""
        key = id(array), dtype, str(device)
        with self._lock:
            for gone in [each for each, (made, _) in self._known.items() if made() is None]:
                del self._known[gone]
            known = self._known.get(key)
            made = None if known is None else known[0]()
            if made is None:
                with self._beside(device):
                    made = to_device(array, device, dtype, what, progress)
                self._known[key] = weakref.ref(made), array
            return made

    def _beside(self, device: torch.device) -> Any:
        if device.type != "cuda":
            return nullcontext()
        if str(device) not in self._streams:
            self._streams[str(device)] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._streams[str(device)])


@contextmanager
def copies_shared(copies: SharedCopies) -> Iterator[None]:
    """Within the context, in this thread, a run shares its copies with other runs that use the same `copies`."""
    token = _copies.set(copies)
    try:
        yield
    finally:
        _copies.reset(token)


def one_copy(
    array: Array,
    device: torch.device,
    dtype: torch.dtype | None = None,
    what: str = "features",
    progress: Progress = SILENT,
) -> Tensor:
    """A copy in the device's memory, as `to_device` makes it: one for all runs of this process that share theirs."""
    shared = _copies.get()
    if shared is None or is_traced():
        return to_device(array, device, dtype, what, progress)
    return shared.copy(array, device, dtype, what, progress)


_shared: ContextVar[SharedMemory | None] = ContextVar("_shared", default=None)
_copies: ContextVar[SharedCopies | None] = ContextVar("_copies", default=None)
