"""Out-of-memory errors of a device or the host in the middle of a run, as one sentence."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from penstock.errors import PenstockError
from penstock.pipeline.stages import StageError

STEPS = "lower batch_size, fanouts or hidden, or use a device with more memory"
INFERENCE = "lower inference_mb or hidden, or use a device with more memory"


class DeviceFull(PenstockError):  # noqa: N818
    """What was asked for does not fit the device."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="out-of-memory")


@contextmanager
def device_memory(where: Callable[[], str], mend: str) -> Iterator[None]:
    """What runs out of a device's memory in it is told with its place (asked for then) and what to change."""
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
    """Whether the host has no memory left, of which torch tells in an error of no kind of its own."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
