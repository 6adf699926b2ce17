"""How fast jobs are beside each other.

A device has a throughput of 1. Jobs ask for shares of it; together they get what they ask for up to 1, and beyond that
everybody gets the same part of it. On top of that every neighbour makes steps longer by `interference`, a part that can
be measured: the time of a step of two jobs together over its time alone, where their shares fit.
"""

from collections.abc import Sequence


def relative_speed(shares: Sequence[float], interference: float) -> float:
    """The speed of each of the jobs with these shares on one device, relative to running alone."""
    if not shares:
        return 1.0
    return 1.0 / max(1.0, sum(shares)) / (1.0 + interference * (len(shares) - 1))


def throughput(shares: Sequence[float], interference: float) -> float:
    """The part of the device's throughput that the jobs turn into steps."""
    return sum(shares) * relative_speed(shares, interference)
