"""An order of many ranks carried out with the few queues that switches have.

Only the order among coflows that meet matters: that cross one link at one time. A coflow's queue is the first after
those of all coflows that precede it and meet it, as far as there are queues; the last queue holds the rest, which share
as equals. When each coflow is active is taken from a run with all ranks. The queues are fixed before training starts,
as packet marks must be.
"""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.state import Case

_WORD = 64
_STRETCHES = 4  # of time in which the mean coflow is under way
_MOST = 500_000  # coflows of all iterations


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


def check_coflows(case: Case) -> None:
    """Refuse more coflows than can be assigned to queues in a reasonable time."""
    many = len(case.amounts.sizes) * (int(case.coflows.max(initial=0)) + 1)
    if many > _MOST:
        raise PenstockError(
            f"{many:,} coflows cannot be put in queues, at most {_MOST:,} can: take fewer iterations or microbatches,"
            " or leave out --queues.",
            code="too-large",
        )


def _crossed(case: Case, count: int) -> Array:
    """uint64 [coflows, words]: a bit for every link that a coflow's flows cross."""
    routes = case.routes
    used = np.zeros((count, len(routes.links)), bool)
    of_path = [routes.links_on(path) for path in routes.paths]
    pairs = np.unique(np.stack([case.coflows, routes.flow_path], axis=1), axis=0)
    for coflow, path in pairs[pairs[:, 1] >= 0].tolist():
        used[coflow, of_path[path]] = True
    words = -(-used.shape[1] // _WORD)
    padded = np.zeros((count, words * _WORD), bool)
    padded[:, : used.shape[1]] = used
    return np.packbits(padded, axis=1).view(np.uint64)


def _queues(order: Array, rank: Array, begin: Array, end: Array, crossed: Array, queues: int) -> Array:
    """The queue of every coflow, in order.

    Coflows that have a queue are listed by intervals of time, as wide as keeps the lists short: a coflow compares only
    with those of its own intervals.
    """
    out, since = np.zeros(len(order), np.int64), begin.min()
    width = max((end - begin).sum() / (_STRETCHES * len(order)), (end.max() - since) / len(order)) or 1.0
    first, last = (((each - since) / width).astype(np.int64) for each in (begin, end))
    heads, listed = np.full(last.max() + 1, -1), np.empty((2, (last - first + 1).sum()), np.int64)
    _put_in_queues(order, rank, begin, end, crossed, queues, first, last, heads, listed, out)
    return out


@njit(nogil=True, cache=True)
def _put_in_queues(
    order: Array,
    rank: Array,
    begin: Array,
    end: Array,
    crossed: Array,
    queues: int,
    first: Array,
    last: Array,
    heads: Array,
    listed: Array,
    out: Array,
) -> None:
    """Fill in `out`. An interval's list consists of entries in `listed`: a coflow, and the entry of the next."""
    count, at = crossed.shape[0], 0
    for coflow in order:
        queue = 0
        for stretch in range(first[coflow], last[coflow] + 1):
            entry = heads[stretch]
            # No coflow can get a later queue than the last.
            while entry >= 0 and queue < queues - 1:
                other = listed[0, entry]
                entry = listed[1, entry]
                if out[other] < queue or rank[other] == rank[coflow]:
                    continue
                if begin[other] < end[coflow] and begin[coflow] < end[other]:
                    for word in range(crossed.shape[1]):
                        if crossed[coflow % count, word] & crossed[other % count, word]:
                            queue = min(out[other] + 1, queues - 1)
                            break
        out[coflow] = queue
        for stretch in range(first[coflow], last[coflow] + 1):
            listed[0, at], listed[1, at], heads[stretch] = coflow, heads[stretch], at
            at += 1
