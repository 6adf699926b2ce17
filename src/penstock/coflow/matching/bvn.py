"""`bvn`: the bottleneck Birkhoff-von Neumann decomposition. It takes exactly the bound, in at most n^2 - 2n + 2 phases.

The matrix is padded until all rows and columns add up to the largest of them; padding stands for idling and carries no
bytes. Such a matrix has a perfect matching among its positive entries. The one whose smallest entry is largest is sent
for as long as that entry lasts, what is left has equal sums again, and so on. Every phase all ports are busy or idle by
padding, so the weights add up to the largest sum: no schedule is faster. Every phase ends an entry, which bounds their
number. All in whole numbers, so that every rank finds the same schedule and nothing is left by rounding.
"""

import numpy as np

from penstock.coflow.matching.demand import Phase, largest_load, matching
from penstock.coflow.matching.widest import NONE, widen
from penstock.graph.arrays import Array


def bvn_phases(demand: Array) -> list[Phase]:
    """The phases of the Birkhoff-von Neumann schedule, longest first."""
    ranks, left = len(demand), largest_load(demand)
    unsent, entries = demand.copy(), padded(demand)
    everyone = np.arange(ranks)
    receivers, senders = np.full(ranks, NONE), np.full(ranks, NONE)
    phases, floor = [], left
    while left > 0:
        # Entries only fall, and with them the largest smallest one: the last floor is high enough to start from.
        floor = weight = int(widen(entries, receivers, senders, floor))
        entries[everyone, receivers] -= weight
        sizes = np.minimum(unsent[everyone, receivers], weight)
        unsent[everyone, receivers] -= sizes
        phases.append(matching(receivers, sizes, weight))
        left -= weight
    return phases


def padded(demand: Array) -> Array:
    """The matrix with as much added as makes all rows and columns add up to the largest of them.

    What the emptiest sender lacks goes to the emptiest receiver first: large entries make few phases.
    """
    entries, load = demand.copy(), largest_load(demand)
    sending, receiving = load - demand.sum(1), load - demand.sum(0)
    while sending.any():
        sender, receiver = int(sending.argmax()), int(receiving.argmax())
        idle = min(sending[sender], receiving[receiver])
        entries[sender, receiver] += idle
        sending[sender] -= idle
        receiving[receiver] -= idle
    return entries
