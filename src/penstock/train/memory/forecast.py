"""The memory of a job, predicted before it runs and without touching a device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.traced import weights_only_counted
from penstock.train.assembly import session_of
from penstock.train.device_full import is_host_full
from penstock.train.device_memory import UNKNOWN, assumed_memory
from penstock.train.job import Job
from penstock.train.memory.device_forecast import DeviceForecast, forecast_device
from penstock.train.memory.host_forecast import HostForecast, forecast_host
from penstock.train.product_order import with_order_costs
from penstock.train.run_context import run_context
from penstock.train.trace.libraries import library_memory

_UNCOUNTABLE = ("verflow", "too large", "invalid shape", "invalid for input of size")
"""In what torch and NumPy say of sizes that do not fit into 64 bits."""


@dataclass(frozen=True)
class MemoryForecast:
    """What a job will take at most. All sizes are bytes."""

    device: str
    """`cuda` or `cpu`: where the model is computed."""
    device_allocated: int
    """Of the device, by tensors: what `torch.cuda.max_memory_allocated` will say. 0 on a CPU."""
    device_reserved: int
    """Of the device, by torch's allocator: what `torch.cuda.max_memory_reserved` will say. 0 on a CPU."""
    context: int
    """Of the device, by CUDA and its kernels, outside torch's allocator."""
    host: int
    """Of the host, by the whole process: its resident memory at most, files that it has mapped included."""
    categories: dict[str, int]
    """What is allocated at the peak of the device, by what it is for; on a CPU, of the host."""
    host_categories: dict[str, int]
    moment: str
    """When the peak is reached."""
    method: str
    """How it was found: `traced`; `trial` or `rule` where a trace cannot be had."""
    reason: str
    """Why not by a trace, where it was not; else how the largest batch was found."""
    seconds: float = 0.0
    """How long the prediction took."""
    why: list[str] = field(default_factory=list)
    """Where things go on the device, and how steps are done, a sentence each."""
    share: float | None = None
    """Of a GPU's throughput that the run uses where nothing runs beside it, from 0 to 1; None where unknown."""
    cores: int | None = None
    """Of the host that are busy while the job trains, where these are fewer than its threads; None: one for each."""

    @property
    def device_bytes(self) -> int:
        """All that the job takes of the device: torch's segments and the CUDA context."""
        return self.device_reserved + self.context if self.device == "cuda" else 0


def forecast(
    job: Job,
    graph: Graph | None = None,
    *,
    device: str | None = None,
    device_memory: int | None = None,
    module: torch.nn.Module | None = None,
) -> MemoryForecast:
    """The memory of a job. `graph` and `module` stand for the job's own where given.

    `device` is `cuda` or `cpu`; the job's where it is not given. A GPU need not be there: `device_memory` is its size
    in bytes; where that is not given everything is taken to fit.
    """
    began = time.perf_counter()
    kind = _kind(job.device if device is None else device)
    on_host = with_order_costs(job.model_copy(update={"device": "cpu"}), built=module is not None)
    room = UNKNOWN if device_memory is None else max(0, device_memory - library_memory().context)
    with _countable(), run_context(on_host), assumed_memory(room), weights_only_counted():
        session = session_of(on_host, torch.device("cpu"), graph, module)
        of_device: DeviceForecast | None = forecast_device(session) if kind == "cuda" else None
        of_host: HostForecast = forecast_host(session, of_device)
    found = _joined(kind, of_device, of_host)
    return replace(found, seconds=round(time.perf_counter() - began, 3))


@contextmanager
def _countable() -> Iterator[None]:
    """Around a forecast: sizes that no computer can count, or that this one cannot hold, are refused in a sentence."""
    try:
        yield
    except (MemoryError, RuntimeError, OverflowError, TypeError, ValueError) as error:
        if is_host_full(error):
            raise PenstockError(
                "The memory of the job cannot be forecast: batches of it do not fit into this machine's memory. Lower"
                " batch_size, fanouts or embedding.",
                code="out-of-memory",
            ) from error
        if not any(word in str(error) for word in _UNCOUNTABLE):
            raise
        raise PenstockError(
            "The job would need arrays of more than 2^63 bytes, which no machine has: lower hidden, layers or"
            " batch_size.",
            code="out-of-memory",
        ) from error


def _joined(kind: str, of_device: DeviceForecast | None, of_host: HostForecast) -> MemoryForecast:
    if of_device is None:
        return MemoryForecast(
            kind, 0, 0, 0, of_host.bytes, of_host.categories, of_host.categories, of_host.moment, of_host.method,
            of_host.reason,
        )  # fmt: skip
    peak = of_device.peak
    return MemoryForecast(
        kind, peak.allocated, peak.reserved, of_device.context, of_host.bytes, peak.categories, of_host.categories,
        peak.moment, of_device.method, of_device.reason, why=of_device.why, share=peak.share,
        cores=1 if of_device.recorded else None,
    )  # fmt: skip


def _kind(device: str) -> str:
    """`auto` is a GPU where there is one, as in training."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] not in ("cuda", "cpu"):
        raise PenstockError(
            f"Memory is predicted for cuda or cpu, not for {device!r}: use one of them.", code="unknown-name"
        )
    return device.partition(":")[0]
