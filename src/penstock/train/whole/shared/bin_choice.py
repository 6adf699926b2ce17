"""How many bins a worker's layers have where the job leaves it open, by predicted time.

With B bins all but about one part in B of what compute and messages could do at the same time is done at the same
time. Every bin costs something by itself, and so does every message at both its ends. So a step takes

    compute + messages - S (1 - 1 / B) + B F

seconds: S is what could overlap, and F what a bin of every layer costs with its messages. One bin is the schedule of
exchange `layer`; several are chosen only where they save a clear share of that.

What layers compute is predicted on a host by the costs of operators that the job goes by, which all its workers have,
also one that is started again and must divide its rows as before. The other rates are those of one processor core or
one GPU of common machines, as measured, and not of this one. `penstock plan` simulates several numbers of bins with a
measured profile.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.nn.order_costs import LayerSizes, OrderCosts
from penstock.train.whole.memory import LayerSize

_MOST = 32
_GAIN = 0.1
"""Share of a step that several bins must save."""
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
    """Seconds of a processor that a message takes at each of its ends,"""
    handled: float
    """and bytes of messages that a processor handles in a second at each end."""


RATES = {"cpu": Rates(4e9, 2e10, 3e-3, 6e-4, 1e9), "cuda": Rates(3e11, 1e13, 6e-4, 4e-4, 1e9)}
"""By type of device."""


def bins_by_cost(
    sizes: Sequence[LayerSize],
    received: Sequence[int],
    world: int,
    bandwidth: float,
    rates: Rates,
    costs: OrderCosts | None = None,
) -> int:
    """`received` are the rows of other workers that each layer reads in a step, `bandwidth` is in bytes a second.

    `costs` of operators, where they are known, stand for the rates of what layers compute.
    """
    one_way = sum(_NUMBER * rows * size.width_in for rows, size in zip(received, sizes, strict=True))
    # In each pass a worker sends about as much as it receives.
    handling = 2 * one_way / rates.handled
    forward = sum(_layer_seconds(size, rates) if costs is None else _predicted_seconds(size, costs) for size in sizes)
    # A bin's rows go to every other worker, and so do gradients; as many come.
    messages = 4 * (world - 1) * sum(rows > 0 for rows in received)
    alone = len(sizes) * rates.bin_s + messages * rates.message_s
    return best_number(forward + handling, _BACKWARD * forward + handling, one_way / bandwidth, alone)


def best_number(forward_s: float, backward_s: float, one_way_s: float, bin_s: float) -> int:
    """From the seconds of processors in both passes, of messages in each, and of a bin of every layer by itself."""
    overlapping = min(forward_s, one_way_s) + min(backward_s, one_way_s)
    whole = forward_s + backward_s + 2 * one_way_s

    def seconds(bins: int) -> float:
        return whole - overlapping * (1 - 1 / bins) + bins * bin_s

    best = min(range(1, _MOST + 1), key=seconds)
    return best if seconds(best) < (1 - _GAIN) * seconds(1) else 1


def _predicted_seconds(size: LayerSize, costs: OrderCosts) -> float:
    """Of a forward pass in the faster order."""
    counts = max(size.inputs, size.rows), size.rows, size.edges
    given = LayerSizes(*counts, size.width_in, size.width_out, input_gradient=False, training=False)
    return min(costs.aggregate_seconds(given), costs.transform_seconds(given))


def _layer_seconds(size: LayerSize, rates: Rates) -> float:
    narrower = min(size.width_in, size.width_out)
    products = 2 * size.rows * size.width_in * size.width_out / rates.flops
    return products + _NUMBER * size.edges * narrower / rates.read
