"""Copies on a device that several runs of one process share: those of the same array are made once."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.progress import SILENT, Progress
from penstock.store.device.copies import to_device
from penstock.traced import is_traced


class SharedCopies:
    """The copies that runs of this process have on devices; one goes when the last run that uses it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, torch.dtype | None, str], tuple[weakref.ref[Tensor], Array]] = {}
        """By the array's identity, which stays its own as long as it is kept here."""
        self._streams: dict[str, Any] = {}
        """Copies are no run's memory: they are allocated on streams of their own."""

    def copy(
        self, array: Array, device: torch.device, dtype: torch.dtype | None, what: str, progress: Progress
    ) -> Tensor:
        """The copy of an array; whoever asks while it is made waits for it."""
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
    """Within it, in this thread, a run shares its copies with the others that were given the same."""
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


_copies: ContextVar[SharedCopies | None] = ContextVar("_copies", default=None)
