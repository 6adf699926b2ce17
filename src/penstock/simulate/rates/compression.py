"""An order of many ranks with the few queues that switches have.

What matters is only the order among coflows that are under way at once. A coflow's queue is the first that comes after
those of all coflows that go before it and overlap it in time, as far as there are queues; the last queue holds the
rest, which share as equals. When each is under way is taken from a run with all ranks. The queues are settled before
training starts, as a mark in packets has to be.
"""

import numpy as np
from numba import njit

from penstock.graph.arrays import Array


def compressed(ranks: Array, starts: Array, ends: Array, coflows: Array, queues: int) -> Array:
    """int64 [iterations, flows]: the queue of every flow, for an order and for starts and ends of flows under it."""
    iterations, count = len(starts), int(coflows.max(initial=0)) + 1
    number = np.arange(iterations)[:, None] * count + coflows
    rank = np.broadcast_to(ranks, starts.shape)
    first, begin, end = (np.full(iterations * count, fill) for fill in (np.inf, np.inf, -np.inf))
    np.minimum.at(first, number, rank)
    np.minimum.at(begin, number, starts)
    np.maximum.at(end, number, ends)
    order = np.argsort(first, kind="stable")
    return _queues(order, first, begin, end, queues)[number]


@njit(nogil=True, cache=True)
def _queues(order: Array, rank: Array, begin: Array, end: Array, queues: int) -> Array:
    """The queue of every coflow, in order; quadratic in coflows, but a step has thousands of them at most."""
    out = np.zeros(order.shape[0], np.int64)
    for k in range(order.shape[0]):
        coflow, queue = order[k], 0
        j = k - 1
        # Those before it in the order; the last queue is the most that can come out.
        while j >= 0 and queue < queues - 1:
            other = order[j]
            if rank[other] < rank[coflow] and begin[other] < end[coflow] and begin[coflow] < end[other]:
                queue = max(queue, min(out[other] + 1, queues - 1))
            j -= 1
        out[coflow] = queue
    return out
