"""What the kernels of a traced step move and multiply, and the share of a GPU's throughput that the step would use."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from penstock.train.trace.kernel_rates import KernelRates

_aten: Any = torch.ops.aten
_WITHOUT_KERNEL = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided, _aten.detach,
    _aten.resize_,
}  # fmt: skip
"""Operations that only make room; views are known by what they return."""


class StepWork:
    """Bytes and products of each kernel that steps launch, in their order."""

    def __init__(self) -> None:
        self._kernels: list[tuple[float, float]] = []

    def note(self, operation: Any, given: Any, found: Any) -> None:
        """An operation of torch, with its arguments and what it returned."""
        if operation.overloadpacket in _WITHOUT_KERNEL or _is_view(operation):
            return
        moved = sum(each.nbytes for each in _tensors((given, found)))
        self._kernels.append((float(moved), _flops(operation, given)))

    def note_kernel(self, moved: int) -> None:
        """A kernel of Penstock's, which moves so many bytes."""
        self._kernels.append((float(moved), 0.0))

    def share(self, rates: KernelRates, captured: bool) -> float | None:
        """The part of its time in which a step alone would fill the GPU; None where nothing was traced.

        Kernels of a small graph take as long as it takes to start them, and leave nearly all of the GPU to other jobs.
        Those of a large one are as long as its memory and its multiplication take, which no second job makes shorter.
        """
        if not self._kernels:
            return None
        filled = sum(max(rates.seconds_of(moved), flops / rates.flops_s) for moved, flops in self._kernels)
        started = len(self._kernels) * (rates.replayed_s if captured else rates.launched_s)
        # Launches of single kernels go ahead of the GPU; what is recorded as a graph waits between kernels.
        total = filled + started if captured else max(filled, started)
        return min(1.0, filled / total)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


@cache
def _is_view(operation: Any) -> bool:
    """Whether it returns its argument's memory as it is."""
    aliases = [each.alias_info for each in operation._schema.returns]
    return bool(aliases) and all(each is not None and not each.is_write for each in aliases)


def _flops(operation: Any, given: Any) -> float:
    """Of a product of matrices: the last two of its tensors are multiplied."""
    if operation.overloadpacket not in _PRODUCTS:
        return 0.0
    *_, left, right = _tensors(given)
    return 2.0 * left.numel() * right.shape[-1]


_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm}
