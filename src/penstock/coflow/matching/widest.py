"""Perfect matchings whose smallest entry is as large as can be, each grown from the one before.

`receivers` [n] and `senders` [n] (int64) are the matching seen from both sides, -1 where there is none. A bipartite
graph is a matrix of entries (int64): an edge counts while its entry is at least the `floor`, which falls only when no
perfect matching is left above it. So the floor ends at the largest possible smallest entry, if it began at or above it.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit

NONE = -1


@njit(nogil=True, cache=True)
def widen(entries: Array, receivers: Array, senders: Array, floor: int) -> int:
    """Make the matching perfect; returns its floor. What it has below the floor it starts from is matched anew.

    There must be a perfect matching of entries above 0.
    """
    ranks = len(receivers)
    for sender in range(ranks):
        receiver = receivers[sender]
        if receiver != NONE and entries[sender, receiver] < floor:
            receivers[sender] = NONE
            senders[receiver] = NONE
    tree = np.empty((3, ranks), np.int64)
    for sender in range(ranks):
        if receivers[sender] == NONE:
            floor = _join(entries, receivers, senders, sender, floor, tree)
    return floor


@njit(nogil=True, cache=True)
def _join(entries: Array, receivers: Array, senders: Array, root: int, floor: int, tree: Array) -> int:
    """Match one more sender, by the alternating path from it whose smallest entry is largest; returns the floor.

    When everything above the floor is reached and taken, the reached senders are one more than the receivers they have:
    every perfect matching uses an entry out of them, and the largest of those is the new floor.
    """
    best, through, outside = tree[0], tree[1], tree[2]
    # The largest entry by which a reached sender could reach a receiver, that sender, and receivers not yet reached.
    best[:] = NONE
    for receiver in range(len(receivers)):
        outside[receiver] = receiver
    reached, count = root, len(receivers)
    while True:
        widest, place = NONE, 0
        for k in range(count):
            receiver = outside[k]
            if entries[reached, receiver] > best[receiver]:
                best[receiver], through[receiver] = entries[reached, receiver], reached
            if best[receiver] > widest:
                widest, place = int(best[receiver]), k
                if widest >= floor and senders[receiver] == NONE:
                    break
        floor = min(floor, widest)
        last = outside[place]
        if senders[last] == NONE:
            break
        reached = senders[last]
        count -= 1
        outside[place] = outside[count]
    while last != NONE:
        sender = through[last]
        senders[last] = sender
        last, receivers[sender] = receivers[sender], last
    return floor
