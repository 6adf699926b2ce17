"""What the kernels of traced steps move and multiply, and the share of a GPU's throughput that a run would use."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from penstock.train.trace.kernel_rates import KernelRates

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
