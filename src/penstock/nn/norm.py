"""Batch normalisation, also of a batch that several workers share, or that has fewer rows than its tensors.

Statistics are those of the different rows of the whole batch. Where several workers compute the same vertex in a layer,
each of its rows counts for one over their number, in the statistics and in the gradient through them; so workers
together compute what one would.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.nn.device.drop import Dropping, Rectified
from penstock.nn.device.norm import normalised
from penstock.nn.drop import rectify_later

Sum = Callable[[Tensor], None]
"""Replaces values by their sums over all workers."""


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that uses running statistics where a batch has fewer than two rows."""

    def forward(self, input: Tensor) -> Tensor:
        """[rows, width], normalised; under `normalising`, as this worker's rows of a shared batch."""
        shared = _shared.get() if self.training else None
        if shared is not None:
            return shared.normalise(self, input)
        return by_running_figures(self, input) if self.training and len(input) < 2 else super().forward(input)

    def rectify_later(self, rows: Tensor, share: float) -> Rectified:
        """drop(relu(rows, normalised), share), whose backward pass is left to the reader; for rows on a device."""
        shared = _shared.get() if self.training else None
        if isinstance(shared, PaddedBatch):
            return rectify_later(rows, share, partial(shared.normalise, self))
        return rectify_later(self(rows), share)

    def without_rows(self) -> None:
        """Take part in the normalisation of a shared batch of which this worker has no row."""
        if _shared.get() is not None and self.training:
            self(self.weight.new_empty(0, self.num_features))


def has_batch_norm(module: nn.Module) -> bool:
    """Whether any part of a module is normalised under `normalising`."""
    return any(isinstance(each, BatchNorm) for each in module.modules())


class RowShares(NamedTuple):
    """The rows of one normalisation: for each local row, one over the number of workers that have it, in float64."""

    weights: Tensor
    total: int
    """The number of different rows over all workers."""


class Normaliser(Protocol):
    """Does batch normalisations in training whose statistics are not those of the local rows."""

    def normalise(self, norm: BatchNorm, rows: Tensor) -> Tensor:
        """The rows, normalised by the statistics that all workers share."""


class SharedBatch:
    """The normalisations of one batch that several workers share; all workers make all of them, in the same order."""

    def __init__(self, shares: Sequence[RowShares], add: Sum) -> None:
        self._shares, self._add, self._calls = shares, add, 0
        self._chain: Tensor | None = None

    def normalise(self, norm: BatchNorm, rows: Tensor) -> Tensor:
        """The next normalisation, which updates its running statistics."""
        shares = self._next(len(rows))
        if shares.total < 2:
            return by_running_figures(norm, rows)
        mean, variance = _statistics(rows.detach(), shares, self._add)
        move_running_figures(norm, mean, variance, shares.total)
        before = torch.zeros((), device=rows.device, requires_grad=True) if self._chain is None else self._chain
        given = mean.float(), variance.float(), norm.weight, norm.bias
        normalised: Tensor
        normalised, self._chain = _Normalise.apply(rows, before, *given, norm.eps, shares, self._add)  # type: ignore[no-untyped-call]
        return normalised

    def joined(self, loss: Tensor) -> Tensor:
        """The same loss, connected so that its gradient reaches every normalisation, the last one first.

        A worker's own loss may not depend on the rows of some normalisation, but the others still wait for its part of
        the sums.
        """
        return loss if self._chain is None else loss + self._chain

    def _next(self, rows: int) -> RowShares:
        if self._calls == len(self._shares) or len(self._shares[self._calls].weights) != rows:
            raise PenstockError(
                f"Normalisation {self._calls + 1} of a shared batch has {rows:,} rows, which other workers do not"
                " expect: normalise the rows of the layers only, in the same order on every worker.",
                code="unsupported-combination",
            )
        self._calls += 1
        return self._shares[self._calls - 1]


class PaddedBatch:
    """The normalisations of a batch in tensors that have room for more rows. How many rows it has, and whether its step
    is skipped and so must not move running statistics, is known to the device alone.
    """

    def __init__(self, counts: Sequence[Tensor], skip: Tensor) -> None:
        """`counts` has the number of rows of each normalisation, in order, and `skip` 1 for a step that is skipped."""
        self._counts, self._skip, self._calls = counts, skip, 0

    def normalise(self, norm: BatchNorm, rows: Tensor, dropping: Dropping | None = None) -> Tensor:
        """The next normalisation, with a ReLU and dropout in the same pass where `dropping` is given. Rows behind the
        batch's own may hold anything, and become zeros.
        """
        self._calls += 1
        return normalised(norm, rows, self._counts[self._calls - 1], self._skip, dropping)


Given = TypeVar("Given", bound=Normaliser | None)


@contextmanager
def normalising(shared: Given) -> Iterator[Given]:
    """Within the context, batch normalisations in training are those of a shared batch; None: of the local rows."""
    token = _shared.set(shared)
    try:
        yield shared
    finally:
        _shared.reset(token)


def by_running_figures(norm: BatchNorm, rows: Tensor) -> Tensor:
    """Normalise by the running mean and variance, as in evaluation."""
    return functional.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


def _statistics(rows: Tensor, shares: RowShares, add: Sum) -> tuple[Tensor, Tensor]:
    """Mean and variance of every column, over all workers' different rows; float64.

    Squares are of distances to a value near the rows, so that rows far from zero do not lose precision.
    """
    rows = rows.float()
    near = rows.mean(0) if len(rows) else rows.new_zeros(rows.shape[1])
    rows, weights = rows - near, shares.weights.float()
    sums, squares = (weights @ rows).double(), (weights @ rows.square()).double()
    centre, amount = near.double(), shares.weights.sum()
    whole = torch.stack([sums + amount * centre, squares + 2 * centre * sums + amount * centre.square()])
    add(whole)
    mean, square = whole / shares.total
    return mean, (square - mean.square()).clamp_min(0.0)


def move_running_figures(norm: BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics as torch does."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    assert norm.momentum is not None
    part = norm.momentum
    norm.num_batches_tracked.add_(1)
    norm.running_mean.mul_(1 - part).add_((part * mean).to(norm.running_mean.dtype))
    norm.running_var.mul_(1 - part).add_((part * count / (count - 1) * variance).to(norm.running_var.dtype))


class _Normalise(torch.autograd.Function):
    """Beside the rows it passes on a link of the chain by which gradients reach all normalisations in one order."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        chain: Tensor,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        shares: RowShares,
        add: Sum,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(rows, mean, (variance + eps).rsqrt(), weight)
        ctx.shares, ctx.add = shares, add
        return functional.batch_norm(rows, mean, variance, weight, bias, eps=eps), chain.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, link: Tensor) -> tuple[Tensor | None, ...]:
        rows, mean, scale, weight = ctx.saved_tensors
        grad, standard = grad.float(), (rows.float() - mean) * scale
        of_bias, of_weight = grad.sum(0), (grad * standard).sum(0)
        whole = torch.stack([of_bias, of_weight]).double()
        ctx.add(whole)
        shift, stretch = (whole / ctx.shares.total).float()
        through = standard.mul_(stretch).add_(shift).mul_(ctx.shares.weights.float()[:, None])
        of_rows = grad.sub(through).mul_(weight * scale)
        return of_rows.to(rows.dtype), torch.zeros_like(link), None, None, of_weight, of_bias, None, None, None


_shared: ContextVar[Normaliser | None] = ContextVar("_shared", default=None)
