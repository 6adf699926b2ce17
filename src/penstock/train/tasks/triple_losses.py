"""Losses of true triples against what stands against them, and the regularisers of embeddings.

Each loss takes the scores of the true triples [m] and of their negatives [m, k], where minus infinity does not count,
and gives one number for each triple.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from penstock.nn.scorers import RelationScorer
from penstock.train.triple_options import TripleOptions

TripleLoss = Callable[[Tensor, Tensor, TripleOptions], Tensor]

_POWERS = {"none": 0, "l2": 2, "n3": 3}


def _logistic(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """Half for the true triple, half for the weighted mean of its negatives, as RotatE's authors have it."""
    return (functional.softplus(-true) + (_weights(false, options) * functional.softplus(false)).sum(1)) / 2


def _cross_entropy(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """Of the true triple among itself and its negatives."""
    return functional.softplus(false.logsumexp(1) - true)


def _margin(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """How much each negative comes closer to the true triple than `margin`."""
    return (_weights(false, options) * functional.relu(options.margin - true[:, None] + false)).sum(1)


TRIPLE_LOSSES: dict[str, TripleLoss] = {"bce": _logistic, "softmax": _cross_entropy, "margin": _margin}
"""By the job's `link_loss`."""


def _weights(false: Tensor, options: TripleOptions) -> Tensor:
    """How much each negative counts: all that do alike, or hard ones more (Sun et al., 2019). No gradient goes here."""
    with torch.no_grad():
        if options.adversarial:
            return (options.adversarial * false).softmax(1).nan_to_num(0.0)
        counts = torch.isfinite(false)
        return counts / counts.sum(1, keepdim=True).clamp(min=1)


def regulariser(name: str, scorer: RelationScorer, rows: Iterable[Tensor]) -> Tensor:
    """For each triple the sum of powers of the absolute values of its rows' numbers."""
    return torch.stack([scorer.magnitudes(each).pow(_POWERS[name]).sum(-1) for each in rows]).sum(0)
