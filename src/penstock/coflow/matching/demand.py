"""What an all-to-all has to send (a matrix of bytes), the least time that any schedule takes, and its phases."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

_LARGEST_LOAD = 2**62
"""Bytes a port may carry: sums stay below this, so that 64 bits hold them."""


def checked_demand(matrix: Any) -> Array:
    """Bytes that rank i sends to rank j, int64 [n, n], a copy. The diagonal is 0: own data crosses no network."""
    try:
        given = np.asarray(matrix)
    except ValueError:
        raise PenstockError(
            "The rows of the all-to-all's matrix differ in length: give n rows of n sizes.", code="shape-mismatch"
        ) from None
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.shape[0] == 0:
        raise PenstockError(
            f"The all-to-all's matrix has the shape {given.shape}: give n rows of n sizes, row i what rank i sends.",
            code="shape-mismatch",
        )
    if given.dtype.kind not in "iu":
        raise PenstockError(
            f"The all-to-all's matrix holds {given.dtype}: give whole numbers of bytes.", code="wrong-type"
        )
    wrong = np.argwhere(given < 0)
    if len(wrong):
        sender, receiver = wrong[0]
        raise PenstockError(
            f"Rank {sender} cannot send {given[sender, receiver]:,} bytes to rank {receiver}: give 0 or more.",
            code="value-out-of-range",
        )
    rough = given.astype(np.float64)
    if max(rough.sum(0).max(), rough.sum(1).max()) >= _LARGEST_LOAD:
        raise PenstockError(
            "A rank of the all-to-all has 2^62 bytes or more to carry: give sizes in larger units.", code="too-large"
        )
    demand = given.astype(np.int64)
    np.fill_diagonal(demand, 0)
    return demand


def largest_load(demand: Array) -> int:
    """The most that any rank sends or receives, in bytes."""
    return int(max(demand.sum(0).max(), demand.sum(1).max()))


def bound(matrix: Any, rate: float) -> float:
    """Seconds that no schedule can beat: the busiest port's bytes at the line rate (bytes/s)."""
    return largest_load(checked_demand(matrix)) / checked_rate(rate)


def checked_rate(rate: float) -> float:
    """A line rate that something can be divided by, in bytes/s."""
    if not (rate > 0 and math.isfinite(rate)):
        raise PenstockError(f"The line rate is {rate} bytes/s: give a number above 0.", code="value-out-of-range")
    return rate


@dataclass(frozen=True, eq=False)
class Phase:
    """`senders[k]` sends `sizes[k]` bytes to `peers[k]`, or nothing where that is -1.

    In a matching the senders are 0..n-1, each with one peer at most, and no two with the same. Only `fair` sends
    otherwise: its one phase has a flow for every pair that has bytes.
    """

    senders: Array
    """int32 [flows]"""
    peers: Array
    """int32 [flows]: who receives, or -1."""
    sizes: Array
    """int64 [flows]: bytes."""
    weight: float
    """How long the phase takes, in bytes at the line rate; a whole number for matchings."""


def matching(receivers: Array, sizes: Array, weight: int) -> Phase:
    """A matching's phase; senders without bytes have no peer."""
    peers = np.where(sizes > 0, receivers, -1).astype(np.int32)
    return Phase(np.arange(len(peers), dtype=np.int32), peers, sizes, weight)
