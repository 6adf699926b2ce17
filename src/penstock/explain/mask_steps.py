"""Kernels for masks under optimisation: a mask's terms of the objective, their gradients, and Adam, in one pass.

As operations of torch the same takes thirty of them for each mask and step, whose overhead exceeds a small model's own
time.
"""

import math

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit

_FIRST_DECAY, _SECOND_DECAY, _LEAST = 0.9, 0.999, 1e-8
"""Adam's, as torch has them."""


@njit(nogil=True, cache=True)
def squash(raw: Array, values: Array) -> None:
    """`values` between 0 and 1 of logits."""
    for k in range(raw.shape[0]):
        values[k] = 1.0 / (1.0 + math.exp(-raw[k]))


@njit(nogil=True, cache=True)
def terms(raw: Array, values: Array, active: Array, size: float, entropy: float) -> float:
    """The size and entropy terms of the active values; `size` and `entropy` are the weights of one value."""
    total = 0.0
    for k in range(raw.shape[0]):
        if active[k]:
            # -p log p - (1 - p) log(1 - p) of p = sigmoid(raw), without a logarithm of zero.
            softplus = max(raw[k], 0.0) + math.log1p(math.exp(-abs(raw[k])))
            total += size * values[k] + entropy * (softplus - raw[k] * values[k])
    return total


@njit(nogil=True, cache=True)
def adam_step(
    raw: Array,
    values: Array,
    gradient: Array,
    active: Array,
    moments: Array,
    step: int,
    rate: float,
    size: float,
    entropy: float,
) -> None:
    """Move the logits against the gradient, and squash them again.

    `gradient` is that of the distance by the values; the terms' is added. `moments` has both moments of each logit,
    and `step` counts from 1.
    """
    first_share, second_share = 1.0 - _FIRST_DECAY**step, 1.0 - _SECOND_DECAY**step
    for k in range(raw.shape[0]):
        slope = np.float64(gradient[k])
        if active[k]:
            slope += size - entropy * raw[k]
        slope *= values[k] * (1.0 - values[k])
        moments[0, k] = _FIRST_DECAY * moments[0, k] + (1.0 - _FIRST_DECAY) * slope
        moments[1, k] = _SECOND_DECAY * moments[1, k] + (1.0 - _SECOND_DECAY) * slope * slope
        size_of_step = math.sqrt(moments[1, k] / second_share) + _LEAST
        raw[k] -= rate * moments[0, k] / first_share / size_of_step
        values[k] = 1.0 / (1.0 + math.exp(-raw[k]))
