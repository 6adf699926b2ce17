"""Rates fitted to measured seconds, and how far predictions are from measurements that were held out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from penstock.nn.operator_work import Amounts, seconds_of


class Fit(NamedTuple):
    """The rates of an operator, and the errors of what was held out, as shares of what was measured."""

    rates: dict[str, float]
    errors: list[float]


def fit_rates(work: Sequence[Amounts], seconds: Sequence[float]) -> dict[str, float]:
    """Rates that are not negative, with the least squares of relative errors."""
    names = list(dict.fromkeys(name for each in work for name in each))
    amounts = np.array([[each.get(name, 0.0) for name in names] for each in work], np.float64)
    relative = amounts / np.asarray(seconds)[:, None]
    # Columns of alike lengths: a unit of work may be a call or a flop.
    lengths = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    found, _ = nnls(relative / lengths, np.ones(len(seconds)))
    return {name: float(rate) for name, rate in zip(names, found / lengths, strict=True) if rate > 0}


def fit_and_compare(work: Sequence[Amounts], seconds: Sequence[float], held_out: Sequence[bool]) -> Fit:
    """Rates from the measurements that are not held out, compared with those that are."""
    kept = [place for place, out in enumerate(held_out) if not out]
    rates = fit_rates([work[place] for place in kept], [seconds[place] for place in kept])
    errors = [
        abs(seconds_of(rates, amounts) / spent - 1)
        for amounts, spent, out in zip(work, seconds, held_out, strict=True)
        if out
    ]
    return Fit(rates, errors)
