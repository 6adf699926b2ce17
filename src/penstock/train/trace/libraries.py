"""Memory that libraries take for themselves, which no trace of tensors sees: measured once for each machine.

Where nothing was measured the numbers here are assumed: workspaces of an H200, a usual context. The first run on a GPU
measures them there and keeps them in the user's cache folder (`libraries.json`), where predictions without a GPU find
them too.
"""

import functools
from typing import Any

import torch
from pydantic import Field, ValidationError

from penstock.errors import PenstockError
from penstock.graph.atomic import write_whole
from penstock.graph.cache_folder import cache_folder
from penstock.graph.documents import StrictDocument
from penstock.graph.input_files import read_document
from penstock.sampling.device.streams import current_streams

LOADED_ON_HOST = 48 << 20
"""Bytes of code, compiled kernels and buffers of a first step on the host, measured on ARM with two threads."""
_LARGEST_CONTEXT = 800 << 20
"""Contexts of GPUs take 300 to 600 MiB; where more is in use, another process has a context too, and the stated number
is kept: a wrong one would be remembered for every later prediction."""


class LibraryMemory(StrictDocument):
    """What libraries keep on a GPU."""

    product_workspace: int = Field(32 << 20, ge=0, description="bytes that cuBLAS keeps for each stream and thread")
    bias_workspace: int = Field(0, ge=0, description="bytes of cuBLASLt, where torch does not lend it those of cuBLAS")
    context: int = Field(528 << 20, ge=0, description="bytes of the CUDA context with torch's kernels")
    multiprocessors: int = Field(132, ge=1, description="of the GPU, which share long sums")
    multiprocessor_threads: int = Field(2048, ge=1, description="threads that each of them holds")
    measured_on: str | None = Field(None, description="the GPU and the torch that were measured; none: assumed")


@functools.cache
def library_memory() -> LibraryMemory:
    """What was measured on this machine, or the stated numbers; the GPU is not touched."""
    try:
        return LibraryMemory.model_validate_json(read_document(cache_folder() / _FILE))
    except (OSError, ValueError, ValidationError):
        return LibraryMemory.model_validate({})


def measure_libraries(device: torch.device) -> None:
    """Measure what libraries keep on a GPU, unless that is known; the process must not have computed there before.

    Where several runs share the process nothing is measured: the workspaces that are given back may be another run's.
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
    """Bytes that a product keeps on a stream of its own, and that one with a bias adds; all are given back."""
    libraries: Any = torch._C
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        x, bias = torch.zeros(64, 64, device=device), torch.zeros(64, device=device)
        product = _kept(device, lambda: torch.mm(x, x))
        biased = _kept(device, lambda: torch.addmm(bias, x, x))
    libraries._cuda_clearCublasWorkspaces()
    return product, biased


def _kept(device: torch.device, work: Any) -> int:
    """Bytes that are allocated after some work whose result is dropped."""
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return int(torch.cuda.memory_allocated(device) - before)


_FILE = "libraries.json"
