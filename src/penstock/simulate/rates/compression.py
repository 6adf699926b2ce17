"""An order of many ranks with the few queues that switches have.

What matters is only the order among coflows that meet: that cross one link at one time. A coflow's queue is the first
that comes after those of all coflows that go before it and meet it, as far as there are queues; the last queue holds
the rest, which share as equals. When each is under way is taken from a run with all ranks. The queues are settled
before training starts, as a mark in packets has to be.
"""

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.simulate.rates.policy import Case

_WORD = 64


def compressed(case: Case, ranks: Array, starts: Array, ends: Array, queues: int) -> Array:
    """int64 [iterations, flows]: the queue of every flow, for an order and for starts and ends of flows under it."""
    coflows = case.coflows
    iterations, count = len(starts), int(coflows.max(initial=0)) + 1
    number = np.arange(iterations)[:, None] * count + coflows
    rank = np.broadcast_to(ranks, starts.shape)
    first, begin, end = (np.full(iterations * count, fill) for fill in (np.inf, np.inf, -np.inf))
    np.minimum.at(first, number, rank)
    np.minimum.at(begin, number, starts)
    np.maximum.at(end, number, ends)
    order = np.argsort(first, kind="stable")
    return np.asarray(_queues(order, first, begin, end, _crossed(case, count), queues)[number])


def _crossed(case: Case, count: int) -> Array:
    """uint64 [coflows, words]: a bit for every link that a coflow's flows cross."""
    routes = case.routes
    used = np.zeros((count, len(routes.links)), bool)
    of_path = [routes.path_links[path["first"] : path["last"]] for path in routes.paths]
    pairs = np.unique(np.stack([case.coflows, routes.flow_path], axis=1), axis=0)
    for coflow, path in pairs[pairs[:, 1] >= 0].tolist():
        used[coflow, of_path[path]] = True
    words = -(-used.shape[1] // _WORD)
    padded = np.zeros((count, words * _WORD), bool)
    padded[:, : used.shape[1]] = used
    return np.packbits(padded, axis=1).view(np.uint64)


@njit(nogil=True, cache=True)
def _queues(order: Array, rank: Array, begin: Array, end: Array, crossed: Array, queues: int) -> Array:
    """The queue of every coflow, in order; quadratic in coflows, but a step has thousands of them at most."""
    out = np.zeros(order.shape[0], np.int64)
    count = crossed.shape[0]
    for k in range(order.shape[0]):
        coflow, queue = order[k], 0
        j = k - 1
        # Those before it in the order; the last queue is the most that can come out.
        while j >= 0 and queue < queues - 1:
            other = order[j]
            j -= 1
            if out[other] < queue or rank[other] == rank[coflow]:
                continue
            if begin[other] < end[coflow] and begin[coflow] < end[other]:
                for word in range(crossed.shape[1]):
                    if crossed[coflow % count, word] & crossed[other % count, word]:
                        queue = min(out[other] + 1, queues - 1)
                        break
        out[coflow] = queue
    return out
