"""`matched`: our own schedule for phases with a cost: few phases, at most 5 % above the bound.

A phase of duration w costs time if afterwards some port has more left than the largest load less w. A port that idles
may do so for its slack (largest load less its own); a pair may be matched for what it has to send plus the smaller
slack of its two ports. Each phase is a matching in which the shortest of these is as long as can be; it lasts for that
and a twentieth more (or for its largest entry, if that is shorter), and pairs that are still free are added. The
largest load falls by the first part, so all phases take at most 1.05 times the largest load there was.

`bvn` fixes beforehand who idles with whom, and stops each phase at the first entry that ends; that is why it needs more
phases. With no twentieth this one would take the bound too.
"""

import numpy as np

from penstock.coflow.matching.demand import Phase, matching
from penstock.coflow.matching.widest import NONE, widen
from penstock.graph.arrays import Array
from penstock.kernels import njit

_PARTS = 20
"""A phase may last one part longer than wastes nothing."""
_FREE = np.iinfo(np.int64).max
"""An entry that never bounds a phase."""


def matched_phases(demand: Array) -> list[Phase]:
    """The phases in the order in which they are sent."""
    ranks, left, phases = len(demand), demand.copy(), list[Phase]()
    everyone = np.arange(ranks)
    # A sender's stand-in receives from it while it idles, a receiver's sends to it.
    entries = np.full((2 * ranks, 2 * ranks), _FREE)
    receivers, senders = np.full(2 * ranks, NONE), np.full(2 * ranks, NONE)
    floor = _FREE
    while left.any():
        _set_entries(left, left.sum(1), left.sum(0), entries)
        # From the last floor: a little less than the best where that has risen, and much sooner found.
        floor = int(widen(entries, receivers, senders, floor))
        chosen = np.where(receivers[:ranks] < ranks, receivers[:ranks], NONE)
        _add_pairs(left, chosen)
        waiting = np.where(chosen == NONE, 0, left[everyone, chosen])
        weight = min(floor + floor // _PARTS, int(waiting.max()))
        sizes = np.minimum(waiting, weight)
        left[everyone, chosen] -= sizes
        phases.append(matching(chosen, sizes, weight))
    return phases


@njit(nogil=True, cache=True)
def _set_entries(left: Array, sending: Array, receiving: Array, entries: Array) -> None:
    """How long each pair could be matched and each port could idle without costing time."""
    ranks = len(left)
    load = max(sending.max(), receiving.max())
    entries[:ranks, :] = 0
    entries[ranks:, :ranks] = 0
    for sender in range(ranks):
        entries[sender, ranks + sender] = load - sending[sender]
        entries[ranks + sender, sender] = load - receiving[sender]
        for receiver in range(ranks):
            if left[sender, receiver] > 0:
                slack = load - max(sending[sender], receiving[receiver])
                entries[sender, receiver] = left[sender, receiver] + slack


@njit(nogil=True, cache=True)
def _add_pairs(left: Array, chosen: Array) -> None:
    """Match free senders with free receivers, each with the one it has most for."""
    ranks = len(left)
    taken = np.zeros(ranks, np.bool_)
    for sender in range(ranks):
        if chosen[sender] != NONE:
            taken[chosen[sender]] = True
    for sender in range(ranks):
        most = 0
        if chosen[sender] == NONE:
            for receiver in range(ranks):
                if not taken[receiver] and left[sender, receiver] > most:
                    most, chosen[sender] = left[sender, receiver], receiver
            if most > 0:
                taken[chosen[sender]] = True
