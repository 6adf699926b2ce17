"""How fast a GPU moves and multiplies numbers and starts kernels: measured once for each machine.

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
"""Bytes that are read at most: more than any cache holds."""
_SIDE = 4096
"""Of the square matrices that are multiplied."""
_KERNELS = 200
"""Small ones that are launched, and recorded."""
_TIMES = 3
"""The fastest of so many counts: another process may use the GPU beside this one."""


class KernelRates(StrictDocument):
    """The rates of a GPU; of the slowest one, where those of a machine are not alike."""

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
        """The time that memory takes for a kernel of so many bytes: few of them are still in the cache."""
        return moved / (self.cached_bytes_s if moved <= self.cache_bytes else self.bytes_s)


@functools.cache
def kernel_rates() -> KernelRates:
    """What was measured on this machine, or the stated numbers; the GPU is not touched."""
    try:
        return KernelRates.model_validate_json(read_document(cache_folder() / _FILE))
    except (OSError, ValueError, ValidationError):
        return KernelRates.model_validate({})


def measure_kernel_rates() -> None:
    """Measure the rates of this machine's GPUs, unless they are known.

    The process must have nothing else to do on them. What goes wrong leaves the rates as they are: they are for
    estimates alone.
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
        # A full GPU or folder: a later service measures again.
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
    """Read so many bytes and write as many, so many times."""
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
    """The replay of what is launched."""
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Of the fastest of a few times, after one that is not counted."""
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
"""Operations that only make room; views are known by what they return."""
_PICKS = {_aten.index_select, _aten.index, _aten.embedding, _aten.gather}
"""Operations that read those rows of a table that they return."""
_PICKED = 2.5
"""Rows that a kernel picks by lists take so many times as long as rows in order."""
_APART_S = 2.0
"""Seconds of a run, beside its steps, in which a GPU does little: it starts, prepares, validates and writes."""


class StepWork:
    """Bytes and products of each kernel that steps launch, in their order."""

    def __init__(self) -> None:
        self.steps = 0
        """Updates that were traced."""
        self.times = 1.0
        """How often kernels that are noted now run in a step: some are traced for others of their kind."""
        self._kernels: list[tuple[float, float, float]] = []
        """Bytes, products, and how often."""

    def note(self, operation: Any, given: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """An operation of torch, with the tensors that it was given and those that it returned."""
        if operation.overloadpacket in _WITHOUT_KERNEL or _is_view(operation):
            return
        made = sum(each.nbytes for each in found)
        picks = operation.overloadpacket in _PICKS
        moved = made + _PICKED * made if picks else made + sum(each.nbytes for each in given)
        self._kernels.append((float(moved), _flops(operation, given), self.times))

    def note_kernel(self, moved: int, picked: int = 0) -> None:
        """A kernel of Penstock's, which moves so many bytes in order, and so many of rows that it picks."""
        self._kernels.append((moved + _PICKED * picked, 0.0, self.times))

    def share(self, rates: KernelRates, captured: bool, steps: int) -> float | None:
        """The part of its time in which a run of so many steps would fill the GPU alone; None where none was traced.

        Kernels of a small graph take as long as it takes to start them, and leave nearly all of the GPU to other jobs;
        so does a job that starts or prepares. Kernels of a large graph keep its memory or its products busy, which two
        jobs would have to share.
        """
        if not self.steps:
            return None
        filled = sum(
            times * max(rates.seconds_of(moved), flops / rates.flops_s) for moved, flops, times in self._kernels
        )
        started = sum(times for *_, times in self._kernels) * (rates.replayed_s if captured else rates.launched_s)
        # Launches of single kernels go ahead of the GPU; what is recorded as a graph waits between kernels.
        total, times = filled + started if captured else max(filled, started), steps / self.steps
        return filled * times / (_APART_S + total * times)


@cache
def _is_view(operation: Any) -> bool:
    """Whether it returns its argument's memory as it is."""
    aliases = [each.alias_info for each in operation._schema.returns]
    return bool(aliases) and all(each is not None and not each.is_write for each in aliases)


def _flops(operation: Any, given: Sequence[Tensor]) -> float:
    """Of a product of matrices: the last two of its tensors are multiplied."""
    if operation.overloadpacket not in _PRODUCTS:
        return 0.0
    *_, left, right = given
    return 2.0 * left.numel() * right.shape[-1]


_PRODUCTS = {_aten.mm, _aten.addmm, _aten.addmm_, _aten.bmm, _aten.baddbmm, _aten.baddbmm_}
