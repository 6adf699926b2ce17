"""Dependencies of one iteration: what follows an item, an order that keeps them all, or the cycle that forbids one."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit


def successors(items: int, before: Array, after: Array, lags: Array) -> tuple[Array, Array, Array]:
    """For every item its followers: starts (int32 [items + 1]), the followers, and their lags."""
    starts = np.zeros(items + 1, np.int32)
    np.cumsum(np.bincount(before, minlength=items), out=starts[1:])
    followers, follower_lags = np.empty(len(before), np.int32), np.empty(len(before), np.int32)
    _scatter(before, after, lags, starts.copy(), followers, follower_lags)
    return starts, followers, follower_lags


def sorted_items(items: int, before: Array, after: Array, lags: Array) -> Array:
    """The items so that each comes after those it waits for with lag 0; shorter than `items` where there is a cycle."""
    within = lags == 0
    starts, followers, _ = successors(items, before[within], after[within], lags[within])
    out = np.empty(items, np.int32)
    return out[: _sort(starts, followers, np.bincount(after[within], minlength=items), out)]


def cycle_among(done: Array, items: int, before: Array, after: Array, lags: Array) -> list[int]:
    """Items that wait for each other in a circle with lag 0, each before the next; `done` could be sorted."""
    stuck = np.ones(items, bool)
    stuck[done] = False
    inside = (lags == 0) & stuck[before] & stuck[after]
    # Every stuck item waits for a stuck one, so walking back must come round.
    waits_for = dict(zip(after[inside].tolist(), before[inside].tolist(), strict=True))
    seen: list[int] = []
    item = int(np.flatnonzero(stuck)[0])
    while item not in seen:
        seen.append(item)
        item = waits_for[item]
    return seen[seen.index(item) :][::-1]


@njit(nogil=True, cache=True)
def _scatter(before: Array, after: Array, lags: Array, free: Array, followers: Array, follower_lags: Array) -> None:
    """A counting sort by `before`; `free` is where each item's next follower goes."""
    for edge in range(before.shape[0]):
        place = free[before[edge]]
        free[before[edge]] += 1
        followers[place], follower_lags[place] = after[edge], lags[edge]


@njit(nogil=True, cache=True)
def _sort(starts: Array, followers: Array, waiting: Array, out: Array) -> int:
    """Kahn's algorithm; `out` is its own queue."""
    filled = 0
    for item in range(waiting.shape[0]):
        if waiting[item] == 0:
            out[filled] = item
            filled += 1
    taken = 0
    while taken < filled:
        item = out[taken]
        taken += 1
        for edge in range(starts[item], starts[item + 1]):
            follower = followers[edge]
            waiting[follower] -= 1
            if waiting[follower] == 0:
                out[filled] = follower
                filled += 1
    return filled
