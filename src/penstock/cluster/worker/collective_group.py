"""The interface of a group of workers that sums and gathers numbers in one round."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class CollectiveGroup(Protocol):
    """Sums are made in an order that depends on the number of workers alone."""

    device: torch.device
    """Where the numbers must be."""

    def sum(self, numbers: Tensor) -> None:
        """In place, of all workers'. Raises RegroupError when the round is over."""

    def launch_sum(self, numbers: Tensor) -> None:
        """Sum numbers in a GPU's memory, in place: what is launched behind it on the stream finds the sums."""

    def finish_sums(self, is_done: Callable[[], bool]) -> None:
        """Wait until launched sums, and what else `is_done` asks about, are done; raises RegroupError as `sum` does."""

    def gather(self, numbers: Tensor) -> list[Tensor]:
        """All workers' rows of numbers, however long each, by rank."""

    def close(self) -> None:
        """Let go of the other workers: those that still wait for this one hear of it."""


class StagedSums:
    """Sums of numbers in a GPU's memory for groups of hosts: through page-locked memory, one copy each way."""

    _staged: Tensor | None = None

    def sum(self, numbers: Tensor) -> None:
        """In place, of arrays in host memory."""
        self.start_sum(numbers)()

    def start_sum(self, numbers: Tensor) -> Callable[[], None]:
        """Begin a sum of arrays in host memory, in place, which nobody may touch until what is returned has been called
        and has waited for it. All workers begin the same sums in the same order, other sums among them.
        """
        raise NotImplementedError

    def launch_sum(self, numbers: Tensor) -> None:
        """The host waits for the numbers and sums; the copy back is launched."""
        if numbers.device.type == "cpu":
            self.sum(numbers)
            return
        if self._staged is None or self._staged.shape != numbers.shape:
            self._staged = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._staged.copy_(numbers, non_blocking=True)
        torch.cuda.current_stream(numbers.device).synchronize()
        self.sum(self._staged)
        numbers.copy_(self._staged, non_blocking=True)

    def finish_sums(self, is_done: Callable[[], bool]) -> None:
        """Sums are done when they were launched."""
