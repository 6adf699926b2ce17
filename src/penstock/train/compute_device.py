"""The device that a job computes on: which it is, the memory it has, and out-of-memory errors as one sentence."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from penstock.errors import PenstockError
from penstock.pipeline.stages import StageError

# The device that a job names.


def chosen_device(name: str) -> torch.device:
    """The device of a job; `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PenstockError(f"There is no device {name!r}: use auto, cpu or cuda.", code="unknown-name") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise PenstockError(f"Device {name!r} is not supported: use auto, cpu or cuda.", code="unsupported-combination")
    if not torch.cuda.is_available():
        raise PenstockError(
            f"Device {name!r} does not exist, or torch was built without CUDA: use auto or cpu.",
            code="device-not-found",
        )
    if device.index:
        # Each thread would have to set its device; CUDA_VISIBLE_DEVICES sets it for the whole process.
        raise PenstockError(
            f"Device {name!r} is not the first GPU: set CUDA_VISIBLE_DEVICES={device.index} and use device cuda.",
            code="unsupported-combination",
        )
    return device


# The memory of a GPU: what there is, and what may still be taken.

UNKNOWN = 1 << 62
"""Assumed bytes of a GPU whose memory is not known: everything fits."""


def device_memory_of(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU that this process can still allocate, and its total."""
    assumed = _assumed.get()
    if assumed is not None:
        size, used = assumed
        return size - used(), size
    free, total = torch.cuda.mem_get_info(device)
    # Memory that torch has cached can be allocated as well.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total


def is_assumed() -> bool:
    """Whether the memory of GPUs is assumed (`assumed_memory`) rather than queried."""
    return _assumed.get() is not None


@contextmanager
def assumed_memory(size: int, used: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Within this context every GPU is taken to have `size` bytes, `used()` of them taken; no GPU needs to exist."""
    token = _assumed.set((size, used))
    try:
        yield
    finally:
        _assumed.reset(token)


_assumed: ContextVar[tuple[int, Callable[[], int]] | None] = ContextVar("_assumed", default=None)


# Out-of-memory errors of a device or the host in the middle of a run, as one sentence.

STEPS = "lower batch_size, fanouts or hidden, or use a device with more memory"
INFERENCE = "lower hidden, or use a device with more memory"


class DeviceFull(PenstockError):  # noqa: N818
    """Raised where a job does not fit the device's memory."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="out-of-memory")


@contextmanager
def device_memory(where: Callable[[], str], mend: str) -> Iterator[None]:
    """Turn out-of-memory errors of the device into one sentence, with the place (`where`, called then) and the remedy
    `mend`.
    """
    try:
        yield
    except (torch.OutOfMemoryError, StageError) as error:
        cause = error.__cause__ if isinstance(error, StageError) else error
        if not isinstance(cause, torch.OutOfMemoryError):
            raise
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(cause))
        amount = f" ({asked[1]} more were asked for)" if asked else ""
        raise DeviceFull(f"The device ran out of memory {where()}{amount}: {mend}.") from error


def is_host_full(error: BaseException) -> bool:
    """Whether an error means that the host is out of memory; torch raises a plain RuntimeError for that."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
