"""How many bins a worker's layers have where the job leaves it open, by predicted time.

With B bins all but about one part in B of what compute and messages could do at the same time is done at the same
time, and every bin costs something by itself, and so does every message. So a step takes a constant, and S / B + B x F
seconds: S is what could overlap, and F what a bin of every layer costs. That is least at the square root of S / F.

Rates are those of one processor core or one GPU of common machines, as measured, and not of this one: a worker that is
started again must divide its rows as before. `penstock plan` simulates several numbers of bins with a measured profile.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from penstock.train.whole.memory import LayerSize

_MOST = 32
_NUMBER = 4
"""Bytes of a number."""
_BACKWARD = 2
"""A backward pass takes about so many times as long as the forward pass."""


class Rates(NamedTuple):
    """What a kind of device computes."""

    read: float
    """Bytes of neighbours' rows that are aggregated in a second."""
    flops: float
    """Multiplications and additions of a dense product in a second."""
    bin_s: float
    """Seconds that a bin takes by itself, forward and backward."""
    message_s: float
    """Seconds of a processor that a message takes at each of its ends."""


RATES = {"cpu": Rates(4e9, 2e10, 7e-4, 4e-4), "cuda": Rates(3e11, 1e13, 6e-4, 4e-4)}
"""By type of device."""


def bins_by_cost(
    sizes: Sequence[LayerSize], received: Sequence[int], world: int, bandwidth: float, rates: Rates
) -> int:
    """`received` are the rows of other workers that each layer reads in a step, `bandwidth` is in bytes a second."""
    forward = sum(_layer_seconds(size, rates) for size in sizes)
    one_way = sum(_NUMBER * rows * size.width_in for rows, size in zip(received, sizes, strict=True)) / bandwidth
    # A bin's rows go to every other worker, and so do gradients; as many come.
    messages = 4 * (world - 1) * sum(rows > 0 for rows in received)
    alone = len(sizes) * rates.bin_s + messages * rates.message_s
    return best_number(forward, _BACKWARD * forward, one_way, alone)


def best_number(forward_s: float, backward_s: float, one_way_s: float, bin_s: float) -> int:
    """From the seconds of compute in both passes, of messages in each, and of a bin of every layer by itself."""
    overlapping = min(forward_s, one_way_s) + min(backward_s, one_way_s)
    return max(1, min(_MOST, round(math.sqrt(overlapping / bin_s))))


def _layer_seconds(size: LayerSize, rates: Rates) -> float:
    narrower = min(size.width_in, size.width_out)
    products = 2 * size.rows * size.width_in * size.width_out / rates.flops
    return products + _NUMBER * size.edges * narrower / rates.read
