"""The memory of a GPU: what there is, and what may still be taken."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

UNKNOWN = 1 << 62
"""The memory of a GPU of which nothing is said: everything fits."""


def device_memory_of(device: torch.device) -> tuple[int, int]:
    """Bytes that this process may still take of a GPU, and all that it has."""
    assumed = _assumed.get()
    if assumed is not None:
        size, used = assumed
        return size - used(), size
    free, total = torch.cuda.mem_get_info(device)
    # What torch keeps for later is ours as well.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total


def is_assumed() -> bool:
    """Whether the memory of GPUs is what somebody said, and none is asked."""
    return _assumed.get() is not None


@contextmanager
def assumed_memory(size: int, used: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Within it GPUs have so many bytes, of which some are used; none need be there."""
    token = _assumed.set((size, used))
    try:
        yield
    finally:
        _assumed.reset(token)


_assumed: ContextVar[tuple[int, Callable[[], int]] | None] = ContextVar("_assumed", default=None)
