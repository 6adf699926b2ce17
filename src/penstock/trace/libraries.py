"""Memory that GPU libraries and operations take internally, which no trace of tensors sees."""

import functools
import math
from typing import Any

import torch
from pydantic import Field, ValidationError

from penstock.cache_folders import cache_folder
from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument
from penstock.graph.files import read_document, write_whole
from penstock.sampling.device.streams import current_streams

# Memory that libraries take for themselves, which no trace of tensors sees: measured once for each machine.
#
# Where nothing was measured the numbers here are assumed: workspaces of an H200, a usual context. The first run on a
# GPU measures them there and keeps them in the user's cache folder (`libraries.json`), where predictions without a GPU
# find them too.

LOADED_ON_HOST = 48 << 20
"""Bytes of code, compiled kernels and buffers of a first step on the host, measured on ARM with two threads."""
_LARGEST_CONTEXT = 800 << 20
"""CUDA contexts take 300 to 600 MiB. If more is in use, another process has a context too, and the assumed number is
kept: a wrong one would spoil every later prediction.
"""


class LibraryMemory(StrictDocument):
    """The memory that libraries keep on a GPU."""

    product_workspace: int = Field(32 << 20, ge=0, description="bytes that cuBLAS keeps for each stream and thread")
    bias_workspace: int = Field(0, ge=0, description="bytes of cuBLASLt, where torch does not lend it those of cuBLAS")
    context: int = Field(528 << 20, ge=0, description="bytes of the CUDA context with torch's kernels")
    multiprocessors: int = Field(132, ge=1, description="of the GPU, which share long sums")
    multiprocessor_threads: int = Field(2048, ge=1, description="threads that each of them holds")
    measured_on: str | None = Field(None, description="the GPU and the torch that were measured; none: assumed")


@functools.cache
def library_memory() -> LibraryMemory:
    """The memory measured on this machine, or the assumed numbers; no GPU is used."""
    try:
        return LibraryMemory.model_validate_json(read_document(cache_folder() / _FILE))
    except (OSError, ValueError, ValidationError):
        return LibraryMemory.model_validate({})


def measure_libraries(device: torch.device) -> None:
    """Measure what libraries keep on a GPU, unless it is known; the process must not have computed there before.

    Nothing is measured where several runs share the process: the workspaces that are freed may be another run's.
    """
    if current_streams() is not None:
        return
    about = torch.cuda.get_device_properties(device)
    name = f"{about.name}, torch {torch.__version__}, {about.multi_processor_count} multiprocessors"
    if library_memory().measured_on == name:
        return
    product, biased = _workspaces(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    context = total - free - torch.cuda.memory_reserved(device)
    found: dict[str, Any] = {"product_workspace": product, "bias_workspace": biased, "measured_on": name}
    found |= {
        "multiprocessors": about.multi_processor_count,
        "multiprocessor_threads": about.max_threads_per_multi_processor,
    }
    known = LibraryMemory.model_validate({**found, **({"context": context} if context < _LARGEST_CONTEXT else {})})
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_whole(cache_folder() / _FILE, known.model_dump_json(indent=2))
    except (OSError, PenstockError):
        # A later run measures again.
        return
    library_memory.cache_clear()


def _workspaces(device: torch.device) -> tuple[int, int]:
    """Bytes that a product keeps on a stream, and that one with a bias adds; both are freed afterwards."""
    libraries: Any = torch._C
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        x, bias = torch.zeros(64, 64, device=device), torch.zeros(64, device=device)
        product = _kept(device, lambda: torch.mm(x, x))
        biased = _kept(device, lambda: torch.addmm(bias, x, x))
    libraries._cuda_clearCublasWorkspaces()
    return product, biased


def _kept(device: torch.device, work: Any) -> int:
    """Bytes that stay allocated after some work whose result is dropped."""
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return int(torch.cuda.memory_allocated(device) - before)


_FILE = "libraries.json"


# Memory that operations of a GPU take for themselves, beside what they return: no trace of tensors sees it.
#
# Matrix libraries keep a workspace for each stream that they work on. Sorts take room for a second copy of their keys
# and places; torch does so for every stable sort, and where gradients of picked rows are added up. Sums of columns take
# a buffer for the thread blocks that share a column.

_aten: Any = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.mv, _aten.dot}
_PLACE_BYTES = 8
"""Bytes of a position in a sort."""
_SUM_THREADS, _LEAST_EACH, _MOST_EACH = 512, 16, 256
"""Threads of a block that sums, for one column each; and numbers that each thread adds where blocks share a column."""
_PICKED_ARRAYS = 6
"""Arrays, each as long as the picked positions, that torch sorts before it adds up rows: the positions, their order,
both sorted, and the sort's second copy.
"""


def library_workspaces(operation: Any) -> tuple[tuple[str, int], ...]:
    """The libraries that an operation calls, and the bytes that each keeps for the stream."""
    packet = operation.overloadpacket
    if packet not in _PRODUCTS:
        return ()
    memory = library_memory()
    # A product with a bias uses cuBLASLt, which has a workspace of its own in some releases of torch.
    products = (("cublas", memory.product_workspace),)
    return (*products, ("cublaslt", memory.bias_workspace)) if packet is _aten.addmm else products


def column_sums_bytes(rows: int, columns: int, item: int) -> int:
    """Bytes of the buffer that torch takes to sum the rows of a matrix, by its rule for reduction kernels.

    A thread handles up to four neighbouring columns. Where every thread would add 256 numbers or more, several thread
    blocks share the rows: as many as fill the GPU, but with 16 numbers for each thread at least. The buffer has a row
    of all columns for each column that a block handles, and that for each block.
    """
    vector = next(count for count in (4, 2, 1) if columns % count == 0)
    threads, groups = _SUM_THREADS // vector, columns // vector
    width = min(_power_below(groups), 32)
    height = min(_power_below(rows), threads // width)
    width = min(_power_below(groups), threads // height)
    each, grid = -(-rows // height), -(-groups // width)
    memory = library_memory()
    target = memory.multiprocessors * (memory.multiprocessor_threads // (width * height))
    if each < _MOST_EACH or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-each // _LEAST_EACH)), -(-each // _MOST_EACH))
    return 0 if blocks == 1 else item * columns * blocks * width * vector


def _summed(values: torch.Tensor, dims: Any) -> int:
    """The buffer of a sum over the first dimensions of a contiguous tensor."""
    summed = sorted(dim % max(1, values.dim()) for dim in dims or ())
    leading = summed == list(range(len(summed))) and 0 < len(summed) < values.dim()
    if not leading or not values.numel() or not values.is_contiguous():
        return 0
    rows = math.prod(values.shape[: len(summed)])
    return column_sums_bytes(rows, values.numel() // max(1, rows), max(4, values.element_size()))


def _power_below(size: int) -> int:
    """The largest power of two up to `size`."""
    return 1 << (max(1, size).bit_length() - 1)


def memory_inside(operation: Any, args: Any, kwargs: Any) -> list[int]:
    """Bytes of each array that an operation allocates and frees before it ends."""
    packet = operation.overloadpacket
    if operation is _aten.sum.dim_IntList:
        return [_summed(*args[:2])]
    if packet is _aten.sort:
        keys = args[0]
        return [_PLACE_BYTES * keys.numel(), (keys.element_size() + _PLACE_BYTES) * keys.numel()]
    if packet in (_aten.index_put_, _aten.index_put, _aten._index_put_impl_):
        given = dict(zip(("self", "indices", "values", "accumulate"), args, strict=False)) | kwargs
        picked = [each for each in given["indices"] if each is not None]
        if given.get("accumulate", False) and picked and picked[0].dtype is not torch.bool:
            return [_PICKED_ARRAYS * _PLACE_BYTES * max(each.numel() for each in picked)]
    if packet is _aten.index:
        # The positions that a mask keeps are found first.
        masks = [each for each in args[1] if each is not None and each.dtype is torch.bool]
        return [_PLACE_BYTES * each.numel() * each.dim() for each in masks]
    if packet is _aten.embedding_dense_backward:
        return [_PICKED_ARRAYS * _PLACE_BYTES * args[1].numel()]
    return []
