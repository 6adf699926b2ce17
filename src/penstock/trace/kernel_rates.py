"""Rates of a GPU: memory, products and kernel launches, measured once for each machine.

Where nothing was measured the rates of an H200 are assumed. `penstock serve` measures them before its first job and
keeps them in the user's cache folder (`kernel_rates.json`), where predictions without a GPU find them too.
"""

import functools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from penstock.cache_folders import cache_folder
from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument
from penstock.graph.files import read_document, write_whole

_FILE = "kernel_rates.json"
_MOVED = 256 << 20
"""Bytes read in the measurement: more than any cache holds."""
_SIDE = 4096
"""Rows and columns of the matrices that are multiplied."""
_KERNELS = 200
"""Small kernels that are launched, and recorded."""
_TIMES = 3
"""The fastest of this many measurements counts: another process may use the GPU meanwhile."""


class KernelRates(StrictDocument):
    """The rates of a GPU; if a machine's GPUs differ, those of the slowest."""

    bytes_s: float = Field(4.0e12, gt=0, description="bytes of memory that kernels read and write each second")
    cache_bytes: float = Field(6.0e7, ge=0, description="bytes that the GPU's cache holds")
    cached_bytes_s: float = Field(
        8.0e12, gt=0, description="bytes of the cache that kernels read and write each second"
    )
    flops_s: float = Field(5.0e13, gt=0, description="operations of products in float32 each second")
    replayed_s: float = Field(1.0e-6, gt=0, description="seconds to start a kernel of a recorded graph")
    launched_s: float = Field(9.0e-6, gt=0, description="seconds to launch a kernel by itself")
    measured_on: str | None = Field(None, description="the GPUs and the torch that were measured; none: assumed")

    def seconds_of(self, moved: float) -> float:
        """Seconds that memory takes for a kernel of so many bytes, some of which are still in the cache."""
        return moved / (self.cached_bytes_s if moved <= self.cache_bytes else self.bytes_s)


@functools.cache
def kernel_rates() -> KernelRates:
    """The rates measured on this machine, or the assumed ones; no GPU is used."""
    try:
        return KernelRates.model_validate_json(read_document(cache_folder() / _FILE))
    except (OSError, ValueError, ValidationError):
        return KernelRates.model_validate({})


def measure_kernel_rates() -> None:
    """Measure the rates of this machine's GPUs, unless they are known.

    The process must have nothing else to do on them. If that fails, the rates stay as they are: they only serve
    estimates.
    """
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if not devices:
        return
    names = sorted({torch.cuda.get_device_name(device) for device in devices})
    name = f"{', '.join(names)}, torch {torch.__version__}"
    if kernel_rates().measured_on == name:
        return
    try:
        found = _slowest([_measured(device, name) for device in devices])
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_whole(cache_folder() / _FILE, found.model_dump_json(indent=2))
    except (OSError, PenstockError, RuntimeError):
        # The GPU or the disk is full: a later service measures again.
        return
    kernel_rates.cache_clear()


def _slowest(found: list[KernelRates]) -> KernelRates:
    return min(found, key=lambda rates: rates.bytes_s)


def _measured(device: torch.device, name: str) -> KernelRates:
    with torch.cuda.device(device):
        free, _ = torch.cuda.mem_get_info(device)
        cache = float(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        large, small = min(_MOVED, free // 8), int(cache / 8)
        bytes_s = 2 * large / _seconds(device, _passes(device, large, 1))
        launch = _passes(device, 1024, _KERNELS)
        replayed_s = _seconds(device, _recorded(launch)) / _KERNELS
        cached_bytes_s = bytes_s
        if small:
            each = _seconds(device, _recorded(_passes(device, small, _KERNELS))) / _KERNELS
            cached_bytes_s = max(bytes_s, 2 * small / max(each - replayed_s, 1e-9))
        return KernelRates(
            bytes_s=bytes_s,
            cache_bytes=cache,
            cached_bytes_s=cached_bytes_s,
            flops_s=2 * _SIDE**3 / _seconds(device, _product(device)),
            replayed_s=replayed_s,
            launched_s=_seconds(device, launch) / _KERNELS,
            measured_on=name,
        )


def _passes(device: torch.device, size: int, count: int) -> Callable[[], object]:
    """A function that reads and writes so many bytes, `count` times."""
    source = torch.zeros(max(1, size // 4), device=device)
    target = torch.empty_like(source)

    def run() -> None:
        for _ in range(count):
            torch.add(source, 1.0, out=target)

    return run


def _product(device: torch.device) -> Callable[[], object]:
    left, out = torch.zeros(_SIDE, _SIDE, device=device), torch.empty(_SIDE, _SIDE, device=device)
    return lambda: torch.mm(left, left, out=out)


def _recorded(launch: Callable[[], object]) -> Callable[[], object]:
    """A function that replays what `launch` launches as a CUDA graph."""
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs, after one that is not counted."""
    work()
    found, event = list[float](), cast(Any, torch.cuda.Event)
    for _ in range(_TIMES):
        began, ended = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize(device)
        began.record(torch.cuda.current_stream(device))
        work()
        ended.record(torch.cuda.current_stream(device))
        torch.cuda.synchronize(device)
        found.append(began.elapsed_time(ended) / 1e3)
    return min(found)


# What the kernels of traced steps move and multiply, and the share of a GPU's throughput that a run would use.

_aten: Any = torch.ops.aten
_WITHOUT_KERNEL = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided, _aten.detach,
    _aten.resize_, _aten._unsafe_view,
}  # fmt: skip
"""Operations that only allocate; views are recognised by what they return."""
_PICKS = {_aten.index_select, _aten.index, _aten.embedding, _aten.gather}
"""Operations that read only those rows of a table that they return."""
_PICKED = 2.5
"""Picking rows by lists takes this many times as long as reading them in order."""
_APART_S = 2.0
"""Seconds of a run, outside its steps, in which a GPU is mostly idle: start, preparation, validation, writing."""


class StepWork:
    """Bytes and products of each kernel that steps launch, in order."""

    def __init__(self) -> None:
        self.steps = 0
        """The number of updates that were traced."""
        self.times = 1.0
        """How often the kernels recorded now run in a step: some are traced on behalf of others like them."""
        self._kernels: list[tuple[float, float, float]] = []
        """Bytes, products, and repetitions of each kernel."""

    def note(self, operation: Any, given: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """Record an operation of torch, with its input and output tensors."""
        if operation.overloadpacket in _WITHOUT_KERNEL or _is_view(operation):
            return
        made = sum(each.nbytes for each in found)
        picks = operation.overloadpacket in _PICKS
        moved = made + _PICKED * made if picks else made + sum(each.nbytes for each in given)
        self._kernels.append((float(moved), _flops(operation, given), self.times))

    def note_kernel(self, moved: int, picked: int = 0) -> None:
        """Record a kernel of Penstock's that moves so many bytes in order, and so many of rows that it picks."""
        self._kernels.append((moved + _PICKED * picked, 0.0, self.times))

    def share(self, rates: KernelRates, captured: bool, steps: int) -> float | None:
        """The share of its time in which a run of so many steps would occupy the whole GPU; None where nothing was
        traced.

        Kernels of a small graph take as long as it takes to start them, and leave nearly all of the GPU to other jobs;
        so does a job that starts or prepares. Kernels of a large graph saturate its memory or its products, which two
        jobs would have to share.
        """
        if not self.steps:
            return None
        filled = sum(
            times * max(rates.seconds_of(moved), flops / rates.flops_s) for moved, flops, times in self._kernels
        )
        started = sum(times for *_, times in self._kernels) * (rates.replayed_s if captured else rates.launched_s)
        # Single launches are queued ahead of the GPU, while a recorded graph waits between kernels.
        total, times = filled + started if captured else max(filled, started), steps / self.steps
        return filled * times / (_APART_S + total * times)


@cache
def _is_view(operation: Any) -> bool:
    """Whether it returns a view of its argument."""
    aliases = [each.alias_info for each in operation._schema.returns]
    return bool(aliases) and all(each is not None and not each.is_write for each in aliases)


def _flops(operation: Any, given: Sequence[Tensor]) -> float:
    """The operations of a matrix product of the last two tensors."""
    if operation.overloadpacket not in _PRODUCTS:
        return 0.0
    *_, left, right = given
    return 2.0 * left.numel() * right.shape[-1]


_PRODUCTS = {_aten.mm, _aten.addmm, _aten.addmm_, _aten.bmm, _aten.baddbmm, _aten.baddbmm_}
