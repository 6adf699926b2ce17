"""Losses of true triples against their negatives, and the regularisers of embeddings.

Each loss takes the scores of the true triples [m] and of their negatives [m, k], where minus infinity does not count,
and returns one number for each triple.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from penstock.nn.scorers import End, RelationScorer
from penstock.train.job_options import TripleOptions

TripleLoss = Callable[[Tensor, Tensor, TripleOptions], Tensor]

_POWERS = {"none": 0, "l2": 2, "n3": 3}


def _logistic(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """Half for the true triple, half for the weighted mean of its negatives, as in RotatE (Sun et al., 2019)."""
    return (functional.softplus(-true) + (_weights(false, options) * functional.softplus(false)).sum(1)) / 2


def _cross_entropy(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """Cross-entropy of the true triple among itself and its negatives."""
    return functional.softplus(false.logsumexp(1) - true)


def _margin(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """The mean amount by which each negative's score comes closer to the true triple's than `margin`."""
    return (_weights(false, options) * functional.relu(options.margin - true[:, None] + false)).sum(1)


TRIPLE_LOSSES: dict[str, TripleLoss] = {"bce": _logistic, "softmax": _cross_entropy, "margin": _margin}
"""By value of the job field `loss`."""


class TripleRows(NamedTuple):
    """The rows of some triples' ends, of which one is replaced, and their relations' numbers."""

    kept: Tensor
    own: Tensor
    relation: Tensor
    end: End
    """The end that is replaced."""


def loss_by_triple(
    scorer: RelationScorer,
    options: TripleOptions,
    link_loss: str,
    rows: TripleRows,
    against: Callable[[Tensor], Tensor],
    own_column: Tensor | None = None,
) -> Tensor:
    """The loss of each triple with one end replaced; `against` computes the scores of queries with their negatives.

    With `own_column`, the negatives include each triple's own end, in that column. Cross-entropy then needs no other
    score of it, and the other losses leave it out.
    """
    queries = scorer.query(rows.kept, rows.relation, rows.end)
    scores = against(queries)
    if own_column is not None and link_loss == "softmax":
        return functional.cross_entropy(scores, own_column, reduction="none")
    if own_column is not None:
        scores = scores.scatter(1, own_column[:, None], -torch.inf)
    return TRIPLE_LOSSES[link_loss](scorer.match(queries, rows.own), scores, options)


def _weights(false: Tensor, options: TripleOptions) -> Tensor:
    """The weight of each negative: equal, or larger for hard ones (Sun et al., 2019). It has no gradient."""
    with torch.no_grad():
        if options.adversarial:
            return (options.adversarial * false).softmax(1).nan_to_num(0.0)
        counts = torch.isfinite(false)
        return counts / counts.sum(1, keepdim=True).clamp(min=1)


def penalty_by_triple(
    scorer: RelationScorer, options: TripleOptions, head: Tensor, tail: Tensor, relation: Tensor, ends: Sequence[End]
) -> Tensor | float:
    """For each triple, the sum of powers of the absolute values in its rows, times its weight in the loss.

    Where both ends are replaced and relations have a vector for each, it is the mean over both. Rows are processed
    together, since each operation costs a launch on a device.
    """
    if not options.regularisation:
        return 0.0
    vectors = [scorer.relation_rows(relation, end)[0] for end in ends]
    power, size = _POWERS[options.regulariser], len(head)

    def summed(rows: Sequence[Tensor]) -> Tensor:
        return scorer.magnitudes(torch.cat(list(rows))).pow(power).sum(-1).view(len(rows), size).sum(0)

    return options.regularisation * (summed([head, tail]) + summed(vectors) / len(ends))
