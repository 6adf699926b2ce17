"""`fair`: no schedule. Everything is sent at once, and the network shares its ports as it does.

Its time alone is that of max-min fair sharing: n senders and n receivers at the line rate, rates anew whenever a flow
ends. That is the network's best behaviour; incast, which loses packets, is not in it.

It is the simulator's policy of the same name, and tests hold the two to each other. A full matrix is filled by a kernel
of its own, because the simulator's lists of flows take 1.2 to 1.9 times as long for one.
"""

import numpy as np

from penstock.coflow.matching.demand import Phase
from penstock.graph.arrays import Array
from penstock.kernels import njit

_ROUNDING = 1e-12
"""Of a flow's bytes: what is left of it when it ends with another."""


def fair_phases(demand: Array) -> list[Phase]:
    """One phase with all flows, or none."""
    senders, peers = np.nonzero(demand)
    if not len(senders):
        return []
    weight = float(_shared_duration(demand.astype(np.float64)))
    return [Phase(senders.astype(np.int32), peers.astype(np.int32), demand[senders, peers], weight)]


@njit(nogil=True, cache=True)
def _shared_duration(sizes: Array) -> float:
    """How long all flows take together at a line rate of 1, from one flow's end to the next."""
    ranks, now = len(sizes), 0.0
    left, rates = sizes.copy(), np.zeros((ranks, ranks))
    flows = int(np.count_nonzero(left))
    while flows > 0:
        _fill(left, rates, flows)
        step = np.inf
        for sender in range(ranks):
            for receiver in range(ranks):
                if left[sender, receiver] > 0:
                    step = min(step, left[sender, receiver] / rates[sender, receiver])
        now += step
        for sender in range(ranks):
            for receiver in range(ranks):
                if left[sender, receiver] > 0:
                    left[sender, receiver] -= step * rates[sender, receiver]
                    if left[sender, receiver] <= _ROUNDING * sizes[sender, receiver]:
                        left[sender, receiver] = 0
                        flows -= 1
    return now


@njit(nogil=True, cache=True)
def _fill(left: Array, rates: Array, unsettled: int) -> None:
    """Max-min rates by progressive filling: the port that gives its flows least settles them, and so on."""
    ranks = len(left)
    # Ports: the senders', then the receivers'.
    spare, crossing = np.ones(2 * ranks), np.zeros(2 * ranks, np.int64)
    for sender in range(ranks):
        for receiver in range(ranks):
            rates[sender, receiver] = 0.0
            crossing[sender] += left[sender, receiver] > 0
            crossing[ranks + receiver] += left[sender, receiver] > 0
    while unsettled > 0:
        least, tightest = np.inf, 0
        for port in range(2 * ranks):
            if crossing[port] > 0 and spare[port] < least * crossing[port]:
                least, tightest = spare[port] / crossing[port], port
        for other in range(ranks):
            sender, receiver = (tightest, other) if tightest < ranks else (other, tightest - ranks)
            if left[sender, receiver] > 0 and rates[sender, receiver] == 0.0:
                rates[sender, receiver] = least
                unsettled -= 1
                crossing[sender] -= 1
                crossing[ranks + receiver] -= 1
                spare[sender] -= least
                spare[ranks + receiver] -= least
