"""How fast a GPU moves and multiplies numbers and starts kernels: measured once for each machine.

Where nothing was measured the rates of an H200 are assumed. The first run on a GPU measures them there, in a tenth of a
second, and keeps them in the user's cache folder (`kernel_rates.json`), where predictions without a GPU find them too.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from pydantic import Field, ValidationError

from penstock.graph.atomic import write_whole
from penstock.graph.cache_folder import cache_folder
from penstock.graph.documents import StrictDocument
from penstock.sampling.device.streams import captured

_FILE = "kernel_rates.json"
_MOVED = 256 << 20
"""Bytes that are copied at most: more than any cache holds."""
_SIDE = 4096
"""Of the square matrices that are multiplied."""
_KERNELS = 200
"""Small ones that are launched, and recorded."""
_TIMES = 3
"""The fastest of so many counts: another process may use the GPU beside this one."""


class KernelRates(StrictDocument):
    """The rates of a GPU."""

    bytes_s: float = Field(4.0e12, gt=0, description="bytes that kernels read and write each second")
    flops_s: float = Field(5.0e13, gt=0, description="operations of products in float32 each second")
    replayed_s: float = Field(2.0e-6, gt=0, description="seconds to start a kernel of a recorded graph")
    launched_s: float = Field(6.0e-6, gt=0, description="seconds to launch a kernel by itself")
    measured_on: str | None = Field(None, description="the GPU and the torch that were measured; none: assumed")


@functools.cache
def kernel_rates() -> KernelRates:
    """What was measured on this machine, or the stated numbers; the GPU is not touched."""
    try:
        return KernelRates.model_validate_json((cache_folder() / _FILE).read_text())
    except (OSError, ValueError, ValidationError):
        return KernelRates.model_validate({})


def measure_kernel_rates(device: torch.device) -> None:
    """Measure a GPU's rates, unless they are known or this process has something there; nothing is left behind."""
    name = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    if kernel_rates().measured_on == name or torch.cuda.memory_allocated(device):
        return
    try:
        found = KernelRates(
            bytes_s=_bytes_s(device),
            flops_s=2 * _SIDE**3 / _seconds(device, _product(device)),
            replayed_s=_seconds(device, _recorded(device)) / _KERNELS,
            launched_s=_seconds(device, _launches(device)) / _KERNELS,
            measured_on=name,
        )
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_whole(cache_folder() / _FILE, found.model_dump_json(indent=2))
    except (OSError, torch.OutOfMemoryError):
        # A later run measures again.
        return
    finally:
        libraries: Any = torch._C
        libraries._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    kernel_rates.cache_clear()


def _bytes_s(device: torch.device) -> float:
    free, _ = torch.cuda.mem_get_info(device)
    source = torch.zeros(min(_MOVED, free // 8), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(device, lambda: target.copy_(source))


def _product(device: torch.device) -> Callable[[], object]:
    left, out = torch.zeros(_SIDE, _SIDE, device=device), torch.empty(_SIDE, _SIDE, device=device)
    return lambda: torch.mm(left, left, out=out)


def _launches(device: torch.device) -> Callable[[], object]:
    x = torch.zeros(256, device=device)

    def launch() -> None:
        for _ in range(_KERNELS):
            x.add_(1)

    return launch


def _recorded(device: torch.device) -> Callable[[], object]:
    launch = _launches(device)
    launch()
    graph = torch.cuda.CUDAGraph()
    with captured(graph, None, None):
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
