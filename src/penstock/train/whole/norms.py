"""Batch normalisation over all bins of a layer, which are computed one after the other.

Statistics are known when every bin has been computed once; the bins are then computed again and normalised. In the
backward pass the sums that gradients through the statistics need are found in the same way.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from penstock.nn.norm import BatchNorm, by_running_figures, move_running_figures, normalising
from penstock.traced import is_traced

Sum = Callable[[Tensor], None]
"""Replaces values by their sums over all workers."""


@dataclass(eq=False)
class _Statistics:
    """The sums of one normalisation: of all rows, in float64 relative to a value near them, and of their gradients."""

    near: Tensor
    sums: Tensor
    """The number of rows, the sum of each column, and that of its squares."""
    gradients: Tensor
    mean: Tensor
    variance: Tensor
    count: int = 0


class LayerNorms:
    """The normalisations of one layer in one step."""

    def __init__(self, add: Sum | None = None, norms: Sequence[BatchNorm] = ()) -> None:
        """`add` sums over workers. A worker may have no rows of some norm, so `norms` are all that any may have, in the
        same order on every worker. None: there is one worker.
        """
        self._add, self._norms, self._known = add, norms, dict[BatchNorm, _Statistics]()
        self._phase: Literal["measure", "apply", "sum"] = "measure"

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """A context for a pass over all bins that collects statistics without normalising; at its end running
        statistics are updated.
        """
        with self._during("measure"):
            yield
        if self._add is not None:
            self._known = {norm: self._known.get(norm) or _no_rows(norm) for norm in self._norms}
            _add_all(self._add, [known.sums for known in self._known.values()])
        for norm, known in self._known.items():
            known.count = 2 if is_traced() else round(float(known.sums[0, 0]))
            if known.count < 2:
                continue
            offset, square = known.sums[1:] / known.count
            known.mean = (offset + known.near).float()
            known.variance = (square - offset.square()).clamp_min(0.0).float()
            move_running_figures(norm, known.mean.double(), known.variance.double(), known.count)

    def applying(self) -> Any:
        """A context for passes over bins that are normalised, forward or backward."""
        return self._during("apply")

    @contextmanager
    def summing(self) -> Iterator[None]:
        """A context for a forward and backward pass over all bins that collects the sums for gradients through the
        statistics.
        """
        with self._during("sum"):
            yield
        if self._add is not None:
            _add_all(self._add, [known.gradients for known in self._known.values()])

    def normalise(self, norm: BatchNorm, rows: Tensor) -> Tensor:
        """Normalise the rows of one bin, or count them, depending on the context."""
        if self._phase == "measure":
            self._measure(norm, rows.detach())
            return rows
        known = self._known[norm]
        if known.count < 2:
            by_figures = by_running_figures(norm, rows)
            # No gradient flows through given statistics, and the other gradients come in the pass that follows.
            return by_figures.detach() if self._phase == "sum" else by_figures
        given = rows.detach() if self._phase == "sum" else rows
        result: Tensor = _BinNormalise.apply(given, norm.weight, norm.bias, norm.eps, known, self._phase == "sum")  # type: ignore[no-untyped-call]
        return result

    @contextmanager
    def _during(self, phase: Literal["measure", "apply", "sum"]) -> Iterator[None]:
        self._phase = phase
        with normalising(self):
            yield

    def _measure(self, norm: BatchNorm, rows: Tensor) -> None:
        rows = rows.double()
        if norm not in self._known:
            self._known[norm] = _no_rows(norm)
        known = self._known[norm]
        rows = rows - known.near
        known.sums += torch.stack([torch.full_like(known.near, len(rows)), rows.sum(0), rows.square().sum(0)])


def _no_rows(norm: BatchNorm) -> _Statistics:
    # Sums are relative to the running mean, which is the same on every worker, so that they can be added.
    assert norm.running_mean is not None
    near = norm.running_mean.double()
    sums = torch.zeros(3, norm.num_features, dtype=torch.float64, device=near.device)
    return _Statistics(near, sums, torch.zeros_like(sums[:2]), near, near)


def _add_all(add: Sum, parts: Sequence[Tensor]) -> None:
    """Sum all parts over workers in one exchange."""
    if parts:
        joined = torch.cat([part.reshape(-1) for part in parts])
        add(joined)
        for part, total in zip(parts, torch.split(joined, [part.numel() for part in parts]), strict=True):
            part.copy_(total.view_as(part))


class _BinNormalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, known: _Statistics, summing: bool
    ) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.eps, ctx.known, ctx.summing = eps, known, summing
        return functional.batch_norm(rows, known.mean, known.variance, weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        known: _Statistics = ctx.known
        root = (known.variance + ctx.eps).rsqrt()
        scaled = (rows - known.mean) * root
        if ctx.summing:
            known.gradients += torch.stack([grad.double().sum(0), (grad * scaled).double().sum(0)])
            return None, None, None, None, None, None
        of_mean, of_scale = (known.gradients / known.count).to(grad.dtype)
        below = weight * root * (grad - of_mean - scaled * of_scale)
        return below, (grad * scaled).sum(0), grad.sum(0), None, None, None
